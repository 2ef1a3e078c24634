"""Tokenisers: text to ids and back.

A spec string names one: `bytes`, `words(size=20000)`, `bpe(size=8192)`, `wordpiece(size=30522)`, `file:PATH`,
`hf:NAME` or `hf:NAME@REVISION`, and for Marian models `marian:FOLDER_OR_HUB_NAME/source.spm` and `…/target.spm`.
"""

from collections.abc import Iterable
from typing import Any

from attention import specs
from attention.errors import UsageError
from models.files import at_home, parse_json, read_text
from train.data.tokenisers import marian, subwords
from train.data.tokenisers.base import ByteTokeniser, Tokeniser, marks

__all__ = ["Tokeniser", "check", "loads", "make", "marks", "needs_fitting", "stated_size"]

KINDS = (
    "bytes",
    "words(size=20000)",
    "bpe(size=8192)",
    "wordpiece(size=30522)",
    "file:PATH",
    "hf:NAME",
    "marian:FOLDER/source.spm",
)
_FITTED = {"words": subwords.fit_words, "bpe": subwords.fit_bpe, "wordpiece": subwords.fit_wordpiece}


def check(spec: str, field: str = "data.tokeniser") -> None:
    """Raises a UsageError that names the config's field unless `spec` is one of KINDS; opens nothing."""
    _parse(spec, field)


def needs_fitting(spec: str) -> bool:
    """Says whether the tokeniser is trained on the corpus."""
    return _parse(spec)[0] in _FITTED


def stated_size(spec: str) -> int:
    """Reads the number of ids in a spec string, else 0; a tokeniser trained on little text may have fewer."""
    kind, _, options = _parse(spec)
    return ByteTokeniser.size if kind == "bytes" else options.get("size", 0)


def make(spec: str, texts: Iterable[str] = (), field: str = "data.tokeniser") -> Tokeniser:
    """Makes the tokeniser that a spec string names; one that `needs_fitting` reads the texts, perhaps twice.

    Raises a UsageError that names the config's field if the spec is invalid or what it names is missing.
    """
    kind, place, options = _parse(spec, field)
    match kind:
        case "bytes":
            return ByteTokeniser()
        case "file":
            return _from_file(place)
        case "hf":
            return subwords.from_hub(place, field)
        case "marian":
            return marian.read(place)
    return _FITTED[kind](texts, **options)


def loads(text: str) -> Tokeniser:
    """Restores a tokeniser that `dumps` or the package `tokenizers` wrote; raises UsageError for other texts."""
    content = parse_json(text, "The tokeniser", "write one with dumps, or with the package tokenizers")
    match content:
        case {"model": _}:
            return subwords.SubwordTokeniser(text)
        case {"kind": "bytes"}:
            return ByteTokeniser()
        case {"kind": marian.KIND}:
            return marian.loads(content)
    raise UsageError(f"This is not a tokeniser: {text[:40]!r}; write one with dumps, or with the package tokenizers.")


def _from_file(place: str) -> Tokeniser:
    remedy = "give a JSON file such as tokeniser.json of a work directory or tokenizer.json of a hub repository"
    text = read_text(at_home(place), f"the config names it as a tokeniser: {remedy}")
    try:
        return loads(text)
    except UsageError as error:
        raise UsageError(f"The tokeniser file {place!r} cannot be used: {error}") from error


def _parse(spec: str, field: str = "data.tokeniser") -> tuple[str, str, dict[str, Any]]:
    """Reads the kind, the place after its colon, and the options."""
    kind, _, place = spec.partition(":")
    if kind == marian.KIND:
        marian.check(place)
    if kind == marian.KIND or (place and kind in ("file", "hf")):
        return kind, place, {}
    item = specs.parse_one(spec, field, ["bytes", *_FITTED], KINDS)
    specs.check_options(item, _FITTED.get(item.name, ByteTokeniser), given=["texts"])
    return item.name, "", item.options
