"""The table of `python -m models.mechanisms`: pieces, parameters and operations of every mechanism."""

import argparse
import sys

import jax
import jax.numpy as jnp

from attention import Mask
from attention.errors import UsageError
from models import flops
from models.layers import MultiHeadAttention
from models.mechanisms import ALIASES, MECHANISMS, Mechanism, resolve

HEADINGS = ("name", "query", "key", "value", "out", "score", "normaliser", "A", "parameters", "MFLOP", "source")


def main() -> None:
    """Prints it; the flags are the sizes, and specs to print in place of all rows."""
    parser = argparse.ArgumentParser(prog="python -m models.mechanisms", description=__doc__.splitlines()[0])
    parser.add_argument("specs", nargs="*", help="spec strings such as 'neural(dim=16)'; all rows without any")
    parser.add_argument("--width", type=int, default=256, help="D, the width of the model")
    parser.add_argument("--heads", type=int, default=8, help="N")
    parser.add_argument("--length", type=int, default=257, help="the tokens of a sequence")
    arguments = parser.parse_args()
    try:
        print(table(arguments.specs or list(MECHANISMS), arguments.width, arguments.heads, arguments.length))
    except UsageError as error:
        sys.exit(f"Error: {error}")


def table(specs: list[str], width: int, heads: int, length: int) -> str:
    """A line for each spec: its pieces, exact parameters and operations of one forward pass of one sequence.

    Raises:
      UsageError: an unknown mechanism, or sizes that are not above 0 or do not fit together.
    """
    if min(width, heads, length) < 1:
        raise UsageError(f"Sizes must be at least 1, but width={width}, heads={heads}, length={length}.")
    lines = [HEADINGS, *(_cells(spec, resolve(spec, 1)[0], width, heads, length) for spec in specs)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    text = "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    aliases = ", ".join(f"{alias} is {name}" for alias, name in ALIASES.items())
    return f"Attention layers of width {width} with {heads} heads on {length} tokens; {aliases}.\n\n{text}"


def _cells(spec: str, mechanism: Mechanism, width: int, heads: int, length: int) -> tuple[str, ...]:
    pieces = (mechanism.query, mechanism.key, mechanism.value, mechanism.out)
    align = "" if mechanism.align is None else "per head" if mechanism.align.per_head else "shared"
    return (
        spec,
        *pieces,
        type(mechanism.score).__name__,
        mechanism.score.normaliser,
        align,
        f"{layer_parameters(mechanism, width, heads, length):,}",
        f"{flops.attention_layer(mechanism, length, width, heads).flops / 1e6:,.1f}",
        mechanism.source,
    )


def layer_parameters(mechanism: Mechanism, width: int, heads: int, length: int) -> int:
    """Exact, of one attention layer."""
    layer = MultiHeadAttention(mechanism, heads, length)
    init = lambda key, x: layer.init(key, x, mask=Mask(causal=True))  # noqa: E731
    return flops.parameters(jax.eval_shape(init, jax.random.key(0), jnp.zeros((1, length, width))))
