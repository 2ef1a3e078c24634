"""A decoder-only language model (Radford et al. 2018; DiGiugno §4.1) with any causal mechanism in each layer.

Its fields span GPT-2, BLOOM, Llama, DiffLlama, Mistral, Qwen, Gemma, DeepSeek-V2 and Mamba-2, whose
weights `models.published` loads.
"""

import dataclasses
from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attention import Mask, operations
from attention.operations import Cost
from attention.types import Example, NotNegative
from models.fields import field
from models.layers import stack
from models.layers.cache import Cache
from models.layers.dropout import Dropout
from models.layers.output import Output
from models.layers.positions import ANY, Positions
from models.layers.projections import Dense, look_up
from models.transformer import PRETRAINED, BlockConfig

Caches = tuple[Cache, ...]


@dataclasses.dataclass(frozen=True)
class GPTConfig(BlockConfig):
    """The config of a language model."""

    name: str = "gpt"
    norm_epsilon: float = 1e-5
    positions: Annotated[str, Example("rotary")] = field("rotary", ANY)
    attention_dropout: float = 0.0
    attention_bias: bool = False
    tied_output: bool = field(True, "Whether the embeddings are the output's kernel too; else it has its own.")
    scale_embeddings: bool = field(False, "Whether embeddings are multiplied by √D (Vaswani et al. 2017, §3.4).")
    norm_embedding: bool = field(False, "Whether the embeddings are normed, as in BLOOM.")
    output_bias: bool = field(True, "Whether the output has a bias, if it is not tied.")
    logit_cap: NotNegative = field(0.0, "c of c · tanh(logits / c), as in Gemma 2; 0 is no cap.")
    pretrained: str = field("", PRETRAINED)

    def build(self, vocabulary: int, length: int, dtype: DTypeLike = jnp.float32) -> "GPT":
        return GPT(self, vocabulary, length, dtype)

    def cost(self, vocabulary: int, length: int) -> Cost:
        head = operations.linear(length, self.width, vocabulary, bias=self.output_bias and not self.tied_output)
        return self.cost_of_blocks(length) + head


class GPT(nn.Module):
    """A model from tokens to the logits of the next tokens.

    Its `length` is ℓ, the longest sequence, for parameters of fixed length.
    """

    config: GPTConfig
    vocabulary: int
    length: int
    dtype: DTypeLike = jnp.float32

    def __call__(
        self, tokens: Int[Array, "B T"], train: bool = False, caches: Caches | None = None
    ) -> Float[Array, "B T vocabulary"] | tuple[Float[Array, "B T vocabulary"], Caches]:
        """Computes the logits in float32, and with caches those for the next call too; see `output`."""
        output = self.output(tokens, train, caches)
        return output.logits() if caches is None else (output[0].logits(), output[1])

    @nn.compact
    def output(
        self, tokens: Int[Array, "B T"], train: bool = False, caches: Caches | None = None
    ) -> Output | tuple[Output, Caches]:
        """Computes the output, and with caches those for the next call too.

        Args:
          tokens: The sequences from their start, or with caches the tokens after those in them.
          train: Whether there is dropout.
          caches: The caches from `init_caches` or from the previous call.

        Raises:
          UsageError: there are more than ℓ tokens, and the model has parameters of fixed length.
        """
        config = self.config
        first = 0 if caches is None else caches[0].length
        start = nn.initializers.normal(config.width**-0.5 if config.scale_embeddings else 0.02)
        embed = nn.Embed(self.vocabulary, config.width, dtype=self.dtype, embedding_init=start, name="embed")
        x = look_up(embed, tokens) * (config.width**0.5 if config.scale_embeddings else 1.0)
        x = Positions(config.positions, self.length, name="positions")(x, first)
        x = config.norm_layer(self.dtype, "norm_embedding")(x) if config.norm_embedding else x
        x = Dropout(config.embedding_dropout, name="dropout_embedding")(x, train=train)
        blocks = config.blocks(self.length, self.dtype)
        x, caches = stack.run(blocks, x, Mask(causal=True), train, caches, scan=config.scan)
        x = config.norm_layer(self.dtype, "norm")(x)
        head = Dense((self.vocabulary,), bias=config.output_bias, dtype=self.dtype, name="head")
        output = Output(x, embed.embedding, transposed=True) if config.tied_output else head.output(x)
        output = dataclasses.replace(output, cap=config.logit_cap)
        return output if caches is None else (output, caches)

    def init_caches(self, batch: int, max_length: int) -> Caches:
        """Makes an empty decode cache for each layer; see `TransformerConfig.init_caches`."""
        return self.config.init_caches(batch, max_length, self.length, self.dtype)
