"""The base of every tokeniser, and tokenisers of plain text: its bytes, or the words between white space."""

import collections
import dataclasses
import functools
import json
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import numpy as np
from jaxtyping import Int32, Integer

from attention.types import Sentinel, at_least

Ids = Int32[np.ndarray, " n"]


class Tokeniser:
    """The base of every tokeniser. A subclass defines `encode_batch`, `decode` and `dumps`.

    Attributes:
      size: Ids are 0 … size - 1.
      special: Ids by name, those there are of: pad, unknown, mask, start, end. Text never turns into pad, mask, start
        or end.
    """

    size: int
    special: dict[str, int]

    def encode(self, text: str) -> Ids:
        """Returns the ids of a text, without any special token around it."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of each text; see `encode`."""
        raise NotImplementedError

    def encode_marked(self, text: str) -> Ids:
        """Returns the ids of a text in which special tokens stand, as chat templates write it."""
        return self.encode(text)

    def decode(self, ids: Integer[np.ndarray, " n"] | Sequence[int]) -> str:
        """Returns the text of ids, without special tokens except the unknown."""
        raise NotImplementedError

    def normalise(self, text: str) -> str:
        """Returns the text as the ids can tell it, for example in lower case; most tokenisers change nothing."""
        return text

    def dumps(self) -> str:
        """Returns JSON text from which `train.data.tokenisers.loads` makes the same tokeniser."""
        raise NotImplementedError


def marks(special: Mapping[str, int]) -> dict[str, int]:
    """Returns the ids of the start, the end and the padding, which is the end where there is none."""
    return {"start": special["start"], "end": special["end"], "pad": special.get("pad", special["end"])}


class ByteTokeniser(Tokeniser):
    """A tokeniser whose ids are the bytes of UTF-8, 0 to 255, and four special ids."""

    size = 260
    special = {"pad": 256, "mask": 257, "start": 258, "end": 259}  # noqa: RUF012

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the bytes of each text."""
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]

    def decode(self, ids: Integer[np.ndarray, " n"] | Sequence[int]) -> str:
        """Returns the text; bytes that are not UTF-8 become U+FFFD."""
        return bytes(int(i) for i in ids if i < 256).decode(errors="replace")

    def dumps(self) -> str:
        """Returns the same text for all byte tokenisers, which do not differ."""
        return json.dumps({"kind": "bytes"})


@dataclasses.dataclass(frozen=True)
class WordTokeniser(Tokeniser):
    """A tokeniser of words between white space, as Keras' TextVectorization: id 0 pads, id 1 is an unknown word.

    Attributes:
      words: The words, in the order of their ids after the special ones.
      lower: Whether text is lower-cased first.
      strip: Whether ASCII punctuation is deleted first.
      marks: Whether there are mask, start and end, ids 2 to 4.
    """

    words: tuple[str, ...]
    lower: bool = True
    strip: bool = True
    marks: bool = False

    @property
    def special(self) -> dict[str, int]:
        """The ids of special tokens by name."""
        return _WORD_MARKS if self.marks else _WORD_SPECIAL

    @property
    def size(self) -> int:
        """The number of ids, special ones included."""
        return len(self.special) + len(self.words)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of the words of each text."""
        lookup = self._lookup
        words = (_split(text, self.lower, self.strip) for text in texts)
        return [np.array([lookup.get(word, 1) for word in split], np.int32) for split in words]

    def decode(self, ids: Integer[np.ndarray, " n"] | Sequence[int]) -> str:
        """Joins the words with spaces; an unknown word is `[UNK]`."""
        first = len(self.special)
        words = ("[UNK]" if i == 1 else self.words[i - first] for i in map(int, ids) if i == 1 or i >= first)
        return " ".join(words)

    def normalise(self, text: str) -> str:
        """Returns the text's words, joined with spaces."""
        return " ".join(_split(text, self.lower, self.strip))

    def dumps(self) -> str:
        """Returns all fields as JSON."""
        return json.dumps({"kind": "words"} | dataclasses.asdict(self), ensure_ascii=False)

    @functools.cached_property
    def _lookup(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words, len(self.special))}


_WORD_SPECIAL = {"pad": 0, "unknown": 1}
_WORD_MARKS = _WORD_SPECIAL | {"mask": 2, "start": 3, "end": 4}
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def fit_words(
    texts: Iterable[str],
    size: Annotated[int, at_least(6), Sentinel(0, "every word")] = 0,
    lower: bool = True,
    strip: bool = True,
    marks: bool = False,
) -> WordTokeniser:
    """Trains a word tokeniser of the most frequent words; words of equal frequency are taken in alphabetical order.

    Args:
      texts: The texts whose words are counted.
      size: The number of ids, special ones included; 0 takes every word.
      lower: See `WordTokeniser`.
      strip: See `WordTokeniser`.
      marks: See `WordTokeniser`.
    """
    counts = collections.Counter()
    for text in texts:
        counts.update(_split(text, lower, strip))
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    kept = size - len(_WORD_MARKS if marks else _WORD_SPECIAL) if size else len(ordered)
    return WordTokeniser(tuple(ordered[:kept]), lower, strip, marks)


def _split(text: str, lower: bool, strip: bool) -> list[str]:
    text = text.lower() if lower else text
    return (text.translate(_NO_PUNCTUATION) if strip else text).split()
