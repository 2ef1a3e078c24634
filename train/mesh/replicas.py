"""Replicas: several seeds and learning rates of one config in one program, stacked and taken apart here.

With one replica, nothing is stacked or mapped.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from attention.errors import UsageError
from attention.mesh import BATCH, REPLICAS
from train.config.schema import Config
from train.mesh import sharding
from train.state import Params
from train.step import Batch


class Replicas:
    """The seeds and learning rates that are trained together, and the devices that hold each.

    If the mesh has only a data axis, whose size divides the number of replicas, it splits them: every device trains its
    own replicas without communication. Otherwise the mesh splits every batch, as for one replica.

    Every seed is trained with each of the rates, the schedule's highest; evaluation ignores them.

    Attributes:
      front: The leading axis of every stacked array; () for one replica.
      batch_axes: The axes of the mesh that split each replica's batch.
    """

    def __init__(self, seeds: Sequence[int], mesh: Mesh, rates: Sequence[float] = (0.0,)):
        self._seeds, self.mesh, self._rates = seeds, mesh, rates
        several = len(self) > 1
        # With other axes too, XLA (jaxlib 0.10.2) aborts where a sharded array is indexed inside `shard_map`.
        only = mesh.size > 1 and mesh.shape["data"] == mesh.size
        self._apart = several and only and len(self) % mesh.size == 0
        self.front = (len(self),) if several else ()
        self.front_spec = ("data" if self._apart else None,) * len(self.front)
        self.batch_axes = ("fsdp",) if self._apart else BATCH

    @classmethod
    def of(cls, config: Config, mesh: Mesh) -> "Replicas":
        """Makes the replicas of a config: `train.replicas` seeds from `seed` on, with each of `train.rates`."""
        if config.train.together > 1 and jax.process_count() > 1:
            raise UsageError(
                f"{config.train.together} replicas (train.replicas x train.rates) train in one process, but there are "
                f"{jax.process_count()}; start a run for each, or set train.replicas=1 and train.rates=()."
            )
        rates = config.train.rates or (config.optimizer.learning_rate,)
        return cls(range(config.seed, config.seed + config.train.replicas), mesh, rates)

    def __len__(self) -> int:
        return len(self._seeds) * len(self._rates)

    @functools.cached_property  # not in the constructor: the number may be far too large
    def seeds(self) -> list[int]:
        """The seed of each replica."""
        return [*self._seeds] * len(self._rates)

    @functools.cached_property
    def rates(self) -> list[float]:
        """The highest learning rate of each replica."""
        return [rate for rate in self._rates for _ in self._seeds]

    def remarks(self) -> list[str]:
        """Writes the header's line about replicas; none for one replica."""
        if not self.front:
            return []
        rates = ", ".join(f"{rate:g}" for rate in self._rates)
        also = f", each with learning rates {rates}" if len(self._rates) > 1 else ""
        return [f"Replicas: {len(self)}, of seeds {self._seeds[0]} to {self._seeds[-1]}{also}"]

    def name(self, replica: int) -> str:
        """Names a replica in a sentence, such as ` of replica 2 (seed 9)`; '' for one replica."""
        if not self.front:
            return ""
        rate = f", learning rate {self.rates[replica]:g}" if len(self._rates) > 1 else ""
        return f" of replica {replica} (seed {self.seeds[replica]}{rate})"

    def split(self, tree: Any, axis: int = 0) -> list[Any]:
        """Splits a tree on the host that is stacked along an axis."""
        if not self.front:
            return [tree]
        return [jax.tree.map(lambda x, r=r: np.take(x, r, axis), tree) for r in range(len(self))]

    def stack(self, trees: Sequence[Any]) -> Any:
        """Stacks all replicas' trees, sharded like a state; `unstack` is its inverse."""
        if not self.front:
            return trees[0]
        return jax.device_put(jax.tree.map(lambda *x: jnp.stack(x), *trees), self.shardings(trees[0]))

    def arguments(self, of_one: Callable[[int], Any]) -> Any:
        """Stacks what a compiled step takes from each replica, such as its key."""
        trees = [of_one(replica) for replica in range(len(self))]
        return jax.tree.map(lambda *x: jnp.stack(x), *trees) if self.front else jax.tree.map(jnp.asarray, trees[0])

    def over(self, function: Callable, *stacked: bool) -> Callable:
        """Maps a function of one replica over all of them; arguments that are not `stacked` are shared."""
        if not self.front:
            return function
        mapped = jax.vmap(function, in_axes=tuple(0 if axis else None for axis in stacked), axis_name=REPLICAS)
        if not self._apart:
            return mapped
        specs = tuple(P("data") if axis else P() for axis in stacked)
        return jax.shard_map(
            mapped, mesh=self.mesh, in_specs=specs, out_specs=P("data"), axis_names={"data"}, check_vma=False
        )

    def shardings(self, one: Any) -> Any:
        """Finds the shardings of all replicas' stacked tree from the shapes of one replica's."""
        alone = sharding.state_shardings(one, self.mesh)
        return jax.tree.map(lambda leaf: NamedSharding(self.mesh, P(*self.front_spec, *leaf.spec)), alone)

    def abstract(self, one: Any) -> Any:
        """Describes the shapes, dtypes and shardings of all replicas' stacked tree from the shapes of one replica's."""
        return jax.tree.map(
            lambda leaf, split: jax.ShapeDtypeStruct((*self.front, *leaf.shape), leaf.dtype, sharding=split),
            one,
            self.shardings(one),
        )

    def one(self, params: Params, replica: int) -> Params:
        """Takes out one replica's parameters, sharded as in a run of one replica."""
        if not self.front:
            return params
        taken = _taken(params, replica)
        return jax.device_put(taken, sharding.state_shardings(taken, self.mesh))

    def unstack(self, params: Params) -> Iterator[Params]:
        """Yields every replica's parameters; see `one`."""
        return (self.one(params, replica) for replica in range(len(self)))

    def to_devices(self, batch: dict[str, np.ndarray], stacked: bool, steps: bool = False) -> Batch:
        """Makes global arrays from this process's part of a batch.

        A `stacked` batch has a part for each replica; others are shared. With `steps`, steps are the leading axis.
        """
        spec = P(*self.front_spec, self.batch_axes) if stacked else P(self.batch_axes)
        return sharding.to_devices(batch, self.mesh, P(None, *spec) if steps else spec)


@jax.jit
def _taken(tree: Any, replica: jax.Array) -> Any:
    return jax.tree.map(lambda x: x[replica], tree)
