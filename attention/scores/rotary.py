"""Rotary positions: queries and keys are turned by their positions, so that products know only differences."""

import dataclasses
import math
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention import specs
from attention.errors import UsageError
from attention.types import Checked, Example, NotNegative, Number, Positive, above, at_most


@dataclasses.dataclass(frozen=True)
class Scaling(Checked):
    """Base of the rules that stretch rotary positions beyond the length of a pretraining.

    Attributes:
      factor: How many times as long sequences become.
    """

    factor: Positive = 1.0

    def rates(self, rates: jax.Array, base: float) -> jax.Array:
        """Scales the angles a position `(W/2,)`, 1 first."""
        return rates

    def gain(self) -> float:
        """Gives the factor of turned queries and keys."""
        return 1.0


@dataclasses.dataclass(frozen=True)
class Linear(Scaling):
    """All angles are divided by the factor: position interpolation (Chen et al. 2023, eq. 4)."""

    def rates(self, rates: jax.Array, base: float) -> jax.Array:
        """See `Scaling`."""
        return rates / self.factor


@dataclasses.dataclass(frozen=True)
class Ntk(Scaling):
    """The base grows so that the slowest angle is divided by the factor and the fastest stays (YaRN, section 3.1)."""

    def rates(self, rates: jax.Array, base: float) -> jax.Array:
        """See `Scaling`."""
        return rates * self.factor ** (-jnp.arange(len(rates)) / max(len(rates) - 1, 1))


@dataclasses.dataclass(frozen=True)
class Yarn(Scaling):
    """Slow angles are divided by the factor, fast ones stay, with a ramp between (Peng et al. 2023, section 3.2, 3.4).

    Attributes:
      original: The length of the pretraining.
      fast: Full turns within it from which on an angle stays.
      slow: Full turns within it up to which an angle is divided.
      exact: Whether the ramp begins and ends between indices of angles, as in GPT-OSS, not at whole ones.
      magnitude: Factor of turned queries and keys; 0 means 0.1 ln(factor) + 1, whose square is the paper's 1/t.
    """

    original: Positive = 4096
    fast: Positive = 32.0
    slow: Positive = 1.0
    exact: bool = False
    magnitude: NotNegative = 0.0

    def __post_init__(self):
        super().__post_init__()
        _check_rises("slow", self.slow, "fast", self.fast)

    def rates(self, rates: jax.Array, base: float) -> jax.Array:
        """See `Scaling`; the ramp is over the index of the angle."""
        width = 2 * len(rates)
        index = lambda turns: width * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))  # noqa: E731
        first, last = index(self.fast), index(self.slow)
        first, last = (first, last) if self.exact else (math.floor(first), math.ceil(last))
        first, last = max(first, 0), min(last, width - 1)
        ramp = jnp.clip((jnp.arange(len(rates)) - first) / max(last - first, 1e-3), 0, 1)
        return rates * (1 - ramp) + rates / self.factor * ramp

    def gain(self) -> float:
        """Gives the magnitude."""
        return self.magnitude or (0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0)


@dataclasses.dataclass(frozen=True)
class Llama3(Scaling):
    """Slow angles are divided by the factor, fast ones stay, with a ramp over turns between (Llama 3.1's weights).

    Attributes:
      original: The length of the pretraining.
      low: Full turns within it up to which an angle is divided.
      high: Full turns within it from which on an angle stays.
    """

    original: Positive = 8192
    low: Positive = 1.0
    high: Positive = 4.0

    def __post_init__(self):
        super().__post_init__()
        _check_rises("low", self.low, "high", self.high)

    def rates(self, rates: jax.Array, base: float) -> jax.Array:
        """See `Scaling`."""
        turns = self.original * rates / (2 * math.pi)
        ramp = jnp.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return rates * ramp + rates / self.factor * (1 - ramp)


def _check_rises(name: str, number: float | int, above: str, greater: float | int) -> None:
    if not number < greater:
        raise UsageError(f"The option {name}={number} of a rotary scaling must be below {above}={greater}.")


SCALINGS = {"none": Scaling, "linear": Linear, "ntk": Ntk, "yarn": Yarn, "llama3": Llama3}


@dataclasses.dataclass(frozen=True)
class Rotary(Checked):
    """Turns each pair (x_i, x_{i+W/2}) by position / base^(2i/W) (Su et al. 2021, eq. 34; halves as in GPT-NeoX).

    Attributes:
      base: The wavelength of the slowest pair is 2π times nearly this many positions.
      fraction: How much of a head turns, W/H: its first numbers; the rest does not know its position.
      scaling: A rule for sequences longer than those of a pretraining: `linear(factor=4)`, `ntk(factor=4)`,
        `yarn(factor=4, original=4096)` or `llama3(factor=8, original=8192)`.
    """

    base: Annotated[Number, above(1)] = 10_000.0
    fraction: Annotated[Positive, at_most(1)] = 1.0
    scaling: Annotated[str, Example("linear(factor=4)")] = "none"

    def __post_init__(self):
        super().__post_init__()
        _ = self.rule

    @property
    def rule(self) -> Scaling:
        """Makes the scaling."""
        return specs.make(self.scaling, SCALINGS, "rotary scaling")

    def turn(self, x: Float[Array, "*B L N H"], first: int | jax.Array) -> Float[Array, "*B L N H"]:
        """Turns queries or keys by their positions, the first of which is at `first`.

        Raises:
          UsageError: the part that turns has an odd width.
        """
        length, _, head = x.shape[-3:]
        width = round(head * self.fraction)
        if width % 2 or not width:
            raise UsageError(
                f"Rotary positions turn pairs of numbers, but {width} of a head's {head} are to turn; choose an even "
                "width."
            )
        scaling = self.rule
        rates = scaling.rates(jnp.exp(-math.log(self.base) * jnp.arange(0, width, 2) / width), self.base)
        angles = (first + jnp.arange(length))[:, None] * rates[None, :]
        angles = jnp.expand_dims(angles, (*range(x.ndim - 3), -2))
        turning, rest = x[..., :width], x[..., width:]
        low, high = jnp.split(turning, 2, axis=-1)
        cos, sin = (scaling.gain() * wave(angles) for wave in (jnp.cos, jnp.sin))  # in float32, so products are too
        turned = jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(x.dtype)
        return jnp.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned
