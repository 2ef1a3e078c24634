"""A bidirectional encoder that predicts masked tokens, with any mechanism in each layer.

It is RoBERTa (Liu et al. 2019), and with other fields BERT (Devlin et al. 2019) or ModernBERT (Warner et al. 2024).
"""

import dataclasses
from typing import Annotated, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attention import Mask, operations
from attention.activations import gelu
from attention.errors import UsageError
from attention.operations import Cost
from attention.types import Example, Size
from models.fields import field
from models.layers import stack
from models.layers.dropout import Dropout
from models.layers.output import Output
from models.layers.positions import ANY, Positions, after_padding, check_learned
from models.layers.projections import Dense, look_up
from models.transformer import PRETRAINED, BlockConfig

INITIAL = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class MaskedLMConfig(BlockConfig):
    """The config of a masked language model.

    RoBERTa is `post`, `learned`, `gelu`, with ε = 1e-5. BERT is the same without `skip_padding`, with ε = 1e-12.
    ModernBERT is `pre`, `gated`, without biases, token types and `norm_first`, with rotary positions and windows.
    """

    name: str = "masked_lm"
    norm: str = "post"
    norm_epsilon: float = 1e-5
    positions: Annotated[str, Example("rotary")] = field("learned", ANY)
    embedding_dropout: float = 0.1
    dropout: float = field(0.1, "Rate on the outputs of attention layers and MLPs.")
    padding_token: Size = field(1, "Id of the padding token; 1 in RoBERTa, 0 in BERT.")
    skip_padding: bool = field(
        True,
        "Whether learned positions count real tokens only, after the position of padding, as in RoBERTa; else they "
        "count all tokens from 0, as in BERT.",
    )
    token_types: Size = field(
        1,
        "Number of token types, each with an embedding; 1 in RoBERTa, whose tokens are all of type 0; 0 leaves the "
        "embeddings out.",
    )
    norm_first: bool = field(
        True, "Whether the first block norms its attention's inputs; not in ModernBERT, which norms the embeddings."
    )
    pretrained: str = field("", PRETRAINED)

    DROPS_HIDDEN: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        if self.norm == "post" and not self.norm_first:
            raise UsageError("model.norm_first=False is for norms before layers; set model.norm=pre or sandwich.")

    def build(self, vocabulary: int, length: int, dtype: DTypeLike = jnp.float32) -> "MaskedLM":
        return MaskedLM(self, vocabulary, length, dtype)

    def cost(self, vocabulary: int, length: int) -> Cost:
        return self.cost_of_blocks(length) + operations.mlp(length, self.width, self.width, vocabulary)


class MaskedLM(nn.Module):
    """A model from partly masked tokens to the logits of the original tokens.

    Its `length` is ℓ, the longest sequence, for parameters of fixed length; 512 in RoBERTa.
    """

    config: MaskedLMConfig
    vocabulary: int
    length: int
    dtype: DTypeLike = jnp.float32

    def __call__(
        self,
        tokens: Int[Array, "B L"],
        mask: Mask | None = None,
        train: bool = False,
        types: Int[Array, "B L"] | None = None,
    ) -> Float[Array, "B L vocabulary"]:
        """Computes the logits in float32; see `output`."""
        return self.output(tokens, mask, train, types).logits()

    @nn.compact
    def output(
        self,
        tokens: Int[Array, "B L"],
        mask: Mask | None = None,
        train: bool = False,
        types: Int[Array, "B L"] | None = None,
    ) -> Output:
        """Computes the output; the logits at padding are meaningless.

        Args:
          tokens: The sequences.
          mask: `Mask(key_lengths=lengths)` for trailing padding, or `Mask(dense=real[:, None, None, :])` with True at
            real tokens. Without a mask, tokens also attend to padding, as in the published models.
          train: Whether there is dropout.
          types: The type of each token; 0 by default.

        Raises:
          UsageError: there are more than ℓ tokens, and the model has parameters of fixed length; or types are given,
            and the model has none.
        """
        config, mask = self.config, mask or Mask()
        embed = nn.Embed(self.vocabulary, config.width, dtype=self.dtype, embedding_init=INITIAL, name="embed")
        x = self._typed(self._positioned(look_up(embed, tokens), tokens), types)
        x = mask.without_unreachable(x, tokens.shape[1], rank=4)
        x = config.norm_layer(self.dtype, "norm_embedding")(x)
        x = Dropout(config.embedding_dropout, name="dropout_embedding")(x, train=train)
        x, _ = stack.run(config.blocks(self.length, self.dtype), x, mask, train, scan=config.scan)
        x = config.norm_layer(self.dtype, "norm")(x) if config.norm != "post" else x
        return Head(config, self.dtype, name="head")(x, embed)

    def _typed(self, x: Float[Array, "B L D"], types: Int[Array, "B L"] | None) -> Float[Array, "B L D"]:
        """Adds the embeddings of the tokens' types, which are 0 by default."""
        kinds = self.config.token_types
        if not kinds:
            if types is not None:
                raise UsageError("model.token_types is 0, so tokens have no types; leave them out.")
            return x
        table = nn.Embed(kinds, x.shape[-1], dtype=self.dtype, embedding_init=INITIAL, name="token_types")
        return x + table(jnp.zeros(x.shape[:2], jnp.int32) if types is None else types)

    def _positioned(self, x: Float[Array, "B L D"], tokens: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        """Adds positions to embeddings; RoBERTa's count real tokens, all others every token."""
        config = self.config
        if config.positions != "learned" or not config.skip_padding:
            return Positions(config.positions, self.length, name="positions")(x)
        check_learned(tokens.shape[1], self.length)
        rows = config.padding_token + 1 + self.length
        table = nn.Embed(rows, config.width, dtype=self.dtype, embedding_init=INITIAL, name="positions")
        return x + look_up(table, after_padding(tokens, config.padding_token))


class Head(nn.Module):
    """A dense layer, GELU, a norm, and the output: the embeddings as its kernel, and a bias."""

    config: MaskedLMConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"], embed: nn.Embed) -> Output:
        """Computes what precedes the product with the embeddings."""
        x = gelu(Dense((x.shape[-1],), dtype=self.dtype, name="dense")(x))
        x = self.config.norm_layer(self.dtype, "norm")(x)
        bias = self.param("bias", nn.initializers.zeros_init(), (embed.num_embeddings,))
        return Output(x, embed.embedding, bias.astype(self.dtype), transposed=True)
