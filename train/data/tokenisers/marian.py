"""The tokenisers of published Marian models: sentencepiece's pieces, numbered by a separate vocabulary."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Integer

from attention.errors import UsageError
from models.files import read_json
from models.published import hugging_face
from train.data import packages
from train.data.tokenisers.base import Ids, Tokeniser

KIND = "marian"
SOURCE, TARGET, VOCABULARY = "source.spm", "target.spm", "vocab.json"
# Special tokens by their names in `Tokeniser.special`; Marian's decoder starts from padding.
SPECIAL = {"pad": "<pad>", "unknown": "<unk>", "end": "</s>", "start": "<pad>"}
SPACE = "\u2581"  # stands for a space in pieces


class MarianTokeniser(Tokeniser):
    """The tokeniser of one side of a Marian model: its sentencepiece model, and the ids of its pieces.

    Ids are those of transformers' MarianTokenizer without the last, `</s>`: sentencepiece alone normalises text, and
    not Moses' punctuation rules. A text may begin with a language, `>>fr<<`, which is one token. Decoding drops unknown
    pieces, as transformers does; but text that looks like a special token is encoded as plain text. `normalise` changes
    nothing, since published scores use the references as they are.
    """

    def __init__(self, spm: bytes, vocabulary: Mapping[str, int]):
        """Raises UsageError if sentencepiece cannot read the model, or the vocabulary lacks a special token."""
        self.spm, self.vocabulary = spm, vocabulary
        sentencepiece = packages.load("sentencepiece", "A Marian tokeniser needs")
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=spm)
        except (RuntimeError, OSError) as error:
            raise UsageError(f"The package sentencepiece cannot read this model: {error}.") from error
        if not (isinstance(vocabulary, dict) and all(type(i) is int and i >= 0 for i in vocabulary.values())):
            raise UsageError("A Marian vocabulary must be a JSON object of pieces and their ids.")
        if missing := sorted(set(SPECIAL.values()) - set(vocabulary)):
            raise UsageError(f"A Marian vocabulary must have {', '.join(missing)}, but this one does not.")
        self.size = max(vocabulary.values()) + 1
        self.special = {name: vocabulary[piece] for name, piece in SPECIAL.items()}
        self._pieces = {i: piece for piece, i in vocabulary.items()}
        marks = (SPECIAL["pad"], SPECIAL["end"])  # which no text may become
        self._ids = {piece: i for piece, i in vocabulary.items() if piece not in marks}

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        split = [_language(text) for text in texts]
        pieces = self._processor.encode([text for _, text in split], out_type=str)
        lookup, unknown = self._ids, self.special["unknown"]
        return [
            np.array([lookup.get(piece, unknown) for piece in (*language, *rest)], np.int32)
            for (language, _), rest in zip(split, pieces, strict=True)
        ]

    def decode(self, ids: Integer[np.ndarray, " n"] | Sequence[int]) -> str:
        """Decodes pieces, without special tokens and the unknown."""
        pieces = (self._pieces.get(int(i), SPECIAL["unknown"]) for i in ids)
        text = self._processor.decode_pieces([piece for piece in pieces if piece not in SPECIAL.values()])
        return text.replace(SPACE, " ").strip()

    def dumps(self) -> str:
        spm = base64.b64encode(self.spm).decode()
        return json.dumps({"kind": KIND, "spm": spm, "vocabulary": self.vocabulary}, ensure_ascii=False)


def check(place: str) -> None:
    """Raises UsageError unless `place` is `FOLDER_OR_HUB_NAME/source.spm` or `…/target.spm`; opens nothing."""
    folder, _, file = place.rpartition("/")
    if not folder or file not in (SOURCE, TARGET):
        raise UsageError(
            f"The tokeniser {KIND}:{place} must be one side of a Marian model; write {KIND}:FOLDER/{SOURCE} or "
            f"{KIND}:FOLDER/{TARGET}, with a folder or a name on the Hugging Face hub."
        )


def read(place: str) -> MarianTokeniser:
    """Loads one side's tokeniser of a published model; `vocab.json` beside it has the ids."""
    source, _, file = place.rpartition("/")
    spm, vocabulary = hugging_face.find(source, file), hugging_face.find(source, VOCABULARY)
    ids = read_json(vocabulary, "give a model whose vocabulary is intact")
    try:
        return MarianTokeniser(spm.read_bytes(), ids)
    except (OSError, ValueError) as error:
        raise UsageError(f"The tokeniser {spm} with {vocabulary} cannot be used: {error}") from error


def loads(fields: Mapping[str, Any]) -> MarianTokeniser:
    """Restores a tokeniser from the fields that `dumps` wrote; raises UsageError for others."""
    try:
        spm = base64.b64decode(fields["spm"], validate=True)
        vocabulary = fields["vocabulary"]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"This is not a Marian tokeniser ({error!r}); write one with dumps.") from error
    return MarianTokeniser(spm, vocabulary)


def _language(text: str) -> tuple[tuple[str, ...], str]:
    """Splits a text into the language that it begins with, such as `>>fr<<`, and the rest."""
    end = text.find("<<") + 2
    return ((text[:end],), text[end:]) if text.startswith(">>") and end > 1 else ((), text)
