"""The base of models that write a target for a source, such as a translation."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from models.config import ModelConfig
from models.layers.cache import Decoding
from models.layers.output import Output

Source = Int[Array, "B S"] | Float[Array, "B H W C"]  # tokens, or the images of `models.captioner`


class Transducer(nn.Module):
    """A model from sources and preceding target tokens to the logits of the next tokens.

    A source's padding does not affect logits. A target's padding follows its real tokens, which do not see it. A
    subclass defines `encode`, `start` and `decode`.

    Parameters of fixed length are built for the longest source and the longest target. Tables over pairs of positions
    in cross-attention are square, as long as the longer of both.
    """

    config: ModelConfig
    source_vocabulary: int
    target_vocabulary: int
    source_length: int
    target_length: int
    dtype: DTypeLike = jnp.float32

    def __call__(
        self, source: Source, source_lengths: Int[Array, "B"] | None, target: Int[Array, "B T"], train: bool = False
    ) -> Float[Array, "B T vocabulary"]:
        """Computes the logits, in float32, of the token after each target token; see `output`."""
        return self.output(source, source_lengths, target, train).logits()

    def output(
        self, source: Source, source_lengths: Int[Array, "B"] | None, target: Int[Array, "B T"], train: bool = False
    ) -> Output:
        """Computes the output for the token after each target token.

        Args:
          source: Sentences with trailing padding, or images.
          source_lengths: Number of real tokens in each, at least one; None means all.
          target: The start token, then the known tokens of the target.
          train: Whether there is dropout.

        Raises:
          UsageError: there are more tokens than a length, and the model has parameters of fixed length.
        """
        memory, state = self.encode(source, source_lengths, train)
        return self.decode(target, memory, train, state)[0]

    def encode(self, source: Source, source_lengths: Int[Array, "B"] | None, train: bool = False) -> tuple[Any, Any]:
        """Computes what the decoder reads of sources, and its state before any token; padding affects neither."""
        raise NotImplementedError

    def start(self, source: Source, source_lengths: Int[Array, "B"] | None, max_length: int) -> Decoding:
        """Encodes sources for `step`, which then takes at most `max_length` target tokens in all; see `output`."""
        raise NotImplementedError

    def decode(self, target: Int[Array, "B T"], memory: Any, train: bool, state: Any) -> tuple[Output, Any]:
        """Computes the output for the token after each target token, and the state after them.

        Args:
          target: The targets from their start, or the tokens after those that the state has seen.
          memory: What the decoder reads of the sources, from `encode` or `start`.
          train: Whether there is dropout.
          state: The decoder's state, from `encode`, `start` or the previous call.
        """
        raise NotImplementedError

    def step(
        self, tokens: Int[Array, "B T"], train: bool, caches: Decoding
    ) -> tuple[Float[Array, "B T vocabulary"], Decoding]:
        """Computes the logits of the token after each given token, and the state for the next call."""
        output, target = self.decode(tokens, caches.source, train, caches.target)
        return output.logits(), dataclasses.replace(caches, target=target)
