"""The attention of trained models: the weights of every layer and head for a given input, and their rollout."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jaxtyping import Array, Float, Int

from attention import Mask, align_values
from attention.errors import UsageError, check_known
from models.layers.attention_weights import attention_weights, output_and_weights
from train.config.schema import Config
from train.data import tokenisers
from train.data.pipeline import Example
from train.decode import alignment, trained
from train.decode.translator import Translator
from train.generation.decoding import translate
from train.generation.search import Search
from train.run import workdir
from train.tasks.task import Task

TEXT_TASKS = ("language_modelling", "masked_language_modelling", "text_classification")


@dataclasses.dataclass(frozen=True)
class ImageMaps:
    """How much a Vision Transformer attends to each patch of some images.

    Attributes:
      images: The model's inputs, scaled to [0, 1].
      labels: The images' classes.
      predictions: The classes with the highest logits.
      layers: The class token's weights in each layer; without a class token, the mean over all tokens.
      rollout: The same for the attention rollout up to and including each layer.
    """

    images: Float[np.ndarray, "B H W C"]
    labels: tuple[int, ...]
    predictions: tuple[int, ...]
    layers: tuple[Float[np.ndarray, "B N h w"], ...]
    rollout: tuple[Float[np.ndarray, "B h w"], ...]


@dataclasses.dataclass(frozen=True)
class TextMaps:
    """How much each token of one text attends to each other token, in one stack of layers.

    Attributes:
      rows: The T tokens that attend (queries).
      columns: The S tokens that are attended to (keys).
      layers: The weights by their layer's path.
      mixed: The weights' `mixing`; the weights themselves in layers that align no values.
      rollout: The rollout up to and including each layer, for self-attention only.
      causal: Whether no token attends to later ones.
    """

    rows: list[str]
    columns: list[str]
    layers: dict[str, Float[np.ndarray, "N T S"]]
    mixed: dict[str, Float[np.ndarray, "N T S"]]
    rollout: list[Float[np.ndarray, "T T"]]
    causal: bool = False

    @classmethod
    def of(
        cls,
        rows: list[str],
        columns: list[str],
        weights: Mapping[str, Float[Array, "N T S"]],
        params: dict[str, Any],
        causal: bool = False,
        *,
        rolls: bool = True,
    ) -> "TextMaps":
        """Makes the maps from layers' weights by path, and the model's parameters."""
        layers = {path: np.asarray(layer) for path, layer in weights.items()}
        mixed = mixings(layers, params, causal)
        return cls(rows, columns, layers, mixed, rollout([*mixed.values()]) if rolls else [], causal)


def rollout(layers: Sequence[Float[np.ndarray, "... N T T"]]) -> list[Float[np.ndarray, "... T T"]]:
    """Computes how much of each token reaches each token, up to and including each layer (Abnar and Zuidema 2020, §3).

    A layer's matrix is the average of the identity, for the residual connection, and the mean over heads with rows
    normalised to sum to 1. A row without any allowed key is the identity's. Weights that W^A makes negative count by
    their absolute values.

    Args:
      layers: The weights of each layer, or their `mixing`.
    """
    identity = np.eye(layers[0].shape[-1])
    total, rolled = identity, []
    for weights in layers:
        mixed = np.abs(weights).mean(axis=-3)
        sums = mixed.sum(axis=-1, keepdims=True)
        mixed = np.where(sums > 0, mixed / np.where(sums > 0, sums, 1.0), identity)
        total = (0.5 * mixed + 0.5 * identity) @ total
        rolled.append(total)
    return rolled


def mixing(
    weights: Float[Array, "*B N T S"], kernel: Float[Array, "*N L L"] | None, *, causal: bool = False
) -> Float[Array, "*B N T S"]:
    """Computes how each token mixes the values of others: the weights, times W^A if the layer aligns values.

    Args:
      kernel: The layer's W^A, or None.
      causal: Whether W^A is made lower-triangular.
    """
    if kernel is None:
        return weights
    heads, keys = weights.shape[-3], weights.shape[-1]
    origins = jnp.broadcast_to(jnp.eye(keys)[:, None], (keys, heads, keys))  # values that show their origin
    aligned = align_values(origins, kernel, mask=Mask(causal=causal))
    return jnp.einsum("...nts,snu->...ntu", weights, aligned)


def of_images(directory: Path, examples: Sequence[int], split: str = "test", step: str = "best") -> ImageMaps:
    """Collects what a Vision Transformer attends to on examples of its data.

    Args:
      directory: The work directory of a run of the task `image_classification`.
      examples: The examples' indices in the split.
      split: `train`, `validation` or `test`; transformed as for evaluation.
      step: `best` (needs a finished run), `last` or a step that has a checkpoint.

    Raises:
      UsageError: There is no such run, checkpoint or example.
    """
    config = trained.config_of(directory, "image_classification", "look at images")
    task, params = trained.load(directory, step)
    records = examples_of(task, split, examples)
    images = np.stack([record["image"] for record in records])
    logits, weights = output_and_weights(task.model, params, jnp.asarray(images))
    class_token = config.model.pool == "class_token"
    grid = tuple(size // config.model.patch for size in images.shape[1:3])
    rolled = rollout([*mixings(weights, params).values()])
    return ImageMaps(
        images=scaled(images),
        labels=tuple(int(record["label"]) for record in records),
        predictions=tuple(np.argmax(logits, axis=-1).tolist()),
        layers=tuple(_looked_at(np.asarray(layer), class_token, grid) for layer in weights.values()),
        rollout=tuple(_looked_at(layer, class_token, grid) for layer in rolled),
    )


@dataclasses.dataclass(frozen=True)
class CaptionMaps:
    """How much each word of a caption attends to each place of its image.

    Attributes:
      image: The model's input, scaled to [0, 1].
      words: The caption that the model writes, end token included.
      looks: A map for each word: the weights of the last cross-attention, mean over heads.
    """

    image: Float[np.ndarray, "H W C"]
    words: list[str]
    looks: Float[np.ndarray, "T h w"]


def of_captions(directory: Path, examples: Sequence[int], split: str = "test", step: str = "best") -> list[CaptionMaps]:
    """Collects what a captioning model attends to while it captions examples of its data; see `of_images`.

    Raises:
      UsageError: There is no such run, checkpoint or example, or its cross-attention has no weights.
    """
    config = trained.config_of(directory, "captioning", "write captions of images")
    task, params = trained.load(directory, step)
    tokeniser, grid = task.corpus.tokeniser, config.model.images.grid(task.sizes[0])
    maps = []
    for record in examples_of(task, split, examples):
        image = jnp.asarray(record["image"])[None]
        special = tokenisers.marks(tokeniser.special)
        output, _ = translate(
            task.model, params, image, None, Search.configured(config.data), jax.random.key(0), **special
        )
        ids = np.asarray(output.tokens[0, : int(output.lengths[0])])
        read = jnp.asarray(np.append(tokeniser.special["start"], ids[:-1]))[None]
        weights = alignment.of_last_cross(attention_weights(task.model, params, image, None, read))
        maps.append(CaptionMaps(scaled(image)[0], alignment.words(tokeniser, ids), weights.reshape(-1, *grid)))
    return maps


def examples_of(task: Task, split: str, indices: Sequence[int]) -> list[Example]:
    """Takes examples as for evaluation; raises a UsageError if there is no such split or example."""
    check_indices(task, split, indices)
    return [task.sources[split].evaluate(index) for index in indices]


def check_indices(task: Task, split: str, indices: Sequence[int]) -> None:
    """Raises a UsageError if the task has no such split, or the split no such example."""
    check_known("split", split, task.sources)
    number = task.eval_examples(split)
    if wrong := [index for index in indices if not 0 <= index < number]:
        raise UsageError(f"There is no example {wrong[0]} of {split}; there are 0 to {number - 1}.")


def of_text(directory: Path, text: str, step: str = "best") -> TextMaps:
    """Collects what a model of text attends to: a GPT, a masked language model or a classifier.

    Args:
      directory: The work directory of the model's run.
      text: A text no longer than the run's context.
      step: See `of_images`.

    Raises:
      UsageError: There is no such run or checkpoint, it has another task, or the text has no tokens or too many.
    """
    config = workdir.load_config(directory)
    if config.task not in TEXT_TASKS:
        raise UsageError(
            f"{directory} is a run of {config.task}; only {', '.join(TEXT_TASKS)} and translation take a text."
        )
    task, params = trained.load(directory, step)
    return of_tokens(config, task, params, encoded(config, task, text))[0]


def encoded(config: Config, task: Task, text: str) -> Int[np.ndarray, " n"]:
    """Encodes a text as tokens; raises a UsageError if there are none, or more than the model was trained for."""
    ids = task.corpus.tokeniser.encode(text)
    if not 1 <= len(ids) <= config.data.context:
        raise UsageError(
            f"{text[:40]!r} has {len(ids)} tokens, but it must have 1 to {config.data.context}, the context that the "
            "model was trained with."
        )
    return ids


def of_tokens(
    config: Config, task: Task, params: dict[str, Any], ids: Int[np.ndarray, " n"]
) -> tuple[TextMaps, Float[Array, "..."]]:
    """Collects what a model of text attends to while it reads some tokens, and its logits."""
    inputs = task.inputs({"tokens": jnp.asarray(ids)[None], "length": jnp.array([len(ids)])})
    logits, weights = output_and_weights(task.model, params, *inputs)
    words = alignment.words(task.corpus.tokeniser, ids)
    if next(iter(weights.values())).shape[-1] > len(words):
        words = ["<class>", *words]
    by_path = {path: layer[0] for path, layer in weights.items()}
    return TextMaps.of(words, words, by_path, params, config.task == "language_modelling"), logits[0]


STACKS = ("cross", "encoder", "decoder")


def of_translation(directory: Path, text: str, stack: str = "cross", step: str = "best") -> TextMaps:
    """Collects what an encoder-decoder attends to while it translates a text.

    Args:
      directory: The work directory of a run of the task `translation`.
      text: A text no longer than the model accepts.
      stack: `cross` (the target attends to the source), `encoder` or `decoder` (self-attention).
      step: See `of_images`.

    Raises:
      UsageError: There is no such run or checkpoint, the text is too long, or the model lacks the stack.
    """
    maps = of_translator(Translator.load(directory, step), text)
    if stack not in maps:
        raise UsageError(f"{directory} has no attention weights of its {stack}; choose {' or '.join(sorted(maps))}.")
    return maps[stack]


def of_translator(translator: Translator, text: str) -> dict[str, TextMaps]:
    """Collects what an encoder-decoder attends to while it translates a text, by stack; see `of_translation`."""
    source = translator.encode(text)
    if source is None:
        longest = translator.config.data.source_length
        raise UsageError(
            f"{text[:40]!r} has more than the {longest} tokens that the model was trained for; shorten it."
        )
    (target,) = translator.tokens([text], Search.configured(translator.config.data))
    read = np.append(translator.target.special["start"], target[:-1])
    weights = alignment.layers(translator.model, translator.params, source, read)
    reads, writes = alignment.words(translator.source, source), alignment.words(translator.target, target)
    sides = {"cross": (writes, reads), "encoder": (reads, reads), "decoder": (writes, ["<s>", *writes[:-1]])}
    by_stack = {stack: {p: layer[0] for p, layer in weights.items() if _stack_of(p) == stack} for stack in STACKS}
    return {
        stack: TextMaps.of(*sides[stack], layers, translator.params, stack == "decoder", rolls=stack != "cross")
        for stack, layers in by_stack.items()
        if layers
    }


def mixings(
    weights: Mapping[str, Float[Array, "*B N T S"]], params: dict[str, Any], causal: bool = False
) -> dict[str, Float[np.ndarray, "*B N T S"]]:
    """Computes the `mixing` of each layer by its path, with the parameters' W^A."""
    arrays = traverse_util.flatten_dict(params, sep="/")
    kernels = {path: arrays.get(f"{path}/align_kernel") for path in weights}
    return {path: np.asarray(mixing(layer, kernels[path], causal=causal)) for path, layer in weights.items()}


def _looked_at(weights: np.ndarray, class_token: bool, grid: tuple[int, int]) -> np.ndarray:
    """Reduces weights `(..., T, T)` to the attention that each patch receives, `(..., h, w)`."""
    row = weights[..., 0, 1:] if class_token else weights.mean(axis=-2)
    return row.reshape(*row.shape[:-1], *grid)


def scaled(images: Float[np.ndarray, "B H W C"]) -> Float[np.ndarray, "B H W C"]:
    """Scales images so that their values fill [0, 1]."""
    low, high = images.min(axis=(1, 2, 3), keepdims=True), images.max(axis=(1, 2, 3), keepdims=True)
    return (images - low) / np.where(high > low, high - low, 1.0)


def _stack_of(path: str) -> str:
    return path.split("_")[0] if path.endswith("/attention") else "cross"
