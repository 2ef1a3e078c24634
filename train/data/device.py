"""Data resident on a device: arrays that are put there whole, and batches that are gathered from them there.

What each step takes is a few integers an example, which the host orders; everything else happens on the device. Batches
are those of `Examples.train_batches` and `Examples.eval_batches`, bit for bit, but that `index` has 32 bits.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from train.data.pipeline import Example, Examples, Recipe, Recipes, merged

_MOST = 2**31 - 1  # the greatest index

Arrays = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, eq=False)
class _Resident:
    """The base of data on a device; `why_host` says which examples fit."""

    examples: Examples

    training = True

    @functools.cached_property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and types of `arrays`, for which not all is read."""
        return merged(material.shapes() for material in self.examples.materials(self.training))

    @property
    def nbytes(self) -> int:
        """The bytes of `arrays`."""
        return sum(shape.size * shape.dtype.itemsize for shape in self.shapes.values())

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Everything that is put on the device, once; the same for all seeds and processes."""
        return merged(material.held() for material in self.examples.materials(self.training))

    def batch(self, arrays: Arrays, recipes: Recipes, seed: jax.Array | None = None) -> Arrays:
        """Makes the batch of one step of a `feed`, (B,); pure, to be compiled, and mapped over recipes and seeds.

        `arrays` are on the device; the seed is that of the feed, uint32. Without a seed, in evaluation, weights are 0
        where the index is -1.
        """
        materials = self.examples.materials(self.training)

        def example(recipe: Recipe) -> Example:
            raw = merged(material.gather(arrays, recipe) for material in materials)
            return self.examples.make(raw, recipe, seed)

        return jax.vmap(example)(jax.tree.map(jnp.asarray, recipes))


class Resident(_Resident):
    """Training data on a device."""

    def feed(self, seed: int, first_step: int, count: int, process_index: int = 0, process_count: int = 1) -> Recipes:
        """Describes a process's part of the batches of some steps, in arrays (count, B) of 32-bit integers."""
        return _narrow(self.examples.train_recipes(seed, first_step, count, process_index, process_count))


class ResidentEvaluation(_Resident):
    """The examples of an evaluation on a device."""

    training = False

    def feed(self, process_index: int = 0, process_count: int = 1) -> Recipes:
        """Describes its part of an evaluation, (batches, B) likewise; what only fills a batch has the index -1."""
        return _narrow(self.examples.eval_recipes(process_index, process_count))


def why_host(examples: Examples, limit: int, training: bool = True) -> str:
    """Says why a split's data stay on the host, in words that follow "because"; '' where a device can hold them.

    There they may take `limit` bytes.
    """
    if reason := examples.why_host(training):
        return reason
    resident = (Resident if training else ResidentEvaluation)(examples)
    if resident.nbytes > limit:
        return f"they take {resident.nbytes:,} bytes, more than the {limit:,} that may be held"
    if any(size > _MOST for shape in resident.shapes.values() for size in shape.shape):
        return f"they have more than {_MOST:,} elements"
    return ""


def _narrow(recipes: Recipes) -> Recipes:
    return {name: of.astype(np.uint32 if name in ("high", "low") else np.int32) for name, of in recipes.items()}
