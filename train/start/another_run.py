"""The parameters of another run as the start of one."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

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
Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class AnotherRun:
    """A run of one replica, whose parameters can be taken; `name` is what `train.init_from` calls its `place`."""

    name: str
    place: Path
    config: Config

    @classmethod
    def of(cls, name: str, files: Mapping[str, str]) -> "AnotherRun":
        """Finds a run; its tokenisers must be among the texts that this run keeps, `files`, where it has them."""
        place = at_home(name)
        config = loading.validate(workdir.read_config(place))
        if config.train.together > 1:
            raise UsageError(
                f"train.init_from={name!r} is a run of {config.train.together} replicas; give a run of one."
            )
        for file, text in files.items():
            if file.endswith("tokeniser.json") and (place / file).exists() and workdir.read_file(place, file) != text:
                raise UsageError(
                    f"train.init_from={name!r} has learned other tokens ({file} differs); set its tokeniser, such as "
                    f"data.tokeniser='file:{place / file}'."
                )
        return cls(name, place, config)

    def load(self, params: Params) -> tuple[Params, str]:
        """Replaces initial parameters by those of its best step, or its last, that have their name and shape.

        Keys and values of another number of heads are repeated or averaged; see `models.surgery.exchange.regrouped`.
        The
        parameters come with a report.
        """
        fresh = flatten_dict(params, sep="/")
        with Checkpoints(self.place, self.config.train.keep) as checkpoints:
            step = checkpoints.choose("best" if (self.place / "result.json").is_file() else "last", 0)
            there = checkpoints.shapes(step)
            fitting = self._fitting(fresh, there)
            additions = {path: path.rpartition("/")[0] + "/kernel" for path in there if low_rank.is_addition(path)}
            needed = {path: path for path in fitting} | {path: k for path, k in additions.items() if k in fitting}
            wanted = {path: _abstract(fresh[original], there[path]) for path, original in needed.items()}
            loaded = checkpoints.load_params(step, unflatten_dict(wanted, sep="/"), averaged=self.config.train.ema > 0)
        lora = low_rank.parse(self.config.optimizer.lora)
        loaded = flatten_dict(lora.merged(loaded) if lora else loaded, sep="/")
        regrouped = tuple(path for path in fitting if there[path] != fresh[path].shape)
        for path in regrouped:
            loaded[path] = jax.device_put(exchange.regrouped(loaded[path], fresh[path].shape[-2]), fresh[path].sharding)
        new = tuple(sorted(fresh.keys() - fitting))
        left = tuple(sorted(there.keys() - fitting - additions.keys()))
        report = LoadReport(f"step {step} of {self.name}", tuple(fitting), (), left, new, regrouped=regrouped)
        differ = [f"{path} is {there[path]} there and {fresh[path].shape} here" for path in new if path in there]
        shapes = f"\nOf other shapes, so new: {listed(differ, _NAMED)}." if differ else ""
        return unflatten_dict(fresh | loaded, sep="/"), f"{report}{shapes}"

    def _fitting(self, fresh: Mapping[str, jax.Array], there: Shapes) -> list[str]:
        """Lists the paths whose shapes are the same, or differ in the number of heads that keys and values have."""
        fitting = sorted(
            path
            for path, value in fresh.items()
            if there.get(path) == value.shape or exchange.regroups(path, there.get(path, ()), value.shape)
        )
        if not fitting:
            raise UsageError(
                f"train.init_from={self.name!r} has no parameter of the name and shape of one here: it has "
                f"{', '.join(list(there)[:_NAMED])} and so on; give a run of a model such as this."
            )
        return fitting


def _abstract(value: jax.Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """Describes what is loaded for an initial value: an array of its sharding, or a whole one of another shape."""
    split = value.sharding
    if shape != value.shape and isinstance(split, NamedSharding):
        split = NamedSharding(split.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(shape, value.dtype, sharding=split)
