"""The table of attention mechanisms: each row combines projections, a score with its normaliser, and an alignment.

A spec string names a mechanism in a config: `super`, `neural(dim=16)`, `neural(query='mlp', align=True)`. `|`
separates layers, and the last item repeats: `neural|dot_product` is Neural Attention in the first layer only. Counts
and cycles write hybrids: `kimi_delta*3|dot_product`, `cycle(kimi_delta*3|dot_product)`; see `attention.specs`.
`my.py:Mine` is a score, a recurrence or a row in a file of yours; see `attention.defining.files`.

This prints the table:

    python -m train.mechanisms --width=256 --heads=8 --length=257
"""

import dataclasses
import inspect
import keyword
import math
from typing import Annotated, Any

from attention import operations, specs
from attention.defining import files
from attention.defining.definition import check_definition, check_kind
from attention.defining.table import ALIASES, SCORES
from attention.errors import UsageError, check_known, unknown
from attention.operations import Cost
from attention.parameters import Sizes
from attention.recurrences.recurrence import Recurrence
from attention.score import Mixer, Score
from attention.scores.dot import DotProduct
from attention.types import Checked, Names, Sentinel, Size

# Projections of x (…, D) to heads (…, N, H). `mlp` is W2 ReLU(LN(W1 x + b1)) + b2 with 2D hidden units (Zhang).
ANY = ("linear", "identity", "mlp", "mlp_without_norm", "mlp_without_relu")
PROJECTIONS = {
    "query": (*ANY, "none"),
    "key": (*ANY, "shared", "none"),
    "value": (*ANY, "tied"),
    "out": ANY,
}
OPTIONS = ("kv_heads", "latent", "latent_norm", "query_latent", "rotary", "window", "output_gate")  # 0 or '' is off
ROW_OPTIONS = (*PROJECTIONS, "align", *OPTIONS)  # what spec strings may say beside the score's options
OUTPUT_GATES = ("elementwise", "head")
# Options that need projections of their own.
PROJECTED = {"kv_heads": ("key", "value"), "latent": ("key", "value"), "query_latent": ("query",), "rotary": ("query",)}


def _fields(piece: Any) -> list[str]:
    return [] if piece is None else [field.name for field in dataclasses.fields(piece)]


@dataclasses.dataclass(frozen=True)
class Align(Checked):
    """The alignment W^A V, which mixes values over tokens before attention weighs them (Hosseini, Definition 4).

    Attributes:
      per_head: Whether each head has its own W^A, as Hosseini §3.3 suggests; if not, all heads share one.
    """

    per_head: bool = False


@dataclasses.dataclass(frozen=True)
class Mechanism(Checked):
    """An attention mechanism of four pieces: projections, a score, the score's normaliser, and an alignment.

    Attributes:
      name: Its name in spec strings.
      source: The publication and the equation that define it.
      query: Projection of the queries: `linear`; `identity` (head n reads columns n·H … (n+1)·H); `mlp`
        (W2 ReLU(LN(W1 x + b1)) + b2), `mlp_without_norm`, `mlp_without_relu`; or `none` if the score reads no queries.
      key: Projection of the keys, or `shared`, the queries' projection with the same weights.
      value: Projection of the values, or `tied`: the prepared keys are the values.
      out: Projection of the concatenated heads.
      score: How queries are compared with keys, and how scores become weights.
      align: The alignment over tokens, or None.
      kv_heads: K, the number of key and value heads, which divides N (grouped-query attention, Ainslie et al. 2023;
        1 is multi-query attention, Shazeer 2019); 0 means N.
      latent: Width of one projection of the source from which keys and values are projected (DeepSeek-V2, 2405.04434,
        eq. 9 to 11), and which a decode cache holds in their place; 0 means none.
      latent_norm: Whether latents are divided by their root mean square and multiplied by learned weights, as in
        DeepSeek-V2's weights.
      query_latent: Width of one projection of the layer's inputs from which queries are projected (eq. 12 and 13); 0
        means none.
      rotary: Width of the part of each query that turns with its position, and of one further key that all heads share
        and a cache holds beside the latent (eq. 14 to 18); the rest does not turn. 0 means none.
      window: A query sees only keys less than this many positions away; 0 means no limit.
      output_gate: The heads' outputs are multiplied by σ(W x + b) of the query's token x before the projection `out`,
        one number for each head and column (`elementwise`) or for each `head` (Qiu et al. 2025, 2505.06708, G1); ''
        means no gate.
    """

    name: str
    source: str
    query: Annotated[str, Names(PROJECTIONS["query"])] = "linear"
    key: Annotated[str, Names(PROJECTIONS["key"])] = "linear"
    value: Annotated[str, Names(PROJECTIONS["value"])] = "linear"
    out: Annotated[str, Names(PROJECTIONS["out"])] = "linear"
    score: Mixer = dataclasses.field(default_factory=DotProduct)
    align: Align | None = None
    kv_heads: Size = 0
    latent: Size = 0
    latent_norm: bool = False
    query_latent: Size = 0
    rotary: Size = 0
    window: Size = 0
    output_gate: Annotated[str, Names(OUTPUT_GATES), Sentinel("", "none")] = ""

    def __post_init__(self):
        check_kind(self.score)
        super().__post_init__()
        kind = type(self.score)
        options = set(_fields(self.score))
        if taken := sorted({*ROW_OPTIONS} & options):
            raise UsageError(f"The score {kind.__name__} cannot have an option {taken[0]}: rows have it.")
        bases = [base for base in (Mixer, Score, Recurrence) if isinstance(self.score, base)]
        inherited = {name for base in bases for name in dir(base)} - {"normaliser"}
        if taken := sorted(inherited & options):
            has = bases[-1].__name__
            raise UsageError(f"The score {kind.__name__} cannot have an option {taken[0]}: {has} has it already.")
        traits = self.score.traits
        for piece, read in {"query": traits.reads_query, "key": traits.reads_key}.items():
            if (getattr(self, piece) == "none") == read:
                what = "needs a" if read else "reads no"
                raise UsageError(
                    f"The score of {self.name} {what} {piece}, so {piece}={getattr(self, piece)!r} is impossible."
                )
        if self.key == "shared" and self.query == "none":
            raise UsageError(f"{self.name} projects no queries, so key='shared' is impossible.")
        if self.value == "tied" and not (traits.ties_values and traits.reads_key):
            raise UsageError(f"The score of {self.name} keeps no keys as values, so value='tied' is impossible.")
        if self.latent and traits.reads_source:
            raise UsageError(f"The keys of {self.name} need the layer's inputs, so it takes no latent={self.latent}.")
        if self.latent_norm and not (self.latent or self.query_latent):
            raise UsageError(f"{self.name} has no latent to norm; give latent or query_latent too.")
        for option in (option for option in PROJECTED if getattr(self, option)):
            self._check_projected(option)
        if self.rotary and not self.latent:
            raise UsageError(f"rotary={self.rotary} is the part that turns beside a latent; give latent too.")
        pairs = isinstance(self.score, Score) and not getattr(self.score, "qk_norm", "")
        if self.rotary and (self.value == "tied" or not pairs):
            raise UsageError(
                f"{self.name} takes no rotary={self.rotary}, which is for scores of pairs without qk_norm, and values "
                "that are not the keys."
            )

    @property
    def cross(self) -> bool:
        """Whether it supports cross-attention, which cannot compare the positions of queries and keys."""
        return self.score.traits.cross and not (self.window or self.rotary)

    def gates(self, head: int) -> int:
        """Counts the outputs of a head's gate, for heads of width H."""
        return {"": 0, "head": 1, "elementwise": head}[self.output_gate]

    def _check_projected(self, option: str) -> None:
        """Raises UsageError unless each piece that an option changes is a projection of its own."""
        pieces = PROJECTED[option]
        whole = {"identity", "shared", "none"} & {getattr(self, piece) for piece in pieces}
        if whole or (self.align is not None and "value" in pieces):
            why = f"a projection {min(whole)!r}" if whole else "an alignment"
            raise UsageError(
                f"{self.name} has {why}, which makes all heads, so it takes no {option}={getattr(self, option)}."
            )

    def cost(self, length: int, width: int, heads: int, keys: int | None = None, head: int = 0) -> Cost:
        """Counts the cost of one forward pass of an attention layer over one sequence, with its projections.

        Args:
          length: T.
          width: D.
          heads: N.
          keys: S, for cross-attention; T by default.
          head: H; D/N by default.
        """
        keys, head = length if keys is None else keys, head or width // heads
        wide = head + self.rotary
        cost = self.score.cost(Sizes(width, heads, wide, max(length, keys)), length, keys)
        cost += operations.weighted(length, keys, heads, self.rotary) * -1  # values are H wide
        key = self.query if self.key == "shared" else self.key
        inner, of_query, few = self.latent or width, self.query_latent or width, self.kv_heads or heads
        of_keys = math.prod(self.score.widths(heads, few, head)["key"])
        of_queries = math.prod(self.score.widths(heads, few, wide)["query"])
        for tokens, outputs in ((keys, self.latent), (keys, self.rotary), (length, self.query_latent)):
            cost += operations.linear(tokens, width, outputs) * bool(outputs)
        pieces = (key, keys, inner, of_keys), (self.value, keys, inner, head * few)
        pieces = (self.query, length, of_query, of_queries), *pieces, (self.out, length, head * heads, width)
        for kind, tokens, inputs, outputs in pieces:
            cost += _projection_cost(kind, tokens, inputs, outputs)
        if gates := heads * self.gates(head):
            cost += operations.linear(length, width, gates) + Cost(pointwise=length * (gates + heads * head))
        return cost + operations.align(keys, heads, head) * (self.align is not None)


def _projection_cost(kind: str, tokens: int, width: int, outputs: int) -> Cost:
    if kind == "linear":
        return operations.linear(tokens, width, outputs)
    return operations.mlp(tokens, width, 2 * width, outputs) if kind.startswith("mlp") else Cost()


def _row(name: str, source: str, score: Mixer, **pieces: Any) -> Mechanism:
    """Makes a row with linear projections of what the score reads."""
    read = {"query": score.traits.reads_query, "key": score.traits.reads_key}
    pieces |= {piece: "none" for piece, reads in read.items() if not reads}
    return Mechanism(name, source, score=score, **pieces)


QKV = ("query", "key", "value")
MECHANISMS = {
    row.name: row
    for row in (
        Mechanism("dot_product", SCORES["dot_product"].source),
        Mechanism("optimised", "Hosseini Definition 2", value="identity"),
        Mechanism("efficient", "Hosseini Definition 3", key="identity", value="identity"),
        Mechanism("super", "Hosseini Definition 4", key="identity", value="identity", align=Align()),
        Mechanism("mlp_qkv", "Zhang §3.2", **dict.fromkeys(QKV, "mlp")),
        Mechanism("mlp_kv", "Zhang §4.4", key="mlp", value="mlp"),
        Mechanism("dual_linear", "Zhang §4.4, DLP", key="mlp_without_relu", value="mlp_without_relu"),
        Mechanism("mlp_marian", "Zhang, Marian code", query="mlp", key="mlp", out="mlp"),
        Mechanism("mlp_roberta", "Zhang, RoBERTa code", **dict.fromkeys(QKV, "mlp_without_norm")),
        Mechanism(
            "decomposable", "Parikh et al. 2016; Wikipedia", "mlp_without_norm", "shared", score=DotProduct(scale=1.0)
        ),
        Mechanism("gated", "Qiu et al. 2025, G1", output_gate="elementwise"),
    )
}
MECHANISMS |= {
    name: _row(name, row.source, row.score, value="tied" if name == "gaussian" else "linear")
    for name, row in SCORES.items()
    if name not in ("dot_product", "location")  # the latter is only in `models.seq2seq`, with one head
}
BUILT_IN = frozenset({*MECHANISMS, *ALIASES})


def register(row: Mechanism) -> None:
    """Adds a mechanism that spec strings of this process can name, such as a notebook's.

    It replaces an earlier registration of the same name, so that a cell can run again.

    Raises:
      UsageError: it is not a Mechanism, or its name is in `BUILT_IN` or cannot be in a spec string.
    """
    if not isinstance(row, Mechanism):
        raise UsageError(f"register takes a Mechanism, not {row!r}; write Mechanism('name', 'source').")
    if row.name in BUILT_IN:
        raise UsageError(f"There is an attention mechanism {row.name!r} already; choose another name.")
    if not row.name.isidentifier() or keyword.iskeyword(row.name) or row.name == specs.CYCLE:
        raise UsageError(f"{row.name!r} cannot stand in a spec string; choose a name such as 'my_attention'.")
    check_definition(row.score)
    MECHANISMS[row.name] = row


def resolve(spec: Any, depth: int) -> tuple[Mechanism, ...]:
    """Reads the mechanism of each of `depth` layers from a spec string, such as `super` or `super|dot_product`.

    A score or a recurrence, its class, or a Mechanism stands for itself in every layer.

    Raises:
      UsageError: a name or option is unknown, there are more items than layers, a cycle does not fit them, or the spec
        is of another type.
    """
    if not isinstance(spec, str):
        return (_as_mechanism(type(spec).__name__, spec),) * depth
    if not spec.strip():
        raise UsageError(f"An attention mechanism is needed; choose from {', '.join(MECHANISMS)}.")
    return specs.one_each(spec, _build, "layer", depth)


def _build(call: specs.SpecItem) -> Mechanism:
    preset, options = _preset(call.name), dict(call.options)
    valid = [*ROW_OPTIONS, *_fields(preset.score), *_fields(preset.align)]
    for option in options:
        check_known(f"option of {call.name}", option, valid)
    score = {key: options.pop(key) for key in _fields(preset.score) if key in options}
    fields = {key: options.pop(key) for key in (*PROJECTIONS, *OPTIONS) if key in options}
    align = _align(preset.align, options.pop("align", preset.align is not None), options)
    built = dataclasses.replace(preset, score=dataclasses.replace(preset.score, **score), align=align, **fields)
    check_definition(built.score)
    return built


def _preset(name: str) -> Mechanism:
    """Finds a row by its name, or makes one from an object in a file, named as `my.py:Mine`."""
    if files.is_of_file(name):
        return dataclasses.replace(_as_mechanism(name, files.load(name)), name=name)
    known = ALIASES.get(name, name)
    if known not in MECHANISMS:
        raise unknown("attention mechanism", name, [*MECHANISMS, *ALIASES])
    return MECHANISMS[known]


def _as_mechanism(name: str, found: Any) -> Mechanism:
    """Makes the row of a score, a recurrence or the class of one; returns a Mechanism as it is."""
    if isinstance(found, Mechanism):
        return found
    if not isinstance(found, Mixer) and not (isinstance(found, type) and issubclass(found, Mixer)):
        if inspect.isfunction(found):
            raise UsageError(f"{found.__name__} is a plain function; write @attention.pair above its definition.")
        raise UsageError(f"A layer needs a string such as 'neural(dim=2)', a score or a Mechanism, not {found!r}.")
    score = found() if isinstance(found, type) else found
    check_definition(score)
    return _row(name, name, score)


def _align(preset: Align | None, requested: Any, options: dict[str, Any]) -> Align | None:
    """Makes the alignment from the options that no other piece has taken."""
    if not (isinstance(requested, bool) or requested == "per_head"):
        raise UsageError(f"The option align must be True, False or 'per_head', not {requested!r}.")
    if requested == "per_head":
        if options.get("per_head") is False:
            raise UsageError("The options align='per_head' and per_head=False contradict each other; give one.")
        options = {"per_head": True}
    if options and not requested:
        raise UsageError(f"The option {next(iter(options))} belongs to the alignment, which align=False leaves out.")
    return dataclasses.replace(preset or Align(), **options) if requested else None
