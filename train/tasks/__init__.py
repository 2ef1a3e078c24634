"""Tasks by name: what the data is, what the model is, what the loss is. One file a task."""

from attention.errors import unknown
from train.tasks.image_classification import ImageClassification

TASKS = {"image_classification": ImageClassification}


def find(name: str) -> type:
    """The task of that name.

    Raises:
      UsageError: there is none.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]
