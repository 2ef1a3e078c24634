"""Data resident on a device: whole arrays are put there once, and batches are gathered from them there.

Each step needs a few integers per example, which the host orders; everything else happens on the device. Batches equal
those of `Examples.train_batches` and `Examples.eval_batches` bit for bit, except that `index` has 32 bits.
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
class Resident:
    """Examples on a device, for training or for evaluation; `why_host` says whether they fit."""

    examples: Examples
    training: bool = True

    @functools.cached_property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and types of `arrays`, known without reading all data."""
        return merged(material.shapes() for material in self.examples.materials(self.training))

    @property
    def nbytes(self) -> int:
        """The bytes of `arrays`."""
        return sum(shape.size * shape.dtype.itemsize for shape in self.shapes.values())

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Everything that is put on the device once, the same for all seeds and processes."""
        return merged(material.held() for material in self.examples.materials(self.training))

    def feed(self, *which: int) -> Recipes:
        """Describes a process's part of some batches, (batches, B), in 32-bit integers.

        The arguments are those of `Examples.train_recipes` or `Examples.eval_recipes`.
        """
        recipes = (self.examples.train_recipes if self.training else self.examples.eval_recipes)(*which)
        return {
            name: array.astype(np.uint32 if name in ("high", "low") else np.int32) for name, array in recipes.items()
        }

    def batch(self, arrays: Arrays, recipes: Recipes, seed: jax.Array | None = None) -> Arrays:
        """Makes the batch of one step of a `feed`, (B,); pure, to be compiled, and mapped over recipes and seeds.

        `arrays` are on the device; the seed is the feed's, as uint32. Evaluation has no seed, and gives the weight 0
        where the index is -1.
        """
        materials = self.examples.materials(self.training)

        def example(recipe: Recipe) -> Example:
            raw = merged(material.gather(arrays, recipe) for material in materials)
            return self.examples.make(raw, recipe, seed)

        return jax.vmap(example)(jax.tree.map(jnp.asarray, recipes))


def why_host(examples: Examples, limit: int, training: bool = True) -> str:
    """Says why the host must make a split's batches, in words that follow "because"; '' if a device can.

    The data may take `limit` bytes on the device.
    """
    if reason := examples.why_host(training):
        return reason
    resident = Resident(examples, training)
    if resident.nbytes > limit:
        return f"they take {resident.nbytes:,} bytes, more than the {limit:,} that may be held"
    if any(size > _MOST for shape in resident.shapes.values() for size in shape.shape):
        return f"they have more than {_MOST:,} elements"
    return ""
