"""The attention of a trained model on examples: every layer, head and pair of tokens."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from analysis.explore import patterns
from analysis.pictures import attention_maps
from analysis.pictures.attention_maps import TextMaps
from attention.errors import UsageError
from models.layers.attention_weights import output_and_weights
from train.config.schema import Config
from train.decode import alignment, trained
from train.decode.translator import Translator
from train.run import workdir
from train.tasks.task import Task

TITLE = 60  # longest title of an example, in characters
LIKELY = 3  # number of most likely tokens that are named
TWICE = "random tokens, twice (shows induction)"
SAMPLE = 1 << 16  # ids of a split from which random tokens are drawn
NAMES = {"cross": "target to source", "encoder": "encoder", "decoder": "decoder", "self": "self-attention"}


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The examples and the checkpoint to look at.

    Attributes:
      texts: Texts; without any, examples are taken from the run's data.
      indices: The examples' indices in the split.
      split: `train`, `validation` or `test`.
      tokens: Most tokens taken from a text of the data.
      step: `best` (needs a finished run), `last` or a step that has a checkpoint.
    """

    texts: tuple[str, ...] = ()
    indices: tuple[int, ...] = (0, 1, 2)
    split: str = "test"
    tokens: int = 64
    step: str = "best"

    def of_task(self, directory: Path) -> "Wanted":
        """Drops the texts if the run's model does not read texts, or translates them."""
        task = workdir.load_config(directory).task
        return self if task in attention_maps.TEXT_TASKS else dataclasses.replace(self, texts=())


@dataclasses.dataclass(frozen=True)
class Look:
    """What a model attends to on one example.

    Attributes:
      title: The example in a few words.
      maps: The weights by stack; tokens of a Vision Transformer are patches.
      image: The model's input, scaled to [0, 1]; None for texts.
      grid: The image's numbers of patches, vertically and horizontally.
      note: A sentence on the model's output.
      expected: A sentence for each token on what a language model expects after it or in its place.
    """

    title: str
    maps: dict[str, TextMaps]
    image: Float[np.ndarray, "H W C"] | None = None
    grid: tuple[int, int] = (0, 0)
    note: str = ""
    expected: list[str] = dataclasses.field(default_factory=list)

    @property
    def read(self) -> list[str]:
        """The tokens that the model reads; runs that see the same example read the same tokens."""
        return next(maps for name, maps in self.maps.items() if name != NAMES["decoder"]).columns

    def pairs(self, maps: TextMaps) -> patterns.Pairs:
        """Finds the pairs of each pattern in a stack."""
        if self.image is not None:
            return patterns.of_patches(self.grid, len(maps.rows) > self.grid[0] * self.grid[1])
        return patterns.of_tokens(maps.rows, maps.columns, maps.causal, cross=not maps.rollout)


@dataclasses.dataclass(frozen=True)
class Looks:
    """What a run's model attends to on each example."""

    directory: Path
    config: Config
    examples: list[Look]

    @property
    def given(self) -> list[Look]:
        """The examples without the random tokens."""
        return [look for look in self.examples if look.title != _short(TWICE)]


def of_run(directory: Path, wanted: Wanted) -> Looks:
    """Collects what a run's model attends to.

    Raises:
      UsageError: There is no such run, checkpoint or example, a text has no tokens or too many, or the model has no
        attention between tokens.
    """
    config = workdir.load_config(directory)
    if config.task == "image_classification" and wanted.texts:
        raise UsageError(f"{directory} is a run of {config.task}; give --examples in place of --text.")
    if config.task == "captioning":
        raise UsageError(
            f"{directory} is a run of captioning, which no page shows; python -m analysis.pictures attention does."
        )
    looks = {"image_classification": _images, "translation": _translations}.get(config.task, _texts)
    return Looks(directory, config, looks(directory, config, wanted))


def alike(runs: Sequence[Looks]) -> Sequence[Looks]:
    """Checks that all runs see the same examples, and drops random tokens if these differ, as contexts may.

    Raises:
      UsageError: The runs differ in an example, or in the task.
    """
    first, *others = runs
    for other in others:
        if other.config.task != first.config.task:
            raise UsageError(
                f"{first.directory} is a run of {first.config.task} and {other.directory} of {other.config.task}; runs "
                "shown side by side need the same task."
            )
        for a, b in zip(first.given, other.given, strict=True):
            if (a.title, a.read, a.grid) != (b.title, b.read, b.grid):
                raise UsageError(
                    f"{first.directory} and {other.directory} do not read {a.title!r} as the same tokens; runs shown "
                    "side by side need the same data and the same tokeniser or patches."
                )
    random = [[look.read for look in run.examples if look.title == _short(TWICE)] for run in runs]
    if all(read == random[0] for read in random):
        return runs
    return [dataclasses.replace(run, examples=run.given) for run in runs]


def by_mechanism(runs: Sequence[Looks]) -> dict[str, list[Looks]]:
    """Groups runs by mechanism, with one run of every task each, and drops random tokens.

    Raises:
      UsageError: A mechanism has two runs of a task or none, or runs of a task differ in an example.
    """
    by_task: dict[str, dict[str, Looks]] = {}
    for run in runs:
        of_task = by_task.setdefault(run.config.task, {})
        if (same := of_task.setdefault(run.config.model.attention, run)) is not run:
            raise UsageError(
                f"{same.directory} and {run.directory} are both runs of {run.config.task} with "
                f"{run.config.model.attention}; leave one of them out."
            )
    names = list(dict.fromkeys(run.config.model.attention for run in runs))
    for task, of_task in by_task.items():
        alike([*of_task.values()])
        if missing := [name for name in names if name not in of_task]:
            raise UsageError(f"No run of {task} has {missing[0]}, unlike another task; add one, or leave it out.")
    return {
        name: [dataclasses.replace(of_task[name], examples=of_task[name].given) for of_task in by_task.values()]
        for name in names
    }


def _images(directory: Path, config: Config, wanted: Wanted) -> list[Look]:
    task, params = trained.load(directory, wanted.step)
    records = attention_maps.examples_of(task, wanted.split, wanted.indices)
    images = np.stack([record["image"] for record in records])
    logits, by_path = output_and_weights(task.model, params, jnp.asarray(images))
    grid = tuple(size // config.model.patch for size in images.shape[1:3])
    names = [f"row {row + 1}, column {column + 1}" for row, column in np.ndindex(grid)]
    names = ["class token", *names] if config.model.pool == "class_token" else names
    return [
        Look(
            f"{wanted.split} {index}: {_class(task, int(record['label']))}",
            _stacks({"self": TextMaps.of(names, names, {path: w[place] for path, w in by_path.items()}, params)}),
            attention_maps.scaled(images[place : place + 1])[0],
            grid,
            _verdict(task, logits[place]),
        )
        for place, (index, record) in enumerate(zip(wanted.indices, records, strict=True))
    ]


def _texts(directory: Path, config: Config, wanted: Wanted) -> list[Look]:
    task, params = trained.load(directory, wanted.step)
    decode = task.corpus.tokeniser.decode
    if wanted.texts:
        read = {text: attention_maps.encoded(config, task, text) for text in wanted.texts}
    else:
        records = attention_maps.examples_of(task, wanted.split, wanted.indices)
        cut = [record["tokens"][: min(wanted.tokens, int(record.get("length", wanted.tokens)))] for record in records]
        read = {f"{wanted.split} {index}: {decode(ids)}": ids for index, ids in zip(wanted.indices, cut, strict=True)}
    if config.task == "language_modelling" and config.data.context > 3:
        read[TWICE] = _twice(task, min(wanted.tokens, config.data.context) // 2)
    return [_of_text(config, task, params, title, ids) for title, ids in read.items()]


def _of_text(config: Config, task: Task, params: dict[str, Any], title: str, ids: Int[np.ndarray, " n"]) -> Look:
    maps, logits = attention_maps.of_tokens(config, task, params, ids)
    stacks = _stacks({"self": maps})
    if config.task == "text_classification":
        return Look(_short(title), stacks, note=_verdict(task, logits))
    place = "Next" if config.task == "language_modelling" else "There"
    return Look(_short(title), stacks, expected=[f"{place} it expects {row}." for row in _likely(task, logits)])


def _likely(task: Task, logits: Float[Array, "T V"]) -> list[str]:
    """Writes the most likely tokens at each position."""
    chances, ids = (np.asarray(x) for x in jax.lax.top_k(jax.nn.softmax(logits), min(LIKELY, logits.shape[-1])))
    words = alignment.words(task.corpus.tokeniser, ids.ravel())
    named = [f"“{word}” {chance:.0%}" for word, chance in zip(words, chances.ravel(), strict=True)]
    return [", ".join(row) for row in np.reshape(np.array(named, dtype=object), ids.shape).tolist()]


def _verdict(task: Task, logits: Float[Array, " C"]) -> str:
    chances = np.asarray(jax.nn.softmax(logits))
    return f"The model says {_class(task, int(chances.argmax()))}, with {chances.max():.0%}."


def _class(task: Task, number: int) -> str:
    return task.class_names[number] if task.class_names else f"class {number}"


def _twice(task: Task, number: int) -> Int[np.ndarray, " n"]:
    """Draws random tokens and repeats them; induction heads show on these (Olsson et al. 2022)."""
    ids = np.unique(task.corpus.splits["test"].ids[:SAMPLE])
    return np.tile(np.random.default_rng(0).choice(ids, number), 2).astype(np.int32)


def _translations(directory: Path, config: Config, wanted: Wanted) -> list[Look]:
    if wanted.texts:
        translator, texts = Translator.load(directory, wanted.step), wanted.texts
    else:
        task, params = trained.load(directory, wanted.step)
        tokenisers = task.corpus.tokenisers
        translator = Translator(config, tokenisers["source"], tokenisers["target"], task.model, params)
        attention_maps.check_indices(task, wanted.split, wanted.indices)
        source = task.sources[wanted.split]
        rows = [source.split.row(int(source.fitting[index]))[0] for index in wanted.indices]
        texts = [translator.source.decode(ids) for ids in rows]
    looks = []
    for text in texts:
        maps = attention_maps.of_translator(translator, text)
        written = "".join(maps["cross"].rows[:-1]).replace("␣", " ")
        looks.append(Look(_short(text), _stacks(maps), note=f"The model writes: {written}"))
    return looks


def _stacks(maps: dict[str, TextMaps]) -> dict[str, TextMaps]:
    """Names the maps of each stack, and adds those multiplied by W^A if some layer aligns values."""
    stacks = {NAMES[stack]: kept for stack, kept in maps.items()}
    for name, kept in [*stacks.items()]:
        if any(kept.mixed[path] is not layer for path, layer in kept.layers.items()):
            stacks[f"{name}, times W^A"] = dataclasses.replace(kept, layers=kept.mixed)
    return stacks


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TITLE else f"{line[: TITLE - 1]}…"
