"""Tasks by name. Each task's file defines its data, models and loss."""

from attention.errors import check_known
from train.config.schema import Config
from train.tasks.captioning import Captioning
from train.tasks.image_classification import ImageClassification
from train.tasks.language_modelling import LanguageModelling
from train.tasks.masked_language_modelling import MaskedLanguageModelling
from train.tasks.task import Task
from train.tasks.text_classification import TextClassification
from train.tasks.translation import Translation
from train.tasks.trial import TrialTask

TASKS: dict[str, type[Task]] = {
    "captioning": Captioning,
    "image_classification": ImageClassification,
    "language_modelling": LanguageModelling,
    "masked_language_modelling": MaskedLanguageModelling,
    "text_classification": TextClassification,
    "translation": Translation,
    "trial": TrialTask,
}


def find(name: str) -> type[Task]:
    """Finds a task by name; raises a UsageError where there is none."""
    check_known("task", name, TASKS)
    return TASKS[name]


def of(config: Config) -> Task:
    """Builds a config's task, with its data."""
    return find(config.task)(config)
