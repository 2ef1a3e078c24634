"""Analytic operations and exact parameter counts of layers and whole models."""

from typing import Any

import jax

from attention import operations
from attention.operations import Cost
from attention.score import Sizes
from models import mechanisms
from models.cnn import CNNConfig
from models.cnn import resolve as resolve_gates
from models.encoder_decoder import EncoderDecoderConfig
from models.gpt import GPTConfig
from models.masked_lm import MaskedLMConfig
from models.mechanisms import Mechanism
from models.seq2seq import VARIANTS, Seq2SeqConfig
from models.text_classifier import TextClassifierConfig
from models.transformer import TransformerConfig
from models.vit import ViTConfig


def parameters(params: Any) -> int:
    """Numbers in a tree of arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def attention_layer(mechanism: Mechanism, length: int, width: int, heads: int, keys: int | None = None) -> Cost:
    """One forward pass of an attention layer over one sequence, its projections included.

    Args:
      mechanism: Which attention it is.
      length: T.
      width: D.
      heads: N.
      keys: S of a cross-attention; T where it is not given.
    """
    keys = length if keys is None else keys
    sizes = Sizes(width, heads, width // heads, max(length, keys))
    cost = mechanism.score.cost(sizes, length, keys)
    for piece, tokens in (("query", length), ("key", keys), ("value", keys), ("out", length)):
        kind = mechanism.query if getattr(mechanism, piece) == "shared" else getattr(mechanism, piece)
        cost += projection(kind, tokens, width)
    return cost + operations.align(keys, heads, width // heads) * (mechanism.align is not None)


def projection(kind: str, tokens: int, width: int) -> Cost:
    """One forward pass of a projection of `models.mechanisms.PROJECTIONS`, D to D."""
    if kind == "linear":
        return operations.linear(tokens, width, width)
    if kind.startswith("mlp"):
        return mlp(tokens, width, 2 * width, width)
    return Cost()


def mlp(length: int, width: int, hidden: int, outputs: int) -> Cost:
    """One forward pass of a two-layer MLP over one sequence; the activation counts one operation a unit."""
    return (
        operations.linear(length, width, hidden)
        + Cost(pointwise=length * hidden)
        + operations.linear(length, hidden, outputs)
    )


def vit(config: ViTConfig, image_shape: tuple[int, int, int], classes: int) -> Cost:
    """One forward pass of one image; LayerNorms and residuals (under 1 %) are left out."""
    length = config.tokens(image_shape)
    pixels = config.patch**2 * image_shape[-1]
    patches = length - (config.pool == "class_token")
    embed = operations.linear(patches, pixels, config.width).of_data
    return embed + blocks(config, length) + operations.linear(1, config.width, classes)


def cnn(config: CNNConfig, image_shape: tuple[int, int, int], classes: int) -> Cost:
    """One forward pass of one image; norms and residuals are left out."""
    height, width, inputs = image_shape
    cost = operations.convolution(height, width, 3, inputs, config.width).of_data
    for stage, gate in enumerate(resolve_gates(config.attention, config.stages)):
        channels = config.channels(stage)
        if stage:
            cost += operations.convolution(height, width, 2, channels // 2, channels, stride=2)
            height, width = -(-height // 2), -(-width // 2)
        block = operations.convolution(height, width, 3, channels, channels) * 2
        block += Cost(pointwise=2 * height * width * channels)  # ReLU
        block += gate.cost(height, width, channels) if gate else Cost()
        cost += block * config.depth
    return cost + operations.linear(1, config.channels(config.stages - 1), classes)


def text_classifier(config: TextClassifierConfig, words: int, classes: int) -> Cost:
    """One forward pass of one text of so many tokens; LayerNorms and residuals are left out, and reading embeddings."""
    hidden = config.head_hidden
    head = mlp(1, config.width, hidden, classes) if hidden else operations.linear(1, config.width, classes)
    return blocks(config, config.tokens(words)) + head


def masked_lm(config: MaskedLMConfig, length: int, vocabulary: int) -> Cost:
    """One forward pass of one sequence; LayerNorms and residuals are left out, and reading embeddings."""
    return blocks(config, length) + mlp(length, config.width, config.width, vocabulary)


def gpt(config: GPTConfig, length: int, vocabulary: int) -> Cost:
    """One forward pass of one sequence; LayerNorms and residuals are left out, and reading embeddings."""
    return blocks(config, length) + operations.linear(length, config.width, vocabulary, bias=not config.tied_output)


def encoder_decoder(config: EncoderDecoderConfig, source: int, target: int, vocabulary: int) -> Cost:
    """One forward pass of one pair of sentences; LayerNorms and residuals are left out, and reading embeddings.

    Args:
      config: What the model is.
      source: S, tokens of the source.
      target: T, tokens of the target.
      vocabulary: Of the target.
    """
    cost = blocks(config, source) + operations.linear(target, config.width, vocabulary, bias=config.output_bias)
    specs = (config.decoder_attention, config.cross_attention)
    for own, cross in zip(*(mechanisms.resolve(spec, config.decoder_depth) for spec in specs), strict=True):
        cost += attention_layer(own, target, config.width, config.heads)
        cost += attention_layer(cross, target, config.width, config.heads, keys=source)
        cost += mlp(target, config.width, config.mlp, config.width)
    return cost


def seq2seq(config: Seq2SeqConfig, source: int, target: int, vocabulary: int) -> Cost:
    """One forward pass of one pair of sentences, all tokens known; gates' activations are left out.

    Args:
      config: What the model is.
      source: S, tokens of the source.
      target: T, tokens of the target.
      vocabulary: Of the target.
    """
    variant, hidden, gates = VARIANTS[config.attention], config.hidden, 3 if config.cell == "gru" else 4
    compared = config.embedding if variant.encoder_only else hidden
    cost = operations.linear(source, config.embedding + hidden, gates * hidden)
    cost += operations.linear(target, config.embedding + 2 * hidden, gates * hidden)
    if variant.score is None and not variant.fixed:
        cost += operations.linear(target, config.embedding + hidden, source)
        cost += Cost(2 * target * source * hidden, target * source * operations.SOFTMAX_FLOPS)
    if variant.score is not None:
        width = hidden if variant.projected else compared
        cost += variant.score.cost(Sizes(width, 1, width, source), target, source)
        wider = hidden - width  # values are H wide, whatever is compared
        cost += Cost(2 * target * source * wider, bytes=4 * (target + source) * wider)
    if variant.projected:
        cost += operations.matmul(target, compared, hidden) + operations.matmul(source, compared, hidden)
        cost += operations.matmul(source, hidden, hidden)
    return cost + operations.linear(target, hidden, vocabulary)


def blocks(config: TransformerConfig, length: int) -> Cost:
    """One forward pass of all attention layers and MLPs over one sequence."""
    cost = Cost()
    for mechanism in mechanisms.resolve(config.attention, config.depth):
        cost += attention_layer(mechanism, length, config.width, config.heads)
        cost += mlp(length, config.width, config.mlp, config.width)
    return cost
