"""Translation of sentences and of files with a run's model."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from train.cli.files import check_place, writing
from train.config.schema import Config
from train.data import tokenisers
from train.data.sources import lines
from train.data.text.examples import cut
from train.decode import alignment, trained
from train.generation.decoding import translate
from train.generation.search import Search
from train.run import workdir

BATCH = 32  # sentences in a batch


@dataclasses.dataclass(frozen=True)
class Translator:
    """A trained model of translation."""

    config: Config
    source: tokenisers.Tokeniser
    target: tokenisers.Tokeniser
    model: nn.Module
    params: dict

    @classmethod
    def load(cls, directory: Path, step: str = "best", replica: int = 0) -> "Translator":
        """Loads a run's model; see `trained.load_params`."""
        config = trained.config_of(directory, "translation", "translate")
        names = ("source_tokeniser.json", "target_tokeniser.json")
        source, target = (tokenisers.loads(workdir.read_file(directory, name)) for name in names)
        sizes = (source.size, target.size, config.data.source_length, config.data.target_length)
        example = (np.zeros((1, 1), np.int32), np.ones(1, np.int32), np.zeros((1, 1), np.int32))
        embeddings = {"embed": (names[0], source.size), "embed_target": (names[1], target.size)}
        if getattr(config.model, "shared_embeddings", False):
            del embeddings["embed_target"]
        loaded = trained.load_model(directory, step, replica, config, sizes, example, embeddings)
        return cls(config, source, target, *loaded)

    def encode(self, text: str) -> np.ndarray | None:
        """Encodes a sentence, with the end token; returns None where it is longer than the model was trained for."""
        ids = np.append(self.source.encode(text), self.source.special["end"])
        return ids if len(ids) <= self.config.data.source_length else None

    def translations(self, texts: Iterable[str], search: Search, seed: int = 0) -> Iterator[str | None]:
        """Yields each text's translation, in order; None where a text is too long. See `tokens`."""
        for ids in self.tokens(texts, search, seed):
            yield None if ids is None else self.target.decode(ids)

    def tokens(self, texts: Iterable[str], search: Search, seed: int = 0) -> Iterator[np.ndarray | None]:
        """Yields the tokens of each text's translation, with the end token; None where a text is too long.

        Texts are read as they are needed. The translation of an empty text is the end token alone.
        """
        key, left = trained.key_of(seed), iter(texts)
        for number, batch in enumerate(iter(lambda: list(itertools.islice(left, BATCH)), [])):
            encoded = [self.encode(text) for text in batch]
            translated = self._translated(encoded, search, jax.random.fold_in(key, number))
            for text, ids in zip(batch, translated, strict=True):
                yield ids if text.strip() else np.array([self.target.special["end"]], np.int32)

    def align(self, text: str, ids: np.ndarray) -> alignment.Alignment:
        """Measures how much each token of a translation attends to each token of its source text."""
        source = self.encode(text)
        tokens = np.append(self.target.special["start"], ids[:-1])
        words = alignment.words
        weights = alignment.of_last_cross(alignment.layers(self.model, self.params, source, tokens))
        return alignment.Alignment(words(self.source, source), words(self.target, ids), weights)

    def _translated(
        self, encoded: list[np.ndarray | None], search: Search, key: jax.Array
    ) -> Iterator[np.ndarray | None]:
        """Translates a batch, padded to one of a few shapes so that few programs are compiled."""
        rows = [ids if ids is not None else np.zeros(1, np.int32) for ids in encoded]
        rows += [np.zeros(1, np.int32)] * ((BATCH if len(rows) > 1 else 1) - len(rows))
        longest = max(map(len, rows))
        width = min(self.config.data.source_length, max(16, 1 << (longest - 1).bit_length()))
        source, lengths = jnp.stack([cut(row, 0, width) for row in rows]), jnp.array([len(row) for row in rows])
        special = tokenisers.marks(self.target.special)
        output, _ = translate(self.model, self.params, source, lengths, search, key, **special)
        for ids, row, length in zip(encoded, np.asarray(output.tokens), np.asarray(output.lengths), strict=False):
            yield None if ids is None else row[:length]


def translate_file(translator: Translator, source: Path, target: Path, search: Search, seed: int = 0) -> list[int]:
    """Translates a file with one sentence a line to another file, with a progress bar on a terminal.

    Empty and too long sentences give empty lines. Returns the numbers of the lines that were too long.
    """
    check_place(target)
    sentences = [line.strip() for line in lines.read(source)]
    shown, left_out = tqdm(sentences, unit=" sentences", disable=None, dynamic_ncols=True), []
    with writing(str(target), "give another --output"), target.open("w", encoding="utf-8") as file:
        for number, translated in enumerate(translator.translations(shown, search, seed), 1):
            left_out += [number] if translated is None else []
            file.write((translated or "").replace("\n", " ") + "\n")
    return left_out
