"""Small tasks of every kind, with data that come with the packages or are written here."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.train.conftest import arguments
from train import loading, tasks
from train.config.schema import Config
from train.main import parse

SMALL = {"data__batch_size": 8, "model__attention_dropout": 0.1}
TEXT = SMALL | {"data__context": 16}
DATES = {"data__source": "dates(first=2000, last=2003)"}
DATES |= {"data__validation_split": "validation[:40]", "data__test_split": "test[:40]"}
ALL: dict[str, dict[str, Any]] = {
    "vit_digits": SMALL,
    "classify_imdb": TEXT,
    "gpt_pydoc": TEXT,
    "mlm_pydoc": TEXT | {"data__tokeniser": "words(marks=True, size=300)", "model__padding_token": 0},
    "translate_dates": SMALL | DATES,
    "seq2seq_dates": {"data__batch_size": 8} | DATES,
    "caption_digits": SMALL | {"data__validation_split": "validation[:40]", "data__test_split": "test[:40]"},
}
RECURRENT = {"model.embedding": "8", "model.hidden": "8"}


def config_of(name: str, folder: Path, **changes: Any) -> Config:
    """Resolves the config of a small task.

    Args:
      name: A name in `ALL`.
      folder: The folder where data may be written.
      changes: Overrides, as `arguments` takes them.
    """
    if name == "classify_imdb":
        file = folder / "reviews.csv"
        file.write_text("text,label\n" + "a good film that I liked,1\nnot a good film at all,0\n" * 20)
        splits = dict.fromkeys(("data__validation_split", "data__test_split", "data__train_split"), "train")
        changes = {"data__source": f"file:{file}"} | splits | changes
    flags, overrides = parse(arguments("unused", config=f"configs/{name}.py", **ALL[name] | changes))
    if name == "seq2seq_dates":
        overrides = {field: text for field, text in overrides.items() if not field.startswith("model.")} | RECURRENT
    return loading.resolve(flags.config, overrides)[0]


def task_of(config: Config) -> tasks.Task:
    """Makes the task of a config."""
    return tasks.find(config.task)(config)


def batch_of(task: tasks.Task) -> dict[str, jax.Array]:
    """Takes a task's first batch."""
    return jax.tree.map(jnp.asarray, next(task.train_batches(0, 1)))


def params_of(task: tasks.Task) -> dict:
    """Draws parameters of which none is 0, without compiling anything."""
    noise = np.random.default_rng(0)
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(noise.normal(0.0, 0.3, leaf.shape), leaf.dtype), shapes)
