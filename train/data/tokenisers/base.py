"""The base of every tokeniser, and the tokeniser of bytes."""

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from jaxtyping import Int32, Integer

Ids = Int32[np.ndarray, " n"]


class Tokeniser:
    """The base of every tokeniser. A subclass defines `encode_batch`, `decode` and `dumps`.

    Ids are 0 … size - 1. `special` has those of pad, unknown, mask, start and end, as far as they exist. Text is never
    encoded as pad, mask, start or end.
    """

    size: int
    special: Mapping[str, int]

    def encode(self, text: str) -> Ids:
        """Encodes a text, without special tokens around it."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Encodes each text; see `encode`."""

    def encode_marked(self, text: str) -> Ids:
        """Encodes a text that contains special tokens, as chat templates write it."""
        return self.encode(text)

    def decode(self, ids: Integer[np.ndarray, " n"] | Sequence[int]) -> str:
        """Decodes ids, without special tokens except the unknown."""

    def normalise(self, text: str) -> str:
        """Normalises a text as encoding does, for example to lower case; most tokenisers change nothing."""
        return text

    def dumps(self) -> str:
        """Writes JSON from which `train.data.tokenisers.loads` restores the tokeniser."""


def marks(special: Mapping[str, int]) -> dict[str, int]:
    """Chooses the ids of start, end and padding; without padding, the end pads."""
    return {"start": special["start"], "end": special["end"], "pad": special.get("pad", special["end"])}


class ByteTokeniser(Tokeniser):
    """A tokeniser whose ids are the bytes of UTF-8, 0 to 255, and four special ids."""

    size = 260
    special: ClassVar[Mapping[str, int]] = {"pad": 256, "mask": 257, "start": 258, "end": 259}

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]

    def decode(self, ids: Integer[np.ndarray, " n"] | Sequence[int]) -> str:
        """Decodes bytes; invalid UTF-8 becomes U+FFFD."""
        return bytes(int(i) for i in ids if i < 256).decode(errors="replace")

    def dumps(self) -> str:
        return json.dumps({"kind": "bytes"})
