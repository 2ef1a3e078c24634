"""The interface of every tokeniser, and the tokenisers that a spec string names.

Spec strings are `bytes`, `words(size=20000)`, `bpe(size=8192)`, `wordpiece(size=30522)`, `file:PATH`,
`hf:NAME` or `hf:NAME@REVISION`, and of a Marian `marian:FOLDER_OR_HUB_NAME/source.spm` and `…/target.spm`.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from jaxtyping import Integer

from attention.errors import UsageError, unknown
from models import specs
from train.data.tokenisers import plain, sentencepieces, subwords
from train.data.tokenisers.plain import ByteTokeniser, Ids, WordTokeniser

KINDS = (
    "bytes",
    "words(size=20000)",
    "bpe(size=8192)",
    "wordpiece(size=30522)",
    "file:PATH",
    "hf:NAME",
    "marian:FOLDER/source.spm",
)
_READY = ("file", "hf", sentencepieces.KIND)


class Tokeniser(Protocol):
    """The interface of every tokeniser.

    Attributes:
      size: Ids are 0 … size - 1.
      special: Ids by name, those there are of: pad, unknown, mask, start, end. Text never turns into pad, mask, start
        or end.
    """

    size: int
    special: dict[str, int]

    def encode(self, text: str) -> Ids:
        """Returns the ids of a text, without any special token around it."""

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of each text; see `encode`."""

    def decode(self, ids: Integer[np.ndarray, " n"] | Sequence[int]) -> str:
        """Returns the text of ids, without special tokens except the unknown."""

    def normalise(self, text: str) -> str:
        """Returns the text as the ids can tell it, for example in lower case; most tokenisers change nothing."""

    def dumps(self) -> str:
        """Returns JSON text from which `loads` makes the same tokeniser."""


_FITTED = {"words": plain.fit_words, "bpe": subwords.fit_bpe, "wordpiece": subwords.fit_wordpiece}
_OPTIONS = {
    "bytes": {},
    "words": {"size": int, "lower": bool, "strip": bool, "marks": bool},
    "bpe": {"size": int},
    "wordpiece": {"size": int, "lower": bool},
}
# The smallest sizes: special tokens and the bytes that a byte-level BPE starts from, or at least one word.
_LEAST = {"words": 6, "bpe": 260, "wordpiece": 6}


def check(spec: str, field: str = "data.tokeniser") -> None:
    """Raises UsageError, which names the config's field, unless `spec` is written as one of KINDS; opens nothing."""
    prefix, _, name = spec.partition(":")
    if prefix == sentencepieces.KIND:
        sentencepieces.check(name)
    elif not (prefix in _READY and name):
        _parse(spec, field)


def needs_fitting(spec: str) -> bool:
    """Returns whether the tokeniser is trained on the corpus."""
    return spec.partition(":")[0] not in _READY and _parse(spec).name in _FITTED


def stated_size(spec: str) -> int:
    """Returns the number of ids that a spec string states, or 0; trained on little text, a tokeniser may have fewer."""
    if spec.partition(":")[0] in _READY:
        return 0
    call = _parse(spec)
    return call.options.get("size", 0) if call.name in _FITTED else ByteTokeniser.size


def make(spec: str, texts: Iterable[str] = (), field: str = "data.tokeniser") -> Tokeniser:
    """Makes the tokeniser that a spec string names.

    Args:
      spec: See the module.
      texts: The texts that it is trained on where `needs_fitting`; they may be read twice.
      field: The config field that has the spec, for messages.

    Raises:
      UsageError: the spec is not valid, or a file, hub name or package is missing.
    """
    prefix, _, name = spec.partition(":")
    if prefix == "file" and name:
        return _from_file(Path(name).expanduser())
    if prefix == "hf" and name:
        return subwords.from_hub(name, field)
    if prefix == sentencepieces.KIND:
        return sentencepieces.read(name)
    call = _parse(spec, field)
    return _FITTED[call.name](texts, **call.options) if call.name in _FITTED else ByteTokeniser()


def loads(text: str) -> Tokeniser:
    """Restores the tokeniser that `dumps`, or the package `tokenizers`, wrote.

    Raises:
      UsageError: the text is not a tokeniser.
    """
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise UsageError(f"This is no tokeniser, but {text[:40]!r}: {error}.") from error
    if isinstance(fields, dict) and "model" in fields:
        return subwords.SubwordTokeniser(text)
    match fields:
        case {"kind": "bytes"}:
            return ByteTokeniser()
        case {"kind": sentencepieces.KIND}:
            return sentencepieces.loads(fields)
        case {"kind": "words", "words": list(words), "lower": bool(lower), "strip": bool(strip), "marks": bool(marks)}:
            return WordTokeniser(tuple(words), lower, strip, marks)
    raise UsageError(f"This is no tokeniser, but {text[:40]!r}; write one with dumps, or with the package tokenizers.")


def _from_file(path: Path) -> Tokeniser:
    try:
        return loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"Cannot read the tokeniser file {str(path)!r} ({error.strerror}); the config names it: give a JSON "
            "file such as tokeniser.json of a work directory or tokenizer.json of a hub repository."
        ) from error
    except ValueError as error:
        raise UsageError(f"The tokeniser file {str(path)!r} cannot be used: {error}") from error


def _parse(spec: str, field: str = "data.tokeniser") -> specs.SpecItem:
    try:
        [call] = specs.parse(spec)
    except ValueError as error:  # it cannot be read, or is none or several
        raise unknown(field, spec, KINDS) from error
    if call.name not in _OPTIONS:
        raise unknown(field, spec, KINDS)
    for option, value in call.options.items():
        if option not in _OPTIONS[call.name]:
            raise unknown(f"option of {call.name}", option, _OPTIONS[call.name])
        kind = _OPTIONS[call.name][option]
        if type(value) is not kind:
            valid = "True or False" if kind is bool else "a whole number"
            raise UsageError(f"{call.name}({option}={value!r}) must be {valid}.")
    _check_size(call)
    return call


def _check_size(call: specs.SpecItem) -> None:
    if call.name in ("bpe", "wordpiece") and "size" not in call.options:
        raise UsageError(f"{call.name} needs size: write {call.name}(size=...).")
    if "size" in call.options and (call.name, call.options["size"]) != ("words", 0):
        least = _LEAST[call.name]
        if call.options["size"] < least:
            raise UsageError(f"{call.name}(size={call.options['size']}) is too small; use at least {least}.")
