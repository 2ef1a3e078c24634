"""Analytic operations and exact parameter counts of layers and whole models."""

from typing import Any

import jax

from attention import flops
from attention.flops import Cost
from attention.score import Sizes
from models import mechanisms
from models.gpt import GPTConfig
from models.masked_lm import MaskedLMConfig
from models.mechanisms import Mechanism
from models.text_classifier import TextClassifierConfig
from models.transformer import TransformerConfig
from models.vit import ViTConfig


def parameters(params: Any) -> int:
    """Numbers in a tree of arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def attention_layer(mechanism: Mechanism, length: int, width: int, heads: int) -> Cost:
    """One forward pass of a self-attention layer over one sequence, its projections included."""
    sizes = Sizes(width, heads, width // heads, length)
    cost = mechanism.score.cost(sizes, length, length)
    for piece in ("query", "key", "value", "out"):
        kind = mechanism.query if getattr(mechanism, piece) == "shared" else getattr(mechanism, piece)
        cost += projection(kind, length, width)
    return cost + flops.align(length, heads, width // heads) * (mechanism.align is not None)


def projection(kind: str, tokens: int, width: int) -> Cost:
    """One forward pass of a projection of `models.mechanisms.PROJECTIONS`, D to D."""
    if kind == "linear":
        return flops.linear(tokens, width, width)
    if kind.startswith("mlp"):
        return mlp(tokens, width, 2 * width, width)
    return Cost()


def mlp(length: int, width: int, hidden: int, outputs: int) -> Cost:
    """One forward pass of a two-layer MLP over one sequence; the activation counts one operation a unit."""
    return flops.linear(length, width, hidden) + Cost(length * hidden) + flops.linear(length, hidden, outputs)


def vit(config: ViTConfig, image_shape: tuple[int, int, int], classes: int) -> Cost:
    """One forward pass of one image; LayerNorms and residuals (under 1 %) are left out."""
    length = config.tokens(image_shape)
    pixels = config.patch**2 * image_shape[-1]
    patches = length - (config.pool == "class_token")
    return flops.linear(patches, pixels, config.width) + blocks(config, length) + flops.linear(1, config.width, classes)


def text_classifier(config: TextClassifierConfig, words: int, classes: int) -> Cost:
    """One forward pass of one text of so many tokens; LayerNorms and residuals are left out, and reading embeddings."""
    hidden = config.head_hidden
    head = mlp(1, config.width, hidden, classes) if hidden else flops.linear(1, config.width, classes)
    return blocks(config, config.tokens(words)) + head


def masked_lm(config: MaskedLMConfig, length: int, vocabulary: int) -> Cost:
    """One forward pass of one sequence; LayerNorms and residuals are left out, and reading embeddings."""
    return blocks(config, length) + mlp(length, config.width, config.width, vocabulary)


def gpt(config: GPTConfig, length: int, vocabulary: int) -> Cost:
    """One forward pass of one sequence; LayerNorms and residuals are left out, and reading embeddings."""
    return blocks(config, length) + flops.linear(length, config.width, vocabulary, bias=not config.tied_output)


def blocks(config: TransformerConfig, length: int) -> Cost:
    """One forward pass of all attention layers and MLPs over one sequence."""
    cost = Cost()
    for mechanism in mechanisms.resolve(config.attention, config.depth):
        cost += attention_layer(mechanism, length, config.width, config.heads)
        cost += mlp(length, config.width, config.mlp, config.width)
    return cost
