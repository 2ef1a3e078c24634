"""What a mechanism is: a function of one query and one key, `Score.pair`, from which everything else follows.

`Mixer` is what a layer needs to know of a mechanism. A `Score` gives a number to each pair of a query and a key, and
its normaliser makes weights of them; recurrences, which keep a state instead, are in `attention.recurrences`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import jax
from jaxtyping import Array, Float

from attention import operations
from attention.errors import UnsupportedError, UsageError
from attention.forms import At, Form, Tokens
from attention.kernels import choose
from attention.kernels.call import check_parts, check_shapes
from attention.mask import Mask
from attention.normaliser import Normaliser, normaliser_of
from attention.operations import Cost
from attention.options import Options, takes_options
from attention.parameters import Parameter, Params, Sizes
from attention.types import Checked, Example


@dataclasses.dataclass(frozen=True)
class Traits:
    """What a mechanism says of itself; the defaults are those of a function of one pair.

    Attributes:
      causal: Whether it compares a query only with its past, within one sequence.
      one_sequence: Whether queries and keys are of one sequence, for another reason.
      reads_query: Whether the contents of queries count; if only their number does, a mechanism has `query='none'`.
      reads_key: Whether there are keys; if not, a mechanism has `key='none'` and the keys are None.
      reads_source: Whether prepared keys need the layer's inputs, which a cache of latents does not keep.
      ties_values: Whether the prepared keys can also be the values.
      keeps_keys: Whether prepared keys are the keys themselves apart from rotation, so that one cache can hold both.
      in_parts: Whether devices can hold parts of a sequence's keys: no state or sum goes on from token to token.
      own_loss: Whether it has a loss of its own in training, `Mixer.own_loss`.
      kernels: The implementations that serve it beside `reference` and `xla`.
    """

    causal: bool = False
    one_sequence: bool = False
    reads_query: bool = True
    reads_key: bool = True
    reads_source: bool = False
    ties_values: bool = True
    keeps_keys: bool = False
    in_parts: bool = True
    own_loss: bool = False
    kernels: tuple[str, ...] = ("chunked", "pallas")

    @property
    def cross(self) -> bool:
        """Tells whether it supports cross-attention."""
        return not (self.causal or self.one_sequence)


PRODUCTS = ("chunked", "cudnn", "pallas")  # the kernels of scores that are dot products


class Mixer(Checked):
    """How the tokens of a sequence are mixed. A subclass is a frozen dataclass whose fields are its options in specs.

    Attributes:
      title: Its name in errors.
      traits: What it says of itself; a property where that depends on its options.
      normaliser: A string that names what makes weights of scores; see `attention.normaliser`.
      oracle: The equation once more, from its source, in NumPy and for one head; it shares no code with the rest, and
        tests hold the rest to it. It gets the whole arrays of `arrays`. A score's is `oracle(self, weights, query, key,
        at)`, one pair's number; a recurrence's is `oracle(self, weights, head, state, source, key, value, query)`, a
        causal step's state and output. None where tests elsewhere do this.
    """

    title: ClassVar[str] = ""
    traits: ClassVar[Traits] = Traits()
    normaliser: ClassVar[str] = "none"
    oracle: ClassVar[Callable[..., Any] | None] = None

    def __init_subclass__(cls) -> None:
        cls.title = cls.__dict__.get("title", cls.title or cls.__name__)

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares the learnable arrays by name."""
        return {}

    def arrays(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares all learnable arrays, those of the normaliser too."""
        return self.parameters(sizes) | self.weighing.parameters(sizes)

    def widths(self, heads: int, groups: int, head: int) -> dict[str, tuple[int, int]]:
        """Says how many queries and keys a token has and how wide they are, for N and K heads of width H."""
        return {"query": (heads, head), "key": (groups, head)}

    check_shapes = staticmethod(check_shapes)

    def query_gain(self, head: int) -> float:
        """Gives the factor of the query projection's initial weights that makes initial scores of order 1."""
        return 1.0

    def prepare_query(self, params: Params, query: Any, at: Tokens) -> Any:
        """Brings queries `(*B, T, N, H)` into the form that `attend` takes, once a token and head.

        A subclass that has another form turns the queries first, `at.turn(query)`, where positions are rotary.
        """
        return query if query is None else at.turn(query)

    def prepare_key(self, params: Params, key: Any, at: Tokens) -> Any:
        """Brings keys `(*B, S, K, H)`, or None for a score without keys, into the form that a decode cache stores."""
        return key if key is None else at.turn(key)

    @property
    def weighing(self) -> Normaliser:
        """Makes the normaliser."""
        return normaliser_of(self.normaliser)

    @property
    def splits_tokens(self) -> bool:
        """Tells whether devices can share tokens: not with tables over positions, or weights that count keys."""
        if not (self.traits.in_parts and self.weighing.in_tiles) or self.weighing.counts:
            return False
        return not any({"queries", "keys"} & set(p.over or ()) for p in self.parameters(Sizes(2, 1, 2, 1)).values())

    @property
    def implementations(self) -> tuple[str, ...]:
        """Names the implementations that support it with its options; cuDNN has only the softmax."""
        if not self.weighing.in_tiles:
            return ("reference", "xla")
        kernels = (name for name in self.traits.kernels if name != "cudnn" or self.normaliser == "softmax")
        return ("reference", "xla", *kernels)

    def attend(self, params: Params, query: Any, key: Any, value: Float[Array, "*B S K V"], options: Options) -> Any:
        """Computes the output `(*B, T, N, V)`, and the weights if the options ask for them.

        Queries that may attend to no key give zeros. With a cache, S is its size, not the number of tokens in it.

        Args:
          params: The arrays that `arrays` declares.
          query: Prepared queries; of a mixer that reads none, any array `(*B, T, N, H)`.
          key: Prepared keys, zero where no query may attend, or None.
          value: Values, zero where no query may attend.
          options: The options of the call.
        """
        raise NotImplementedError

    def check_causal(self, mask: Mask) -> None:
        """Raises UnsupportedError where it needs a causal mask and the mask does not say that it is."""
        if self.traits.causal and not mask.causal:
            hint = " in place of the array" if mask.dense is not None else ""
            raise UnsupportedError(
                f"{self.title} needs a causal mask with these options, as it compares a query with its past alone; "
                f"write attention.Mask(causal=True){hint}."
            )

    def own_loss(self, params: Params, query: Any, key: Any, options: Options) -> Float[Array, "*B"]:
        """Computes what a mechanism with the trait `own_loss` minimises in training beside the loss of the task.

        Args:
          params: The arrays that `arrays` declares.
          query: Prepared queries.
          key: Prepared keys.
          options: The options of the call.
        """
        raise NotImplementedError

    def start(self, sizes: Sizes, batch: tuple[int, ...], dtype: Any) -> Any | None:
        """Makes a recurrence's state before the first token; None for mechanisms that need every key."""
        return None

    def advance(
        self, params: Params, query: Any, key: Any, value: jax.Array, state: Any, mask: Mask
    ) -> tuple[jax.Array, Any]:
        """Computes the causal output of the next tokens, and the state after them.

        The first is at the mask's `query_offset`. The state is that before it, or None where nothing came before.
        """
        raise UsageError(f"{self.title} keeps no state: its queries need every key; call `attend`.")

    def cost(self, sizes: Sizes, queries: int, keys: int) -> Cost:
        """Counts one forward pass over one sequence, given projected queries, keys and values."""
        return operations.of_program(self, sizes, queries, keys, "xla")


@dataclasses.dataclass(frozen=True)
class Score(Mixer):
    """A function of one pair, whose numbers a normaliser makes weights of.

    A subclass must define `pair`; all else follows from it. The forms that it may offer besides are faster, and equal.
    """

    title = ""
    normaliser: Annotated[str, Example("sigmoid")] = dataclasses.field(default="softmax", kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        normaliser_of(self.normaliser)

    def pair(self, params: Params, query: Any, key: Any, at: At) -> Float[Array, ""]:
        """Computes the score of one prepared query and one prepared key of one head, at least in float32.

        Args:
          params: The arrays that `parameters` declares; those over heads or pairs as the part for this head and pair.
          query: What `prepare_query` gives for one token and head, `(H,)` by default; None if it reads no queries.
          key: What `prepare_key` gives, likewise.
          at: The positions and the head.
        """
        raise NotImplementedError

    def form(self, params: Params, query: Any, key: Any) -> Form:
        """Gives a form of the scores of prepared queries and keys that has kernels of its own, if there is one.

        It is dot products of some vectors, or an MLP on q + k, up to terms that the normaliser ignores.
        """
        return None

    def attend(self, params: Params, query: Any, key: Any, value: Float[Array, "*B S K V"], options: Options) -> Any:
        """Computes the output `(*B, T, N, V)`, and the weights if the options ask for them."""
        self.check_causal(options.mask)
        return choose.attend(self, params, query, key, value, options)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> Cost:
        """Counts the preparation, `pair` for each pair, the normaliser, and weighted values."""
        return operations.of_pairs(self, sizes, queries, keys)


@takes_options
def attend(
    score: Mixer,
    params: Params,
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"] | None,
    value: Float[Array, "*B S M V"] | None,
    *,
    source: Float[Array, "*B S D"] | None = None,
    **options: Any,
) -> Any:
    """Computes attention with any score, in the layout of `jax.nn.dot_product_attention`.

    Keys and values that no query may attend to are replaced by zeros first, so the contents of padding, NaN included,
    reach neither output nor gradient. A query that may attend to no key gives zeros with zero gradient.

    Args:
      score: How queries, keys and values are mixed.
      params: The arrays that `score.arrays` declares.
      query: Queries; of a score that reads none, only their shape counts.
      key: Keys, K divides N; None for a score that reads none.
      value: Values, M = K but for a score with groups of its own; None for prepared keys as values.
      source: The inputs of the keys, and in self-attention of the queries, for scores with gates that are projected
        from them.
      **options: The fields of `attention.options.Options`; implementations are `auto` and `score.implementations`.

    Raises:
      UsageError: the shapes do not fit, or an option is wrong.
      UnsupportedError: the score does not support this call.
    """
    checked = Options(**options)
    mask = checked.mask
    check_given(score, params, query, key, value, source)
    keys = (key if value is None else value).shape[-3]
    check_parts(mask, checked.bias, (*query.shape[:-3], query.shape[-2], query.shape[-3], keys))
    reachable = lambda x: mask.without_unreachable(x, query.shape[-3], query.ndim)  # noqa: E731
    key, value, source = jax.tree.map(reachable, (key, value, source))
    inputs = query if source is None or score.traits.cross else mask.at_queries(source, query.shape[-3], -2)
    tokens = functools.partial(Tokens, layer=checked.layer, depth=checked.depth)
    query = score.prepare_query(params, query, tokens(mask.query_offset, inputs))
    key = score.prepare_key(params, key, tokens(0, key if source is None else source))
    return score.attend(params, query, key, key if value is None else value, checked)


def check_given(score: Mixer, params: Params, query: Any, key: Any, value: Any, source: Any) -> None:
    """Raises UsageError unless everything that the score reads is given."""
    if score.traits.reads_key and key is None:
        raise UsageError(f"{score.title} reads keys; give them.")
    if value is None and not (score.traits.reads_key and score.traits.ties_values):
        raise UsageError(f"The keys of {score.title} cannot be its values; give values.")
    if key is not None:
        score.check_shapes(query, key, key if value is None else value)
    lead = (value if key is None else key).shape[:-2]
    if source is not None and source.shape[:-1] != lead:
        raise UsageError(f"A source has the keys' batch and length {lead}, but its shape is {source.shape}.")
    heads, head = query.shape[-2:]
    if not params and (declared := score.arrays(Sizes(heads * head, heads, head, 1))):
        raise UsageError(f"{score.title} needs the arrays {', '.join(declared)}; attention.init makes them.")
