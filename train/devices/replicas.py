"""Several seeds of one config in one program: what stacks them and what takes them apart again.

One replica is the plain program: nothing is stacked and nothing is mapped.
"""

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
from train.data import pipeline
from train.devices import sharding
from train.state import Params, TrainState
from train.step import Batch, Sums, Trainer, step_key


class Replicas:
    """The seeds that are trained together, and where each lies.

    On a mesh of a data axis alone that divides their number, it splits them, and a device trains its own as it would
    alone: nothing is communicated. Else the mesh splits every batch, as for one.

    Args:
      seeds: Of each replica.
      mesh: The devices.
    """

    def __init__(self, seeds: Sequence[int], mesh: Mesh):
        self.seeds, self.mesh = tuple(seeds), mesh
        # With other axes too, XLA (jaxlib 0.10.2) aborts where a split array is indexed within a split by hand.
        only = mesh.size > 1 and mesh.shape["data"] == mesh.size
        self._apart = len(self) > 1 and only and len(self) % mesh.size == 0

    @classmethod
    def of(cls, config: Config, mesh: Mesh) -> "Replicas":
        """`train.replicas` seeds from `seed` on.

        Raises:
          UsageError: several replicas in several processes.
        """
        count = config.train.replicas
        if count > 1 and jax.process_count() > 1:
            raise UsageError(
                f"train.replicas={count} trains in one process, but there are {jax.process_count()}; "
                "start a run for each seed, or set train.replicas=1."
            )
        return cls(range(config.seed, config.seed + count), mesh)

    def __len__(self) -> int:
        return len(self.seeds)

    @property
    def front(self) -> tuple[int, ...]:
        """Axes of replicas in front of every array; none for one."""
        return (len(self),) if len(self) > 1 else ()

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """Axes of the mesh that split each replica's batch."""
        return ("fsdp",) if self._apart else BATCH

    def name(self, replica: int) -> str:
        """Such as ` of replica 2 (seed 9)`, to go on in a sentence; '' for one."""
        return f" of replica {replica} (seed {self.seeds[replica]})" if len(self) > 1 else ""

    def label(self, replica: int) -> dict[str, int]:
        """What a line of the record says of whose it is; nothing for one."""
        return {"replica": replica} if len(self) > 1 else {}

    def stack(self, values: Sequence[Any]) -> Any:
        """One tree with an axis of replicas in front of every array; the tree itself for one."""
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *values) if len(self) > 1 else values[0]

    def split(self, tree: Any) -> list[Any]:
        """Each replica's part of what lies on the host, stacked."""
        return [jax.tree.map(lambda x, r=r: x[r], tree) for r in range(len(self))] if len(self) > 1 else [tree]

    def together(self, values: list[Any]) -> Any:
        """Plain values of each for a file: the list, but the value itself for one."""
        return values if len(self) > 1 else values[0]

    def listed(self, values: Any) -> list[Any]:
        """What `together` was given."""
        return values if len(self) > 1 else [values]

    def over(self, function: Callable, *stacked: bool) -> Callable:
        """A function of one replica for all of them.

        Args:
          function: Returns a tree of arrays.
          stacked: For each of its arguments, whether every replica has its own, or all share it.
        """
        if len(self) == 1:
            return function
        mapped = jax.vmap(function, in_axes=tuple(0 if own else None for own in stacked), axis_name=REPLICAS)
        if not self._apart:
            return mapped
        specs = tuple(P("data") if own else P() for own in stacked)
        return jax.shard_map(
            mapped, mesh=self.mesh, in_specs=specs, out_specs=P("data"), axis_names={"data"}, check_vma=False
        )

    def train_step(
        self, trainer: Trainer, task: Any
    ) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]:
        """`Trainer.train_step`, compiled; it takes the state's memory, and the next state lies as the one before."""
        keys = self.stack([step_key(seed) for seed in self.seeds])
        step = self.over(trainer.train_step, True, True, True)

        def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
            return step(state, batch, keys)

        shardings = self.shardings(trainer.shapes(task))
        return jax.jit(train_step, donate_argnames="state", out_shardings=(shardings, None))

    def eval_step(self, task: Any) -> Callable[[Params, Batch], Sums]:
        """Sums of all replicas' parameters on one batch, without dropout, compiled."""
        return jax.jit(self.over(lambda params, batch: task.loss(params, batch, None), True, False))

    def init(self, trainer: Trainer, task: Any) -> TrainState:
        """The state before the first step, born where it is to lie."""
        keys = self.stack([jax.random.key(seed) for seed in self.seeds])

        def init(key: jax.Array) -> TrainState:
            return trainer.init(task.init(key))

        return jax.jit(lambda: self.over(init, True)(keys), out_shardings=self.shardings(trainer.shapes(task)))()

    def shardings(self, one: Any) -> Any:
        """Where a tree of all lies, from the shapes of one replica's."""
        alone = sharding.state_shardings(one, self.mesh)
        if len(self) == 1:
            return alone
        axis = "data" if self._apart else None
        return jax.tree.map(lambda own: NamedSharding(self.mesh, P(axis, *own.spec)), alone)

    def abstract(self, one: Any) -> Any:
        """Shapes, dtypes and shardings of a tree of all, from the shapes of one replica's."""

        def of(leaf: jax.ShapeDtypeStruct, own: NamedSharding) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((*self.front, *leaf.shape), leaf.dtype, sharding=own)

        return jax.tree.map(of, one, self.shardings(one))

    def one(self, params: Params, replica: int) -> Params:
        """A replica's parameters, on the mesh as those of a run of its own."""
        if len(self) == 1:
            return params
        own = _taken(params, replica)
        return jax.device_put(own, sharding.state_shardings(own, self.mesh))

    def each(self, params: Params) -> Iterator[Params]:
        """Every replica's, one after the other; see `one`."""
        return (self.one(params, replica) for replica in range(len(self)))

    def chosen(self, which: Sequence[bool], these: Params, others: Params) -> Params:
        """Of some replicas these parameters, of the rest the others."""
        return _chosen(jnp.array(which), these, others) if len(self) > 1 else (these if which[0] else others)

    def batches(self, task: Any) -> pipeline.BatchIterator:
        """Each replica's own batches, stacked."""
        share = jax.process_index(), jax.process_count()
        return pipeline.stacked([task.train_batches(*share, replica) for replica in range(len(self))])

    def to_devices(self, batch: dict[str, np.ndarray], own: bool) -> Batch:
        """A batch as global arrays: of stacked batches where each replica has its own, else one that all share."""
        return sharding.to_devices(batch, self.mesh, self.batch_spec(own))

    def batch_spec(self, own: bool) -> P:
        """How such a batch is split."""
        spec = P(self.batch_axes)
        return P("data" if self._apart else None, *spec) if own and len(self) > 1 else spec


@jax.jit
def _taken(tree: Any, replica: jax.Array) -> Any:
    return jax.tree.map(lambda x: x[replica], tree)


@jax.jit
def _chosen(which: jax.Array, these: Any, others: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(which.reshape(-1, *(1,) * (a.ndim - 1)), a, b), these, others)
