"""Attention mechanisms by name: each row puts together projections, a score and an alignment.

A spec string names a mechanism in a config: `super`, `super(per_head=True)`, `dot_product(value='identity')`,
and one a layer with `|`, the last repeating: `super|dot_product` is Super Attention in the first layer only.
"""

import dataclasses
from typing import Any

from attention.errors import UsageError, unknown
from models import specs

PROJECTIONS = ("linear", "identity")


@dataclasses.dataclass(frozen=True)
class DotProduct:
    """score = q·k · scale.

    Attributes:
      scale: The factor; 0 stands for 1/√H.
    """

    scale: float = 0.0

    def __post_init__(self):
        if not isinstance(self.scale, int | float) or self.scale < 0:
            raise UsageError(f"The scale of dot-product scores must be a number of at least 0, not {self.scale!r}.")


@dataclasses.dataclass(frozen=True)
class Align:
    """W^A V over tokens, before the weights are applied (004, Definition 4).

    Attributes:
      per_head: One W^A for each head, as 004 §3.3 suggests, in place of one for all.
    """

    per_head: bool = False

    def __post_init__(self):
        if not isinstance(self.per_head, bool):
            raise UsageError(f"The option per_head must be True or False, not {self.per_head!r}.")


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """One attention, as four pieces.

    Attributes:
      name: The row it comes from.
      source: Where its equation stands.
      query: Projection of the queries, `linear` or `identity` (head n reads columns n·H … (n+1)·H).
      key: Projection of the keys.
      value: Projection of the values.
      out: Projection of the concatenated heads.
      score: How a query and a key are compared.
      align: W^A on the token axis, or none.
    """

    name: str
    source: str
    query: str = "linear"
    key: str = "linear"
    value: str = "linear"
    out: str = "linear"
    score: DotProduct = DotProduct()
    align: Align | None = None

    def __post_init__(self):
        for piece in ("query", "key", "value", "out"):
            if getattr(self, piece) not in PROJECTIONS:
                raise unknown(f"{piece} projection", getattr(self, piece), PROJECTIONS)


MECHANISMS = {
    row.name: row
    for row in (
        Mechanism("dot_product", "Vaswani et al. 2017, eq. 1"),
        Mechanism("optimised", "004 Definition 2", value="identity"),
        Mechanism("efficient", "004 Definition 3", key="identity", value="identity"),
        Mechanism("super", "004 Definition 4", key="identity", value="identity", align=Align()),
    )
}


def resolve(spec: str, depth: int) -> tuple[Mechanism, ...]:
    """The mechanism of each of `depth` layers.

    Args:
      spec: A spec string, such as `super` or `super|dot_product`; the last item repeats.
      depth: Number of layers.

    Returns:
      One mechanism a layer.

    Raises:
      UsageError: unknown names or options, or more items than layers.
    """
    items = [_build(call) for call in specs.parse(spec)]
    if not items:
        raise UsageError(f"An attention mechanism is needed; choose from {', '.join(MECHANISMS)}.")
    if len(items) > depth:
        raise UsageError(f"{spec!r} names {len(items)} layers, but the model has {depth}; name at most {depth}.")
    return tuple(items[min(layer, len(items) - 1)] for layer in range(depth))


def _build(call: specs.Call) -> Mechanism:
    if call.name not in MECHANISMS:
        raise unknown("attention mechanism", call.name, MECHANISMS)
    preset = MECHANISMS[call.name]
    homes = {option: home for home in _homes(preset) for option in _options(home)}
    for option in call.options:
        if option not in homes:
            raise unknown(f"option of {call.name}", option, homes)
    return _with_options(preset, call.options)


def _homes(mechanism: Mechanism) -> list[Any]:
    """The dataclasses whose fields are options of a mechanism."""
    return [home for home in (mechanism, mechanism.score, mechanism.align) if home is not None]


def _options(home: Any) -> list[str]:
    """A mechanism's own options are its projections; a piece's are all its fields."""
    fields = [field.name for field in dataclasses.fields(home)]
    return (
        [name for name in fields if name in ("query", "key", "value", "out")] if isinstance(home, Mechanism) else fields
    )


def _with_options(mechanism: Mechanism, options: dict[str, Any]) -> Mechanism:
    def replaced(home: Any) -> Any:
        return dataclasses.replace(home, **{name: options[name] for name in _options(home) if name in options})

    pieces = {name: getattr(mechanism, name) for name in ("score", "align")}
    rebuilt = {name: replaced(piece) for name, piece in pieces.items() if piece is not None}
    return dataclasses.replace(replaced(mechanism), **rebuilt)
