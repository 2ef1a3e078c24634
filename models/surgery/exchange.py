"""The exchange of attention layers in a model with weights: which they are, how they start, which weights they keep."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np

from attention import specs
from attention.errors import UsageError
from attention.types import Checked, Count, Positive
from models.fields import declared
from models.transformer import TransformerConfig

KEEP = "keep"
Numbers = jax.Array | np.ndarray

_GROUPED = re.compile(r"(key|value)/(kernel|bias)$")  # linear projections to K heads, the axis before the last


@dataclasses.dataclass(frozen=True)
class Fresh:
    """New parameters have the initial values of any model."""


@dataclasses.dataclass(frozen=True)
class Like:
    """New parameters let the layer compute what it did before, where that is possible; see `models.surgery.like`."""


@dataclasses.dataclass(frozen=True)
class Distilled(Checked):
    """After `Like`, exchanged layers learn the outputs of the layers that they replace, on the training data.

    Attributes:
      steps: Number of batches.
      learning_rate: Adam's learning rate, which falls to 0 as a cosine.
    """

    steps: Count = 300
    learning_rate: Positive = 1e-3


STARTS: dict[str, type] = {"fresh": Fresh, "like": Like, "distilled": Distilled}


@functools.cache
def parse(text: str, field: str = "train.exchanged") -> Fresh | Like | Distilled:
    """Reads the start that a spec string names, such as `distilled(steps=100)`; raises UsageError if it names none."""
    return specs.make(text, STARTS, f"start in {field}")


def keeps(spec: str) -> bool:
    """Tells whether a spec string has a `keep`: a layer with the mechanism of the model whose weights are loaded."""
    return KEEP in spec and KEEP in map(str, specs.pattern(spec).items)


def kept(spec: str, source: str, depth: int) -> str:
    """Replaces each `keep` of a spec string by the mechanism of the same layer in another.

    Args:
      spec: A spec string, such as `neural|keep`.
      source: The spec string of the model whose weights are loaded.
      depth: Number of layers.

    Raises:
      UsageError: one of them has more items than layers.
    """
    ours, theirs = (specs.one_each(text, str, "layer", depth) for text in (spec, source))
    return specs.joined([old if new == KEEP else new for new, old in zip(ours, theirs, strict=True)])


def exchanged(config: TransformerConfig, source: TransformerConfig) -> tuple[str, ...]:
    """Lists the paths of the attention layers whose mechanism differs from that of the source's layer."""
    theirs = source.by_path()
    return tuple(path for path, mechanism in config.by_path().items() if theirs.get(path, mechanism) != mechanism)


def same_but_mechanisms(config: TransformerConfig, source: TransformerConfig) -> TransformerConfig:
    """Replaces the mechanisms of a model's config by those of another, and compiles it plainly.

    Raises:
      UsageError: they are of different kinds, or their layers have different sizes.
    """
    if not isinstance(config, TransformerConfig):
        raise UsageError("train.exchanged is for Transformers; leave it fresh.")
    sizes = {field.name for field in dataclasses.fields(config)} - {*config.STACKS}
    sizes -= {name for name, leaf in declared(type(config)).items() if leaf.may_change or "dropout" in name}
    sizes -= {"pretrained"}
    differ = "model.name" if type(source) is not type(config) else ""
    differ = differ or next((f"model.{n}" for n in sorted(sizes) if getattr(source, n) != getattr(config, n)), "")
    if differ:
        raise UsageError(
            f"{differ} differs from the model whose weights are loaded, so train.exchanged cannot compare layers; "
            "set it to the same, or train.exchanged=fresh."
        )
    specs_there = {spec: getattr(source, spec) for spec in config.STACKS}
    return dataclasses.replace(config, **specs_there, implementation="auto", scan=False, remat="none")


def regroups(path: str, there: tuple[int, ...], here: tuple[int, ...]) -> bool:
    """Tells whether `regrouped` can turn an array of one shape into one of another."""
    if not _GROUPED.search(path) or len(there) != len(here) or len(here) < 2:
        return False
    same = (*there[:-2], there[-1]) == (*here[:-2], here[-1])
    return same and there != here and not max(there[-2], here[-2]) % min(there[-2], here[-2])


def regrouped(array: Numbers, heads: int) -> Numbers:
    """Changes a projection's number of key and value heads.

    More heads are copies, which leave the layer's function as it is; fewer are averages (Ainslie et al. 2023, section
    2.1).

    Args:
      array: A kernel `(D, K, H)` or a bias `(K, H)`.
      heads: The new K, a divisor or a multiple of the old one.
    """
    there = array.shape[-2]
    if heads >= there:
        return jnp.repeat(array, heads // there, axis=-2)
    return array.reshape(*array.shape[:-2], heads, there // heads, array.shape[-1]).mean(axis=-2)
