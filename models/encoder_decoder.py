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
from models.layers.output import Output
from models.layers.positions import ADDED, HALVES, Positions
from models.layers.projections import Dense, look_up
from models.transducer import Source, Transducer
from models.transformer import PRETRAINED, BlockConfig

Caches = tuple[Cache, ...]
# A source's hidden states, or what each layer has prepared of them, and its number of real tokens.
Memory = tuple[Float[Array, "B S D"] | tuple[PreparedSource, ...], Int[Array, "B"] | None]


@dataclasses.dataclass(frozen=True)
class CrossAttentionConfig(BlockConfig):
    """The base of configs of models whose decoder attends to an encoder's output."""

    attention: str = field("dot_product", "Spec string of the encoder's self-attention, see `models.mechanisms`.")
    depth: int = field(2, "Number of the encoder's blocks.")
    norm: str = "post"
    positions: Annotated[str, Names((*ADDED, HALVES))] = field(
        "sinusoidal", "Position encoding; `sinusoidal_halves` has all sines before all cosines, as in Marian."
    )
    activation: str = "relu"
    embedding_dropout: float = 0.1
    dropout: float = field(0.1, "Rate on the outputs of attention layers and MLPs.")
    decoder_attention: str = field("dot_product", "Spec string of the decoder's self-attention, which is causal.")
    cross_attention: str = field("dot_product", "Spec string of the decoder's attention to the encoder's output.")
    decoder_depth: Annotated[Count, at_most(LAYERS)] = field(2, "Number of the decoder's blocks.")
    scale_embeddings: bool = field(True, "Whether embeddings are multiplied by √D (Vaswani et al. 2017, §3.4).")
    tied_output: bool = field(True, "Whether the target's embeddings are the output's kernel too; else it has its own.")
    output_bias: bool = field(False, "Whether the output has a bias, such as Marian's `final_logits_bias`.")

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
                    "self-attention only; leave them out."
                )

    def cost_of_tokens(self, source: int, target: int, vocabulary: int) -> Cost:
        """Counts the cost of one forward pass of all blocks and of the output."""
        head = operations.linear(target, self.width, vocabulary, bias=self.output_bias)
        layers = self.mechanisms["cross_attention"]
        cross = (layer.cost(target, self.width, self.heads, source, self.head) for layer in layers)
        return self.cost_of_blocks(source) + sum(cross, self.cost_of_blocks(target, "decoder_attention")) + head


@dataclasses.dataclass(frozen=True)
class EncoderDecoderConfig(CrossAttentionConfig):
    """The config of an encoder-decoder.

    Vaswani et al. have `post`, `sinusoidal`, `relu`, and scaled, shared embeddings tied to the output. Marian differs
    in `swish`, `sinusoidal_halves`, ε = 1e-5 and an output bias. T5 has `pre`, `rms`, no positions but those of
    `relative`, and no biases.
    """

    name: str = "encoder_decoder"
    shared_embeddings: bool = field(True, "Whether source and target share embeddings, and so a vocabulary.")
    pretrained: str = field("", PRETRAINED)

    def build(
        self, source_vocabulary: int, target_vocabulary: int, source: int, target: int, dtype: DTypeLike = jnp.float32
    ) -> "EncoderDecoder":
        return EncoderDecoder(self, source_vocabulary, target_vocabulary, source, target, dtype)

    def cost(self, source_vocabulary: int, target_vocabulary: int, source: int, target: int) -> Cost:
        return self.cost_of_tokens(source, target, target_vocabulary)


class EncoderDecoder(Transducer):
    """A Transformer encoder of sources and decoder of targets; see `Transducer`."""

    config: CrossAttentionConfig

    def setup(self):
        config, dtype = self.config, self.dtype
        self._embed_both_sides()
        self.positions_source = Positions(config.positions, self.source_length)
        self.positions_target = Positions(config.positions, self.target_length)
        self.dropout = Dropout(config.embedding_dropout)
        self.encoder = config.blocks(self.source_length, dtype)
        longer = max(self.source_length, self.target_length)
        cross = config.attention_layers(longer, dtype, "cross_attention")
        self.decoder = config.blocks(self.target_length, dtype, "decoder_attention", cross)
        if config.norm != "post":
            self.encoder_norm = config.norm_layer(dtype)
            self.decoder_norm = config.norm_layer(dtype)
        if not config.tied_output:
            self.head = Dense((self.target_vocabulary,), bias=False, dtype=dtype)
        if config.output_bias:
            self.head_bias = self.param("head_bias", nn.initializers.zeros_init(), (self.target_vocabulary,))

    def encode(
        self, source: Source, source_lengths: Int[Array, "B"] | None, train: bool = False
    ) -> tuple[Memory, None]:
        """Computes the encoder's hidden states, to which the decoder attends; those at padding are meaningless."""
        mask = Mask(key_lengths=source_lengths)
        x = self.positions_source(self._embedded(source))
        x = self.dropout(mask.without_unreachable(x, source.shape[1], rank=4), train=train)
        x, _ = stack.run(self.encoder, x, mask, train, scan=self.config.scan)
        x = self.encoder_norm(x) if self.config.norm != "post" else x
        return (x, source_lengths), None

    def start(self, source: Source, source_lengths: Int[Array, "B"] | None, max_length: int) -> Decoding:
        (states, _), _ = self.encode(source, source_lengths)
        prepared = tuple(block.prepare(states, self.config.width, source_lengths) for block in self.decoder)
        return Decoding(self.init_caches(len(source), max_length), (prepared, source_lengths))

    def decode(
        self, target: Int[Array, "B T"], memory: Memory, train: bool, state: Caches | None
    ) -> tuple[Output, Caches | None]:
        """See `Transducer`; the state is the caches of the preceding tokens, if there are any."""
        source, lengths = memory
        first = 0 if state is None else state[0].length
        source_mask = Mask(key_lengths=lengths, query_offset=first)
        x = self.positions_target(self._scaled(look_up(self.embed_target, target)), first)
        x, mask = self.dropout(x, train=train), Mask(causal=True)
        x, state = stack.run(self.decoder, x, mask, train, state, source, source_mask, scan=self.config.scan)
        x = self.decoder_norm(x) if self.config.norm != "post" else x
        tied = self.config.tied_output
        output = Output(x, self.embed_target.embedding, transposed=True) if tied else self.head.output(x)
        return dataclasses.replace(output, bias=self.head_bias) if self.config.output_bias else output, state

    def init_caches(self, batch: int, max_length: int) -> Caches:
        """Makes an empty decode cache for each layer of the decoder; see `TransformerConfig.init_caches`."""
        return self.config.init_caches(batch, max_length, self.target_length, self.dtype, "decoder_attention")

    def _embed_both_sides(self) -> None:
        """Creates `embed` for the source and `embed_target` for the target."""
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
        return self._scaled(look_up(self.embed, source))

    def _scaled(self, x: jax.Array) -> jax.Array:
        return x * self.config.width**0.5 if self.config.scale_embeddings else x
