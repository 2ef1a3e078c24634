"""A Transformer encoder that classifies texts, with any attention mechanism in each layer.

Like Hosseini's experiments on reviews, it follows the Keras example "Text classification with Transformer" (Nandan
2020): post-norm blocks, the mean over tokens, and a small dense layer before the classes.
"""

import dataclasses
from typing import Annotated, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attention import Mask, operations
from attention.activations import ACTIVATIONS
from attention.operations import Cost
from attention.types import Count, Example, Names, Sentinel
from models.fields import field
from models.layers import stack
from models.layers.dropout import Dropout
from models.layers.positions import ANY, Positions
from models.layers.projections import Dense, look_up
from models.transformer import TransformerConfig

POOLS = ("mean", "class_token")


@dataclasses.dataclass(frozen=True)
class TextClassifierConfig(TransformerConfig):
    """The config of a classifier of texts."""

    name: str = "text_classifier"
    norm: str = "post"
    positions: Annotated[str, Example("rotary")] = field("learned", ANY)
    activation: str = "relu"
    dropout: float = field(
        0.1, "Rate on the outputs of attention layers and MLPs, and before each layer of the classifier."
    )
    attention_dropout: float = 0.0
    pool: Annotated[str, Names(POOLS)] = field(
        "mean", "What the classifier reads: the `mean` over real tokens, or a `class_token` in front of them."
    )
    head_hidden: Annotated[Count, Sentinel(0, "no such layer")] = field(
        20, "Units of the dense layer before the classes, which has the MLPs' activation."
    )

    DROPS_HIDDEN: ClassVar[bool] = False

    def tokens(self, words: int | Int[Array, "B"]) -> int | Int[Array, "B"]:
        """Counts the tokens of texts with so many words, including a class token if there is one."""
        return words + (self.pool == "class_token")

    def build(self, vocabulary: int, classes: int, length: int, dtype: DTypeLike = jnp.float32) -> "TextClassifier":
        return TextClassifier(self, vocabulary, classes, length, dtype)

    def cost(self, vocabulary: int, classes: int, length: int) -> Cost:
        head = operations.linear(1, self.width, classes)
        if self.head_hidden:
            head = operations.mlp(1, self.width, self.head_hidden, classes)
        return self.cost_of_blocks(self.tokens(length)) + head


class TextClassifier(nn.Module):
    """A model from texts to class logits. Padding affects neither the logits nor any gradient.

    Its `length` is that of the longest text, in tokens, for parameters of fixed length.
    """

    config: TextClassifierConfig
    vocabulary: int
    classes: int
    length: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, tokens: Int[Array, "B L"], lengths: Int[Array, "B"], train: bool = False
    ) -> Float[Array, "B classes"]:
        """Computes the logits in float32.

        Args:
          tokens: Texts with trailing padding.
          lengths: Number of real tokens in each text; the mean over none is zero.
          train: Whether there is dropout.

        Raises:
          UsageError: a text is longer than `length`, and the model has parameters of fixed length.
        """
        config = self.config
        start = nn.initializers.normal(0.02)
        embed = nn.Embed(self.vocabulary, config.width, dtype=self.dtype, embedding_init=start, name="embed")
        x = look_up(embed, tokens)
        if config.pool == "class_token":
            token = self.param("class_token", start, (1, 1, config.width))
            x = jnp.concatenate([jnp.broadcast_to(token.astype(x.dtype), (len(x), 1, config.width)), x], axis=1)
        mask = Mask(key_lengths=config.tokens(lengths))
        x = Positions(config.positions, config.tokens(self.length), name="positions")(x)
        x = mask.without_unreachable(x, x.shape[1], rank=4)
        x = Dropout(config.embedding_dropout, name="dropout_embedding")(x, train=train)
        blocks = config.blocks(config.tokens(self.length), self.dtype)
        x, _ = stack.run(blocks, x, mask, train, scan=config.scan)
        x = config.norm_layer(self.dtype, "norm")(x) if config.norm != "post" else x
        pooled = x[:, 0] if config.pool == "class_token" else mean_of_real(x, lengths)
        return self._classified(pooled, train).astype(jnp.float32)

    def _classified(self, x: Float[Array, "B D"], train: bool) -> Float[Array, "B classes"]:
        config = self.config
        if config.head_hidden:
            x = Dropout(config.dropout, name="dropout_pooled")(x, train=train)
            x = ACTIVATIONS[config.activation](Dense((config.head_hidden,), dtype=self.dtype, name="head_hidden")(x))
        x = Dropout(config.dropout, name="dropout_head")(x, train=train)
        return Dense((self.classes,), dtype=self.dtype, name="head")(x)


def mean_of_real(x: Float[Array, "B L D"], lengths: Int[Array, "B"]) -> Float[Array, "B D"]:
    """Averages each text's first `lengths` tokens, summed at least in float32; zeros for empty texts."""
    real = Mask(key_lengths=lengths).real_keys(x.shape[1])[..., None]
    total = jnp.sum(x, axis=1, where=real, dtype=jnp.promote_types(x.dtype, jnp.float32))
    return (total / jnp.maximum(lengths, 1)[:, None]).astype(x.dtype)
