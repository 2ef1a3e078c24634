"""Replicas: several seeds of one config in one program, whose arrays are stacked and taken apart here.

With one replica nothing is stacked and nothing is mapped.
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
    """The seeds that are trained together, and the devices that hold each.

    If the mesh has a data axis alone, and it divides the number of replicas, it splits them: every device trains its
    replicas without communication. Otherwise the mesh splits every batch, as it does for one replica.

    Args:
      seeds: The seed of each replica.
      mesh: The devices.

    Attributes:
      front: The leading axis of every stacked array; () for one replica.
      batch_axes: The axes of the mesh that split each replica's batch.
      mean_of: The text after the split's name in a line of means; '' for one replica.
    """

    def __init__(self, seeds: Sequence[int], mesh: Mesh):
        self.seeds, self.mesh = seeds, mesh
        several = len(self) > 1
        # With other axes too, XLA (jaxlib 0.10.2) aborts where a sharded array is indexed inside `shard_map`.
        only = mesh.size > 1 and mesh.shape["data"] == mesh.size
        self._apart = several and only and len(self) % mesh.size == 0
        self.front = (len(self),) if several else ()
        self._front_spec = ("data" if self._apart else None,) * len(self.front)
        self.batch_axes = ("fsdp",) if self._apart else BATCH
        self.mean_of = f", mean of {len(self)}" if several else ""

    @classmethod
    def of(cls, config: Config, mesh: Mesh) -> "Replicas":
        """Returns the replicas of a config: `train.replicas` seeds from `seed` on.

        Raises:
          UsageError: there are several replicas and several processes.
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

    def remarks(self) -> list[str]:
        """Returns the lines about replicas in a run's header; none for one replica."""
        return [f"Replicas: {len(self)}, of seeds {self.seeds[0]} to {self.seeds[-1]}"] if self.front else []

    def name(self, replica: int) -> str:
        """Returns words for a sentence, such as ` of replica 2 (seed 9)`; '' for one replica."""
        return f" of replica {replica} (seed {self.seeds[replica]})" if self.front else ""

    def label(self, replica: int) -> dict[str, int]:
        """Returns the entry that marks a replica's lines in the record; {} for one replica."""
        return {"replica": replica} if self.front else {}

    def split(self, tree: Any) -> list[Any]:
        """Returns each replica's part of a stacked tree on the host."""
        return [jax.tree.map(lambda x, r=r: x[r], tree) for r in range(len(self))] if self.front else [tree]

    def stack(self, trees: Sequence[Any]) -> Any:
        """Stacks the trees of all replicas, sharded as a state is; `unstack` takes them apart."""
        if not self.front:
            return trees[0]
        return jax.device_put(jax.tree.map(lambda *x: jnp.stack(x), *trees), self.shardings(trees[0]))

    def over(self, function: Callable, *stacked: bool) -> Callable:
        """Maps a function of one replica over all replicas.

        Args:
          function: Returns a tree of arrays.
          stacked: Whether each of its arguments is stacked; all replicas share the others.
        """
        if not self.front:
            return function
        mapped = jax.vmap(function, in_axes=tuple(0 if axis else None for axis in stacked), axis_name=REPLICAS)
        if not self._apart:
            return mapped
        specs = tuple(P("data") if axis else P() for axis in stacked)
        return jax.shard_map(
            mapped, mesh=self.mesh, in_specs=specs, out_specs=P("data"), axis_names={"data"}, check_vma=False
        )

    def train_step(
        self, trainer: Trainer, task: Any
    ) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, Any]]]:
        """Returns `Trainer.train_step`, compiled; it reuses the state's memory and keeps the state's sharding."""
        keys = self._keys(step_key)
        step = self.over(trainer.train_step, True, True, True)

        def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
            return step(state, batch, keys)

        shardings = self.shardings(trainer.shapes(task))
        return jax.jit(train_step, donate_argnames="state", out_shardings=(shardings, None))

    def eval_step(self, task: Any) -> Callable[[Params, Batch], Sums]:
        """Returns the compiled function of all replicas' parameters and one batch to sums, without dropout."""
        return jax.jit(self.over(lambda params, batch: task.loss(params, batch, None), True, False))

    def init(self, trainer: Trainer, task: Any) -> TrainState:
        """Returns the state before the first step, created with its sharding."""
        keys, init = self._keys(jax.random.key), self.over(lambda key: trainer.init(task.init(key)), True)
        return jax.jit(lambda: init(keys), out_shardings=self.shardings(trainer.shapes(task)))()

    def start(
        self, trainer: Trainer, task: Any, initial: Callable[[Params], tuple[Params, str]]
    ) -> tuple[TrainState, str]:
        """Returns the first state and a remark on its parameters; see `train.setup.Setup.initial`."""
        state = self.init(trainer, task)
        params, remarks = zip(*map(initial, self.unstack(state.params)), strict=True)
        if remarks[0]:
            init = jax.jit(self.over(trainer.init, True), out_shardings=self.shardings(trainer.shapes(task)))
            state = init(self.stack(params))
        return state, remarks[0]

    def shardings(self, one: Any) -> Any:
        """Returns the shardings of a tree of all replicas, from the shapes of one replica's tree."""
        alone = sharding.state_shardings(one, self.mesh)
        return jax.tree.map(lambda leaf: NamedSharding(self.mesh, P(*self._front_spec, *leaf.spec)), alone)

    def abstract(self, one: Any) -> Any:
        """Returns shapes, dtypes and shardings of a tree of all replicas, from the shapes of one replica's tree."""
        return jax.tree.map(
            lambda leaf, split: jax.ShapeDtypeStruct((*self.front, *leaf.shape), leaf.dtype, sharding=split),
            one,
            self.shardings(one),
        )

    def one(self, params: Params, replica: int) -> Params:
        """Returns one replica's parameters, sharded as a run of that replica alone would have them."""
        if not self.front:
            return params
        taken = _taken(params, replica)
        return jax.device_put(taken, sharding.state_shardings(taken, self.mesh))

    def unstack(self, params: Params) -> Iterator[Params]:
        """Yields every replica's parameters; see `one`."""
        return (self.one(params, replica) for replica in range(len(self)))

    def batches(self, task: Any) -> pipeline.BatchIterator:
        """Returns an iterator of all replicas' batches, stacked."""
        share = jax.process_index(), jax.process_count()
        iterators = [task.train_batches(*share, replica) for replica in range(len(self))]
        return pipeline.stacked(iterators) if self.front else iterators[0]

    def to_devices(self, batch: dict[str, np.ndarray], stacked: bool) -> Batch:
        """Returns a batch as global arrays. A stacked batch has a part for each replica; others are shared by all."""
        return sharding.to_devices(batch, self.mesh, self.batch_spec(stacked))

    def batch_spec(self, stacked: bool) -> P:
        """Returns the sharding of a batch; see `to_devices`."""
        return P(*self._front_spec, self.batch_axes) if stacked else P(self.batch_axes)

    def _keys(self, key_of: Callable[[int], jax.Array]) -> jax.Array:
        keys = [key_of(seed) for seed in self.seeds]
        return jnp.stack(keys) if self.front else keys[0]


@jax.jit
def _taken(tree: Any, replica: jax.Array) -> Any:
    return jax.tree.map(lambda x: x[replica], tree)
