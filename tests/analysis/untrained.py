"""Work directories of models as they are before their first step, which is enough to look at them."""

from pathlib import Path

import jax

from tests.models.small import random_like
from tests.train.conftest import arguments
from train import loading, tasks
from train.main import parse
from train.run import workdir
from train.run.checkpoints import Checkpoints

DATES = {
    "config": "configs/translate_dates.py",
    "data__source": "dates(sources=('en',), targets=('de',), first=2000, last=2001)",
    "data__validation_split": "validation",
    "data__test_split": "test",
    "model__decoder_depth": 1,
}


def untrained(path: Path, **changes) -> None:
    """Writes a run whose only checkpoint is at step 0; fields are given as `model__depth=2`, or as `config`."""
    flags, overrides = parse(arguments(path, train__ema=0.0, **changes))
    config, plain = loading.resolve(flags.config, overrides)
    task = tasks.find(config.task)(config)
    with workdir.claimed(path, plain, task.files()):
        pass
    params = random_like(jax.eval_shape(task.init, jax.random.key(0)))
    with Checkpoints(path, keep=1) as checkpoints:
        checkpoints.save(0, {"params": params}, {}, [0])
