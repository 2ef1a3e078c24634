"""The recurrent encoder-decoder with attention from Wikipedia's article, with its sizes and five variants.

A recurrent encoder reads the source, h_j = E(x_j, h_{j-1}). A recurrent decoder starts from the encoder's last state:

    c_i = Σ_j w_ij v_j,   s_i = D([t_i; c_i], s_{i-1}),   logits_i = FC(s_i)

where t_i is the embedding of the known target token (teacher forcing) or of the token that the model predicted.
"""

import dataclasses
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn import initializers
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from attention import operations
from attention.forms import Tokens
from attention.mask import Mask
from attention.operations import Cost
from attention.options import Options
from attention.parameters import Sizes
from attention.score import Mixer
from attention.scores.dot import DotProduct
from attention.scores.location import Location
from attention.scores.luong import Bilinear
from attention.scores.pairwise import Additive
from attention.types import Count, Names, Rate, Share
from models.config import ModelConfig
from models.fields import field
from models.layers.attention_weights import collect, is_collected
from models.layers.cache import Decoding
from models.layers.dropout import Dropout
from models.layers.output import Output
from models.layers.projections import Dense, look_up
from models.transducer import Transducer

CELLS = {"gru": nn.GRUCell, "lstm": nn.OptimizedLSTMCell}


class Variant(NamedTuple):
    """The score of a variant, and which queries and keys it compares.

    Attributes:
      source: The publication that defines it.
      score: The score; None if there is no attention, and the context is always the encoder's last state.
      encoder_only: Whether queries and keys are the source's embeddings instead of decoder and encoder states.
      projected: Whether queries, keys and values go through weight matrices.
    """

    source: str
    score: Mixer | None
    encoder_only: bool = False
    projected: bool = False


VARIANTS = {
    "dot": Variant("Wikipedia variant 1", DotProduct(scale=1.0)),
    "qkv": Variant("Wikipedia variant 2", DotProduct(), projected=True),
    "encoder_dot": Variant("Wikipedia variant 3", DotProduct(scale=1.0), encoder_only=True),
    "encoder_qkv": Variant("Wikipedia variant 4", DotProduct(), encoder_only=True, projected=True),
    "location": Variant("Wikipedia variant 5; Luong et al. 2015, eq. 9", Location()),
    "additive": Variant("Bahdanau et al. 2014, appendix A.1.2", Additive()),
    "luong_dot": Variant("Luong et al. 2015, eq. 8", DotProduct(scale=1.0)),
    "luong_general": Variant("Luong et al. 2015, eq. 8", Bilinear()),
    "luong_concat": Variant("Luong et al. 2015, eq. 8", Additive()),
    "fixed": Variant("Cho et al. 2014, §2.2: one vector of fixed length", None),
}


@dataclasses.dataclass(frozen=True)
class Seq2SeqConfig(ModelConfig):
    """The config of a recurrent encoder-decoder. In Wikipedia's figure embeddings are 300 wide and states 500."""

    name: str = field("seq2seq", "Name of the model.")
    attention: Annotated[str, Names(VARIANTS)] = field(
        "additive",
        "Wikipedia's variants `dot`, `qkv`, `encoder_dot`, `encoder_qkv` and `location`, or `additive`, `luong_dot`, "
        "`luong_general` or `luong_concat`; `fixed` has no attention, but the encoder's last state at every step.",
    )
    cell: Annotated[str, Names(CELLS)] = field("gru", "Recurrent cell of encoder and decoder.")
    embedding: Count = field(300, "Width of the embeddings.")
    hidden: Count = field(500, "H, the width of the states.", matched="parameters")
    dropout: Rate = field(0.1, "Rate on the embeddings, and on the decoder's states before the output.")
    teacher_forcing: Share = field(
        1.0,
        "Probability that the decoder reads the known token in training; else it reads its own likeliest one (1/2 in "
        "Wikipedia; Bengio et al. 2015). It is drawn for each token of each sentence.",
    )

    def build(
        self, source_vocabulary: int, target_vocabulary: int, source: int, target: int, dtype: DTypeLike = jnp.float32
    ) -> "Seq2Seq":
        return Seq2Seq(self, source_vocabulary, target_vocabulary, source, target, dtype)

    def cost(self, source_vocabulary: int, target_vocabulary: int, source: int, target: int) -> Cost:
        """Counts the cost of one pass with teacher forcing, without the gates' activations."""
        variant, hidden, gates = VARIANTS[self.attention], self.hidden, 3 if self.cell == "gru" else 4
        compared = self.embedding if variant.encoder_only else hidden
        cost = operations.linear(source, self.embedding + hidden, gates * hidden)
        cost += operations.linear(target, self.embedding + 2 * hidden, gates * hidden)
        if isinstance(variant.score, Location):
            cost += operations.linear(target, self.embedding + hidden, source)
            cost += Cost(2 * target * source * hidden, target * source * operations.SOFTMAX_FLOPS)
        elif variant.score is not None:
            width = hidden if variant.projected else compared
            cost += variant.score.cost(Sizes(width, 1, width, source), target, source)
            wider = hidden - width  # values are H wide, whatever the width of queries and keys
            cost += Cost(2 * target * source * wider, bytes=4 * (target + source) * wider)
        if variant.projected:
            cost += operations.matmul(target, compared, hidden) + operations.matmul(source, compared, hidden)
            cost += operations.matmul(source, hidden, hidden)
        return cost + operations.linear(target, hidden, target_vocabulary)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Memory:
    """The encoded source, to which the decoder attends.

    Attributes:
      query: Embeddings `(B, S, E)`, with zeros at padding, if they are the queries; or None.
      key: Prepared keys `(B, S, 1, …)`, or None if the score reads none.
      value: Values `(B, S, 1, H)`.
      lengths: Number of real tokens in each source.
    """

    query: Float[Array, "B S E"] | None
    key: Any
    value: Float[Array, "B S 1 H"]
    lengths: Int[Array, "B"]


class State(NamedTuple):
    """The state of the decoder: its cell's state, and the number of tokens that it has read."""

    cell: Any
    position: Int[Array, ""]

    @property
    def hidden(self) -> Float[Array, "B H"]:
        """s, the hidden state."""
        return self.cell[-1] if isinstance(self.cell, tuple) else self.cell


class Coefficients(nn.Module):
    """The attention module A of Wikipedia's figure, which weighs the encoder's states for the next token.

    Its `length` is S, the longest source, for the fully-connected layer of `location`.
    """

    config: Seq2SeqConfig
    length: int
    dtype: DTypeLike = jnp.float32

    def setup(self):
        """Creates Qw, Kw and Vw if the variant has them, and the score's parameters or the fully-connected layer."""
        self.variant, hidden = VARIANTS[self.config.attention], self.config.hidden
        score = self.variant.score
        if self.variant.projected:
            projections = (Dense((1, hidden), bias=False, dtype=self.dtype) for _ in range(3))
            self.to_query, self.to_key, self.to_value = projections
        if isinstance(score, Location):
            width = self.config.embedding + hidden
            kernel = self.param("kernel", initializers.lecun_normal(), (width, self.length))
            self.learned = {"rows": kernel.T, "bias": self.param("bias", initializers.zeros, (self.length,))}
        elif score is not None:
            declared = score.arrays(Sizes(hidden, 1, hidden, self.length))
            self.learned = {name: self.param(name, p.init, p.shape, jnp.float32) for name, p in declared.items()}

    def remember(
        self, embedded: Float[Array, "B S E"], states: Float[Array, "B S H"], lengths: Int[Array, "B"]
    ) -> Memory:
        """Computes keys and values once for each source, with zeros at padding."""
        variant = self.variant
        real = Mask(key_lengths=lengths).real_keys(states.shape[1])[..., None]
        # Recurrent states are float32; attention converts them to the compute dtype.
        embedded, states = (jnp.where(real, x, 0).astype(self.dtype) for x in (embedded, states))
        compared, key = embedded if variant.encoder_only else states, None
        if variant.score is not None and variant.score.traits.reads_key:
            key = self.to_key(compared) if variant.projected else compared[:, :, None]
            key = variant.score.prepare_key(dict(self.learned), key, Tokens(0, compared))
        value = self.to_value(states) if variant.projected else states[:, :, None]
        return Memory(embedded if variant.encoder_only else None, key, value, lengths)

    def __call__(
        self, token: Float[Array, "B E"], state: State, memory: Memory
    ) -> tuple[Float[Array, "B H"], Float[Array, "B S"]]:
        """Computes the context c_i and the weights w_i."""
        variant = self.variant
        if variant.score is None:
            last = memory.lengths - 1
            context = jnp.take_along_axis(memory.value[:, :, 0], last[:, None, None], axis=1)
            return context[:, 0], jax.nn.one_hot(last, memory.value.shape[1], dtype=memory.value.dtype)
        source = self._query(token, state, memory)[:, None].astype(self.dtype)
        query = self.to_query(source) if variant.projected else source[:, :, None]
        learned = dict(self.learned)  # Linen has frozen it
        query = variant.score.prepare_query(learned, query, Tokens(state.position, source))
        options = Options(Mask(key_lengths=memory.lengths), return_weights=True)
        out, weights = variant.score.attend(learned, query, memory.key, memory.value, options)
        return out[:, 0, 0], weights[:, 0, 0]

    def _query(self, token: jax.Array, state: State, memory: Memory) -> jax.Array:
        """Chooses s_{i-1}; in encoder-only variants x_i, or zeros after the source's end; in `location` [t_i; s_{i-1}].

        Wikipedia does not say which of the encoder's queries belongs to target position i; here it is the i-th.
        """
        if isinstance(self.variant.score, Location):
            return jnp.concatenate([token, state.hidden], axis=-1)
        if memory.query is None:
            return state.hidden
        row = jax.lax.dynamic_index_in_dim(memory.query, state.position, axis=1, keepdims=False)
        return jnp.where(state.position < memory.query.shape[1], row, jnp.zeros((), row.dtype))


class Seq2Seq(Transducer):
    """A recurrent encoder and a recurrent decoder with attention; see `Transducer`.

    `apply(..., mutable="attention")` also returns the weights `(B, 1, T, S)`, the alignment matrix in Wikipedia.
    """

    config: Seq2SeqConfig

    def setup(self):
        config, dtype, cell = self.config, self.dtype, CELLS[self.config.cell]
        self.embed = nn.Embed(self.source_vocabulary, config.embedding, dtype=dtype)
        self.embed_target = nn.Embed(self.target_vocabulary, config.embedding, dtype=dtype)
        self.encoder = nn.RNN(cell(config.hidden, dtype=dtype), return_carry=True)
        self.coefficients = Coefficients(config, self.source_length, dtype)
        self.decoder = cell(config.hidden, dtype=dtype)
        self.dropout = Dropout(config.dropout)
        self.head = Dense((self.target_vocabulary,), dtype=dtype)

    def output(
        self, source: Int[Array, "B S"], source_lengths: Int[Array, "B"], target: Int[Array, "B T"], train: bool = False
    ) -> Output:
        """See `Transducer`; in training, predicted tokens may replace some known ones."""
        memory, state = self.encode(source, source_lengths, train)
        if train and self.config.teacher_forcing < 1 and not self.is_initializing():
            forced = jax.random.bernoulli(self.make_rng("dropout"), self.config.teacher_forcing, target.shape)
            target = self.fed(target, forced.at[:, 0].set(True), memory, state)
        return self.decode(target, memory, train, state)[0]

    def encode(
        self, source: Int[Array, "B S"], source_lengths: Int[Array, "B"], train: bool = False
    ) -> tuple[Memory, State]:
        embedded = self.dropout(look_up(self.embed, source), train=train)
        cell, states = self.encoder(embedded, seq_lengths=source_lengths)
        memory = self.coefficients.remember(embedded, states, source_lengths)
        return memory, State(cell, jnp.zeros((), jnp.int32))

    def decode(self, target: Int[Array, "B T"], memory: Memory, train: bool, state: State) -> tuple[Output, State]:
        """See `Transducer`; every token is known."""
        returns_weights = is_collected(self, "attention")

        def step(self, state, token, memory):
            state, weights = self._advance(state, token, memory)
            return state, (state.hidden, weights if returns_weights else None)

        embedded = self.dropout(look_up(self.embed_target, target), train=train)
        state, (states, weights) = _scan(step)(self, state, embedded, memory)
        if returns_weights:
            collect(self, "attention", "weights", weights[:, None])
        return self.head.output(self.dropout(states, train=train)), state

    def fed(
        self, target: Int[Array, "B T"], forced: Bool[Array, "B T"], memory: Memory, state: State
    ) -> Int[Array, "B T"]:
        """Finds the tokens that the decoder reads: the known one where it is forced, else the one it predicted.

        Choosing a token has no gradient, so `decode` of these tokens has the full gradient. There is no dropout here.
        The first token must be forced; memory and state are those of `encode`.
        """

        def step(self, carry, inputs, memory):
            state, predicted = carry
            token = jnp.where(inputs[1], inputs[0], predicted)
            state, _ = self._advance(state, look_up(self.embed_target, token), memory)
            return (state, jnp.argmax(self.head(state.hidden), axis=-1).astype(target.dtype)), token

        _, tokens = _scan(step)(self, (state, target[:, 0]), (target, forced), memory)
        return tokens

    def start(self, source: Int[Array, "B S"], source_lengths: Int[Array, "B"], max_length: int) -> Decoding:
        """See `Transducer`; the state has a fixed size, whatever the length."""
        del max_length
        memory, state = self.encode(source, source_lengths)
        return Decoding(state, memory)

    def _advance(self, state: State, token: Float[Array, "B E"], memory: Memory) -> tuple[State, Float[Array, "B S"]]:
        """Applies the decoder's cell to one embedded token and its context; also returns the weights."""
        context, weights = self.coefficients(token, state, memory)
        cell, _ = self.decoder(state.cell, jnp.concatenate([token, context], axis=-1))
        return State(cell, state.position + 1), weights


def _scan(step: Any) -> Any:
    """Scans `step` over the second axis of its inputs, with the same parameters and memory at every step."""
    return nn.scan(
        step, variable_broadcast="params", split_rngs={"params": False}, in_axes=(1, nn.broadcast), out_axes=1
    )
