"""The parameters of another run as the start of one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from attention.errors import UsageError, listed
from models.files import at_home
from models.published.pretrained import LoadReport
from models.surgery import exchange, low_rank
from train import loading
from train.config.schema import Config
from train.run import workdir
from train.run.checkpoints import Checkpoints
from train.state import Params

_NAMED = 5  # parameters of other shapes that a remark names


def source(directory: str, files: Mapping[str, str]) -> tuple[Path, Config]:
    """Returns another run and its config.

    Args:
      directory: Its work directory, as `train.init_from` names it.
      files: The texts that this run keeps; its tokenisers must be the other's, where that has them.

    Raises:
      UsageError: it is no run of one replica, or has learned other tokens.
    """
    place = at_home(directory)
    config = loading.validate(workdir.read_config(place))
    if config.train.together > 1:
        raise UsageError(
            f"train.init_from={directory!r} is a run of {config.train.together} replicas; give a run of one."
        )
    for name, text in files.items():
        if name.endswith("tokeniser.json") and (place / name).exists() and workdir.read_file(place, name) != text:
            raise UsageError(
                f"train.init_from={directory!r} has learned other tokens ({name} differs); set its tokeniser, such as "
                f"data.tokeniser='file:{place / name}'."
            )
    return place, config


def load(directory: str, params: Params, files: Mapping[str, str]) -> tuple[Params, str]:
    """Replaces initial parameters by those of another run that have their name and shape.

    Keys and values of another number of heads are repeated or averaged; see `models.surgery.exchange.regrouped`.

    Args:
      directory: Its work directory; its best step is taken, or the last where it has not finished.
      params: The initial parameters.
      files: See `source`.

    Returns:
      Parameters of the same shapes and shardings, and a report.

    Raises:
      UsageError: there is no such run or checkpoint, or none of its parameters fits; or see `source`.
    """
    place, config = source(directory, files)
    fresh = flatten_dict(params, sep="/")
    with Checkpoints(place, config.train.keep) as checkpoints:
        step = checkpoints.choose("best" if (place / "result.json").is_file() else "last", 0)
        there = checkpoints.shapes(step)
        regrouped = {path for path, value in fresh.items() if exchange.regroups(path, there.get(path, ()), value.shape)}
        fitting = sorted(path for path, value in fresh.items() if path in regrouped or there.get(path) == value.shape)
        if not fitting:
            raise UsageError(
                f"train.init_from={directory!r} has no parameter of the name and shape of one here: it has "
                f"{', '.join(list(there)[:_NAMED])} and so on; give a run of a model such as this."
            )
        additions = {path: path.rpartition("/")[0] + "/kernel" for path in there if low_rank.is_addition(path)}
        needed = {path: path for path in fitting} | {path: k for path, k in additions.items() if k in fitting}
        wanted = {path: _abstract(fresh[original], there[path]) for path, original in needed.items()}
        loaded = checkpoints.load_params(step, unflatten_dict(wanted, sep="/"), averaged=config.train.ema > 0)
    lora = low_rank.parse(config.optimizer.lora)
    loaded = flatten_dict(lora.merged(loaded) if lora else loaded, sep="/")
    for path in regrouped:
        loaded[path] = jax.device_put(exchange.regrouped(loaded[path], fresh[path].shape[-2]), fresh[path].sharding)
    new, left = (tuple(sorted(paths)) for paths in (fresh.keys() - fitting, there.keys() - fitting - additions.keys()))
    report = LoadReport(
        f"step {step} of {directory}", tuple(fitting), (), left, new, regrouped=tuple(sorted(regrouped))
    )
    differ = [f"{path} is {there[path]} there and {fresh[path].shape} here" for path in new if path in there]
    shapes = f"\nOf other shapes, so new: {listed(differ, _NAMED)}." if differ else ""
    return unflatten_dict(fresh | loaded, sep="/"), f"{report}{shapes}"


def _abstract(value: jax.Array, shape: tuple[int, ...]) -> Any:
    """Returns what to load for an initial value: an array of its sharding, or a whole one of another shape."""
    split = value.sharding
    if shape != value.shape and isinstance(split, NamedSharding):
        split = NamedSharding(split.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(shape, value.dtype, sharding=split)
