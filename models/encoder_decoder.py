"""Encoder and decoder (Vaswani et al. 2017; Marian in Zhang; T5) with any mechanism in each of their attentions."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attention import Mask, operations
from attention.errors import UsageError
from attention.operations import Cost
from attention.types import Count, Names, at_most
from models.fields import LAYERS, field
from models.layers import stack
from models.layers.cache import Cache, Decoding, PreparedSource
from models.layers.dropout import Dropout
from models.layers.multi_head import MultiHeadAttention
from models.layers.norms import NORM_TYPES
from models.layers.output import Output
from models.layers.positions import ADDED, HALVES, Positions
from models.layers.projections import Dense, look_up
from models.transformer import PRETRAINED, BlockConfig

Caches = tuple[Cache, ...]
Source = Int[Array, "B S"] | Float[Array, "B H W C"]  # tokens, or the images of `models.captioner`


@dataclasses.dataclass(frozen=True)
class CrossAttentionConfig(BlockConfig):
    """The base of configs of models whose decoder attends to what an encoder makes of a source."""

    attention: str = field(
        "dot_product", "Mechanism spec string of the encoder's self-attention, see `models.mechanisms`."
    )
    depth: int = field(2, "Number of the encoder's blocks.")
    norm: str = "post"
    positions: Annotated[str, Names((*ADDED, HALVES))] = field(
        "sinusoidal", "How tokens know where they are; `sinusoidal_halves` is Marian's: all sines, then all cosines."
    )
    activation: str = "relu"
    embedding_dropout: float = 0.1
    dropout: float = field(0.1, "Rate on the attention layers' and the MLPs' outputs.")
    decoder_attention: str = field("dot_product", "Spec string of the decoder's self-attention, which is causal.")
    cross_attention: str = field("dot_product", "Spec string of the decoder's attention to the encoder's output.")
    decoder_depth: Annotated[Count, at_most(LAYERS)] = field(2, "Number of the decoder's blocks.")
    scale_embeddings: bool = field(True, "Whether embeddings are multiplied by √D (Vaswani et al. 2017, §3.4).")
    tied_output: bool = field(True, "Whether the target's embeddings are the output's kernel too; else it has its own.")
    output_bias: bool = field(False, "Whether the output has a bias, as Marian's `final_logits_bias`.")

    STACKS: ClassVar[Mapping[str, str]] = {
        "attention": "depth",
        "decoder_attention": "decoder_depth",
        "cross_attention": "decoder_depth",
    }
    PLACES: ClassVar[Mapping[str, str]] = {
        "attention": "encoder_{}/attention",
        "decoder_attention": "decoder_{}/attention",
        "cross_attention": "decoder_{}/cross",
    }
    DROPS_HIDDEN: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        for mechanism in self.mechanisms["cross_attention"]:
            if not mechanism.cross:
                raise UsageError(
                    f"model.cross_attention={self.cross_attention!r} has a {mechanism.name} whose options are for "
                    "self-attention only; leave them out there."
                )

    def cost_of_tokens(self, source: int, target: int, vocabulary: int) -> Cost:
        """Returns the cost of one forward pass of all blocks and of the output."""
        head = operations.linear(target, self.width, vocabulary, bias=self.output_bias)
        layers = self.mechanisms["cross_attention"]
        cross = (layer.cost(target, self.width, self.heads, source, self.head) for layer in layers)
        return self.cost_of_blocks(source) + sum(cross, self.cost_of_blocks(target, "decoder_attention")) + head


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig(CrossAttentionConfig):
    """The config of an encoder-decoder.

    Vaswani et al. have `post`, `sinusoidal`, `relu`, with scaled, shared embeddings tied to the output. Marian has the
    same but for `swish`, `sinusoidal_halves`, ε = 1e-5 and a bias of the output. T5 has `pre`, `rms`, no positions but
    those of `relative`, and no biases.
    """

    name: str = "encoder_decoder"
    shared_embeddings: bool = field(True, "Whether source and target, of one vocabulary, have the same embeddings.")
    pretrained: str = field("", PRETRAINED)

    def build(
        self, source_vocabulary: int, target_vocabulary: int, source: int, target: int, dtype: DTypeLike = jnp.float32
    ) -> "EncoderDecoder":
        """See `ModelConfig`."""
        return EncoderDecoder(self, source_vocabulary, target_vocabulary, source, target, dtype)

    def cost(self, source_vocabulary: int, target_vocabulary: int, source: int, target: int) -> Cost:
        """See `ModelConfig`."""
        return self.cost_of_tokens(source, target, target_vocabulary)


class EncoderDecoder(nn.Module):
    """A model from sources and preceding target tokens to the logits of the next tokens.

    Padding of a source does not affect logits. Padding of a target follows its real tokens, which do not see it.

    Attributes:
      config: The model's config.
      source_vocabulary: Size of the source's vocabulary.
      target_vocabulary: Size of the target's vocabulary.
      source_length: The longest source for which parameters of fixed length are built.
      target_length: The longest target for which parameters of fixed length are built. Tables over pairs of positions
        in cross-attention are square, with the longer of both lengths.
      dtype: Compute dtype; parameters are float32.
    """

    config: CrossAttentionConfig
    source_vocabulary: int
    target_vocabulary: int
    source_length: int
    target_length: int
    dtype: DTypeLike = jnp.float32

    def setup(self):
        """Creates the embeddings, the blocks of encoder and decoder, and the output."""
        config, dtype = self.config, self.dtype
        self._embed_both_sides()
        self.positions_source = Positions(config.positions, self.source_length)
        self.positions_target = Positions(config.positions, self.target_length)
        self.dropout = Dropout(config.embedding_dropout)
        self.encoder = self._blocks("encoder", config.attention_layers(self.source_length, dtype))
        cross = config.attention_layers(max(self.source_length, self.target_length), dtype, "cross_attention")
        self.decoder = self._blocks("decoder", self._decoder_layers(), cross)
        if config.norm == "pre":
            self.encoder_norm = NORM_TYPES[config.norm_type](config.norm_epsilon, dtype=dtype)
            self.decoder_norm = NORM_TYPES[config.norm_type](config.norm_epsilon, dtype=dtype)
        if not config.tied_output:
            self.head = Dense((self.target_vocabulary,), bias=False, dtype=dtype)
        if config.output_bias:
            self.head_bias = self.param("head_bias", nn.initializers.zeros_init(), (self.target_vocabulary,))

    def __call__(
        self,
        source: Source,
        source_lengths: Int[Array, "B"] | None,
        target: Int[Array, "B T"],
        train: bool = False,
    ) -> Float[Array, "B T vocabulary"]:
        """Returns the logits, in float32, of the token after each target token.

        Args:
          source: Sentences with trailing padding.
          source_lengths: Number of real tokens in each; None where all are.
          target: The start token, then the translation.
          train: Whether there is dropout.

        Raises:
          UsageError: there are more tokens than a length, if the model has parameters of fixed length.
        """
        return self.output(source, source_lengths, target, train).logits()

    def output(
        self,
        source: Source,
        source_lengths: Int[Array, "B"] | None,
        target: Int[Array, "B T"],
        train: bool = False,
    ) -> Output:
        """Returns the output for the token after each target token."""
        memory = self.encode(source, source_lengths, train)
        return self._decoded(target, memory, source_lengths, train, None)[0]

    def encode(
        self, source: Source, source_lengths: Int[Array, "B"] | None, train: bool = False
    ) -> Float[Array, "B S D"]:
        """Returns the encoder's hidden states, to which the decoder attends; those at padding are meaningless."""
        mask = Mask(key_lengths=source_lengths)
        x = self.positions_source(self._embedded(source))
        x = self.dropout(mask.without_unreachable(x, source.shape[1], rank=4), train=train)
        x = stack.run(self.encoder, x, mask, train, scan=self.config.scan)
        return self.encoder_norm(x) if self.config.norm == "pre" else x

    def decode(
        self,
        target: Int[Array, "B T"],
        memory: Float[Array, "B S D"] | tuple[PreparedSource, ...],
        source_lengths: Int[Array, "B"] | None,
        train: bool = False,
        caches: Caches | None = None,
    ) -> Float[Array, "B T vocabulary"] | tuple[Float[Array, "B T vocabulary"], Caches]:
        """Returns the logits in float32, and with caches the caches for the next call.

        Args:
          target: The targets from their start, or with caches the tokens after those in them.
          memory: The result of `encode` or of `prepare`.
          source_lengths: Number of real tokens in each source; None where all are.
          train: Whether there is dropout.
          caches: The caches from `init_caches` or from the previous call.

        Raises:
          UsageError: there are more tokens than a length, if the model has parameters of fixed length.
        """
        output, caches = self._decoded(target, memory, source_lengths, train, caches)
        return output.logits() if caches is None else (output.logits(), caches)

    def _decoded(
        self,
        target: jax.Array,
        memory: jax.Array | tuple[PreparedSource, ...],
        source_lengths: jax.Array | None,
        train: bool,
        caches: Caches | None,
    ) -> tuple[Output, Caches | None]:
        first = 0 if caches is None else caches[0].length
        mask = Mask(causal=True) if caches is None else None
        source_mask = Mask(key_lengths=source_lengths, query_offset=first)
        x = self.positions_target(self._scaled(look_up(self.embed_target, target)), first)
        x = self.dropout(x, train=train)
        if not isinstance(memory, tuple) and caches is None:
            x = stack.run(self.decoder, x, mask, train, None, memory, source_mask, scan=self.config.scan)
            return self._output(x), None
        kept = []
        for layer, block in enumerate(self.decoder):
            source = memory[layer] if isinstance(memory, tuple) else memory
            x = block(x, mask, train, None if caches is None else caches[layer], source, source_mask)
            if caches is not None:
                x, cache = x
                kept.append(cache)
        return self._output(x), None if caches is None else tuple(kept)

    def init_caches(self, batch: int, max_length: int) -> Caches:
        """Returns an empty decode cache for each layer of the decoder.

        Args:
          batch: B, the number of sequences.
          max_length: The most target tokens that they will hold.

        Raises:
          UsageError: there are more tokens than learned positions.
        """
        return self.config.init_caches(self._decoder_layers(), batch, max_length, self.target_length)

    def prepare(
        self, memory: Float[Array, "B S D"], source_lengths: Int[Array, "B"] | None
    ) -> tuple[PreparedSource, ...]:
        """Returns keys and values of each cross-attention, so that `decode` need not compute them for every token."""
        return tuple(block.prepare(memory, self.config.width, source_lengths) for block in self.decoder)

    def start(self, source: Source, source_lengths: Int[Array, "B"] | None, max_length: int) -> Decoding:
        """Returns the state for `step` before the first target token.

        Args:
          source: Sentences with trailing padding.
          source_lengths: Number of real tokens in each; None where all are.
          max_length: The most target tokens that the decoder will read.

        Raises:
          UsageError: there are more tokens than a length, if the model has parameters of fixed length.
        """
        prepared = self.prepare(self.encode(source, source_lengths), source_lengths)
        return Decoding(self.init_caches(len(source), max_length), (prepared, source_lengths))

    def step(
        self, tokens: Int[Array, "B T"], train: bool, caches: Decoding
    ) -> tuple[Float[Array, "B T vocabulary"], Decoding]:
        """Returns the logits of the token after each given token, and the state for the next call."""
        logits, target = self.decode(tokens, *caches.source, train, caches.target)
        return logits, dataclasses.replace(caches, target=target)

    def _embed_both_sides(self) -> None:
        """Creates `embed`, of the source, and `embed_target`; `setup` calls it."""
        shared = self.config.shared_embeddings
        if shared and self.source_vocabulary != self.target_vocabulary:
            raise UsageError(
                f"model.shared_embeddings needs one vocabulary, but the source's has {self.source_vocabulary} tokens "
                f"and the target's {self.target_vocabulary}; share the tokeniser or separate the embeddings."
            )
        self.embed = self._embeddings(self.source_vocabulary)
        self.embed_target = self.embed if shared else self._embeddings(self.target_vocabulary)

    def _embeddings(self, vocabulary: int) -> nn.Embed:
        start = nn.initializers.normal(self.config.width**-0.5 if self.config.scale_embeddings else 0.02)
        return nn.Embed(vocabulary, self.config.width, dtype=self.dtype, embedding_init=start)

    def _embedded(self, source: jax.Array) -> Float[Array, "B S D"]:
        """Returns the source's tokens as vectors, without positions."""
        return self._scaled(look_up(self.embed, source))

    def _decoder_layers(self) -> list[MultiHeadAttention]:
        return self.config.attention_layers(self.target_length, self.dtype, "decoder_attention")

    def _blocks(
        self, side: str, layers: list[MultiHeadAttention], cross: list[MultiHeadAttention] | None = None
    ) -> list[nn.Module]:
        cross = [None] * len(layers) if cross is None else cross
        return [
            self.config.block(layer, self.dtype, cross_layer, f"{side}_{index}")
            for index, (layer, cross_layer) in enumerate(zip(layers, cross, strict=True))
        ]

    def _scaled(self, x: jax.Array) -> jax.Array:
        return x * self.config.width**0.5 if self.config.scale_embeddings else x

    def _output(self, x: jax.Array) -> Output:
        x = self.decoder_norm(x) if self.config.norm == "pre" else x
        tied = self.config.tied_output
        output = Output(x, self.embed_target.embedding, transposed=True) if tied else self.head.output(x)
        return dataclasses.replace(output, bias=self.head_bias) if self.config.output_bias else output
