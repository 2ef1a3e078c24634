"""Low-rank adaptation (LoRA; Hu et al. 2021, arXiv:2106.09685): a kernel W becomes W + α/r · A B, and A and B learn.

A and B are parameters beside the kernel, `lora_a` and `lora_b`. Models do not know them: `merged` adds them to W first.
"""

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from attention import specs
from attention.errors import UsageError
from attention.types import Checked, Count, Pattern, Positive

FIELD = "optimizer.lora"
NAMES = ("lora_a", "lora_b")
Tree = Any


@dataclasses.dataclass(frozen=True)
class Lora(Checked):
    """Which kernels are adapted, and how.

    Attributes:
      rank: r.
      alpha: α.
      on: A regular expression; the kernels of dense layers whose path matches are adapted.
      also: A regular expression; further parameters whose path matches are trained whole, such as an exchanged layer's.
    """

    rank: Count = 8
    alpha: Positive = 16.0
    on: Pattern = "attention/(query|value)/kernel"
    also: Pattern = ""

    @property
    def frozen(self) -> str:
        """A regular expression that matches the paths of all parameters that are not trained."""
        trained = "|".join(filter(None, [f"/({'|'.join(NAMES)})$", self.also]))
        return f"^(?!.*({trained}))"

    def added(self, params: Tree, key: jax.Array) -> Tree:
        """Adds A, normal with variance 1/inputs, and B, which is zero, beside each adapted kernel.

        Raises:
          UsageError: no kernel is adapted.
        """
        flat = flatten_dict(params, sep="/")
        chosen = [path for path in flat if _dense(path, flat[path]) and re.search(self.on, path)]
        if not chosen:
            kernels = [path for path in flat if _dense(path, flat[path])]
            raise UsageError(f"{FIELD} has on={self.on!r}, which matches none of the kernels, such as {kernels[:5]}.")
        for path, its_key in zip(chosen, jax.random.split(key, len(chosen)), strict=True):
            shape, split = flat[path].shape, _inputs(path, flat[path])
            deviation = math.prod(shape[:split]) ** -0.5
            flat[_beside(path, "lora_a")] = deviation * jax.random.normal(its_key, (*shape[:split], self.rank))
            flat[_beside(path, "lora_b")] = jnp.zeros((self.rank, *shape[split:]))
        return unflatten_dict(flat, sep="/")

    def merged(self, params: Tree) -> Tree:
        """Computes the model's own parameters, with W + α/r · A B for each adapted kernel W."""
        flat = flatten_dict(params, sep="/")
        for path in [path for path in flat if _beside(path, "lora_a") in flat]:
            a, b = (flat.pop(_beside(path, name)) for name in NAMES)
            flat[path] = flat[path] + self.alpha / self.rank * jnp.tensordot(a, b, 1).astype(flat[path].dtype)
        return unflatten_dict(flat, sep="/")


@functools.cache
def parse(text: str, field: str = FIELD) -> Lora | None:
    """Reads a spec string such as `lora(rank=4)`, None for ''; raises UsageError if it names no adaptation."""
    return specs.make(text, {"lora": Lora}, f"adaptation in {field}") if text else None


def is_addition(path: str) -> bool:
    """Tells whether a path is that of A or B."""
    return path.endswith(tuple(f"/{name}" for name in NAMES))


def split(params: Tree) -> tuple[Tree, Tree]:
    """Separates the model's own parameters from the additions."""
    flat = flatten_dict(params, sep="/")
    additions = {path: flat.pop(path) for path in [*flat] if is_addition(path)}
    return unflatten_dict(flat, sep="/"), unflatten_dict(additions, sep="/")


def join(params: Tree, additions: Tree) -> Tree:
    """Undoes `split`."""
    return unflatten_dict(flatten_dict(params, sep="/") | flatten_dict(additions, sep="/"), sep="/")


def _beside(path: str, name: str) -> str:
    return f"{path.removesuffix('kernel')}{name}"


def _dense(path: str, array: jax.Array) -> bool:
    return path.endswith("/kernel") and array.ndim in (2, 3)


def _inputs(path: str, array: jax.Array) -> int:
    """Counts a kernel's input axes: two where a projection takes heads."""
    return 2 if array.ndim == 3 and "/out/" in path else 1
