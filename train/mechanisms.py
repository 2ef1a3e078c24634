"""Print the pieces, parameters, operations and decode caches of attention mechanisms, one line for each.

python -m train.mechanisms --width=128 --heads=4 --length=64
python -m train.mechanisms "neural(dim=16)" "super(per_head=True)"
"""

import argparse
import functools
import itertools
import sys
import textwrap
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from attention import Mask
from models.layers.multi_head import MultiHeadAttention
from models.mechanisms import ALIASES, MECHANISMS, Mechanism, resolve
from train import cli
from train.state import count_parameters


@cli.program(
    __doc__,
    cli.flag("specs", nargs="*", help="spec strings such as 'neural(dim=16)'; default all rows"),
    cli.flag("--width", type=cli.count, default=256, help="width of the model, D"),
    cli.flag("--heads", type=cli.count, default=8, help="number of heads of each layer, N"),
    cli.flag("--length", type=cli.count, default=257, help="number of tokens in a sequence"),
)
def main(flags: argparse.Namespace) -> None:
    """Prints the tables of the mechanisms."""
    specs = flags.specs or list(MECHANISMS)
    print(table(specs, flags.width, flags.heads, flags.length))
    caches = [("name", "cache in bfloat16: bytes a token", "bytes a sequence")]
    caches += [(spec, *(f"{held:,}" for held in cache_bytes(spec, flags.width, flags.heads))) for spec in specs]
    print("\n" + _aligned(caches))


def cache_bytes(spec: str, width: int, heads: int) -> tuple[int, int]:
    """Counts the bytes of a layer's decode cache in bfloat16: for each token, and for a sequence of any length."""
    layer = MultiHeadAttention(spec, heads, length=2, dtype=jnp.bfloat16)
    caches = (layer.init_cache(1, tokens, width) for tokens in (1, 2))
    # Without the length, a scalar.
    one, two = (sum(x.nbytes for x in jax.tree.leaves(cache) if x.ndim) for cache in caches)
    return two - one, 2 * one - two


def table(specs: list[str], width: int, heads: int, length: int) -> str:
    """Lists each spec's pieces, then its number of parameters and the operations of one sequence's forward pass."""
    mechanisms = {spec: resolve(spec, 1)[0] for spec in specs}
    pieces, costs = [("name", "query, key, value, out", "score")], [("name", "parameters", "MFLOP", "source")]
    for spec, mechanism in mechanisms.items():
        pieces.append((spec, projections(mechanism), _score(spec, mechanism)))
        parameters, cost = layer_parameters(mechanism, width, heads, length), mechanism.cost(length, width, heads)
        costs.append((spec, f"{parameters:,}", f"{cost.flops / 1e6:,.1f}", mechanism.source))
    aliases = ", ".join(f"{alias} is {name}" for alias, name in ALIASES.items())
    head = f"Attention layers of width {width} with {heads} heads on {length} tokens; {aliases}."
    return "\n\n".join([textwrap.fill(head, 80), _aligned(pieces), _aligned(costs)])


def projections(mechanism: Mechanism) -> str:
    """Lists the projections in order, and counts equal neighbours: `linear, 2 mlp, linear`."""
    pieces = (mechanism.query, mechanism.key, mechanism.value, mechanism.out)
    counted = [(name, len(list(same))) for name, same in itertools.groupby(pieces)]
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counted)


def _score(spec: str, mechanism: Mechanism) -> str:
    """Names the score, its normaliser unless it is softmax or the spec's name, and the alignment and gate if any."""
    name = mechanism.score.normaliser.partition("(")[0]
    normaliser = "" if name in ("softmax", spec) else f", {name}"
    align = "" if mechanism.align is None else ", A a head" if mechanism.align.per_head else ", A"
    gate = {"": "", "elementwise": ", gate", "head": ", gate a head"}[mechanism.output_gate]
    return f"{type(mechanism.score).__name__}{normaliser}{align}{gate}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def layer_parameters(mechanism: Mechanism, width: int, heads: int, length: int) -> int:
    """Counts the parameters of one attention layer."""
    init = functools.partial(MultiHeadAttention(mechanism, heads, length).init, mask=Mask(causal=True))
    return count_parameters(jax.eval_shape(init, jax.random.key(0), jnp.zeros((1, length, width))))


if __name__ == "__main__":
    sys.exit(main())
