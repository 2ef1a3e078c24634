"""The base of every tokeniser."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int32, Integer

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
