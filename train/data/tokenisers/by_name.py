"""The tokenisers that a spec string names, or that a file holds.

Spec strings are `bytes`, `words(size=20000)`, `bpe(size=8192)`, `wordpiece(size=30522)`, `file:PATH`,
`hf:NAME` or `hf:NAME@REVISION`, and of a Marian `marian:FOLDER_OR_HUB_NAME/source.spm` and `…/target.spm`.
"""

from collections.abc import Iterable
from pathlib import Path

from attention import specs
from attention.errors import UsageError
from models.files import at_home, parse_json, read_text
from train.data.tokenisers import plain, sentencepieces, subwords

KINDS = (
    "bytes",
    "words(size=20000)",
    "bpe(size=8192)",
    "wordpiece(size=30522)",
    "file:PATH",
    "hf:NAME",
    "marian:FOLDER/source.spm",
)
_MAKERS = {
    "bytes": plain.ByteTokeniser,
    "words": plain.fit_words,
    "bpe": subwords.fit_bpe,
    "wordpiece": subwords.fit_wordpiece,
}


def check(spec: str, field: str = "data.tokeniser") -> None:
    """Raises UsageError, which names the config's field, unless `spec` is written as one of KINDS; opens nothing."""
    kind, _, place = spec.partition(":")
    if kind == sentencepieces.KIND:
        sentencepieces.check(place)
    elif not (kind in _READERS and place):
        _parse(spec, field)


def needs_fitting(spec: str) -> bool:
    """Returns whether the tokeniser is trained on the corpus."""
    return spec.partition(":")[0] not in _READERS and _parse(spec).name != "bytes"


def stated_size(spec: str) -> int:
    """Returns the number of ids that a spec string states, or 0; trained on little text, a tokeniser may have fewer."""
    if spec.partition(":")[0] in _READERS:
        return 0
    item = _parse(spec)
    return plain.ByteTokeniser.size if item.name == "bytes" else item.options.get("size", 0)


def make(spec: str, texts: Iterable[str] = (), field: str = "data.tokeniser") -> plain.Tokeniser:
    """Makes the tokeniser that a spec string names.

    Args:
      spec: See the module.
      texts: The texts that it is trained on where `needs_fitting`; they may be read twice.
      field: The config field that has the spec, for messages.

    Raises:
      UsageError: the spec is not valid, or a file, hub name or package is missing.
    """
    check(spec, field)
    kind, _, place = spec.partition(":")
    if kind in _READERS:
        return _READERS[kind](place, field)
    item = _parse(spec, field)
    return plain.ByteTokeniser() if item.name == "bytes" else _MAKERS[item.name](texts, **item.options)


def loads(text: str) -> plain.Tokeniser:
    """Restores the tokeniser that `dumps`, or the package `tokenizers`, wrote.

    Raises:
      UsageError: the text is not a tokeniser.
    """
    content = parse_json(text, "The tokeniser", "write one with dumps, or with the package tokenizers")
    match content:
        case {"model": _}:
            return subwords.SubwordTokeniser(text)
        case {"kind": "bytes"}:
            return plain.ByteTokeniser()
        case {"kind": sentencepieces.KIND}:
            return sentencepieces.loads(content)
        case {
            "kind": "words",
            "words": list(words),
            "lower": bool(lower),
            "strip": bool(strip),
            "marks": bool(marks),
        } if all(isinstance(word, str) for word in words):
            return plain.WordTokeniser(tuple(words), lower, strip, marks)
    raise UsageError(f"This is no tokeniser, but {text[:40]!r}; write one with dumps, or with the package tokenizers.")


def _from_file(path: Path) -> plain.Tokeniser:
    remedy = "give a JSON file such as tokeniser.json of a work directory or tokenizer.json of a hub repository"
    text = read_text(path, f"the config names it as a tokeniser: {remedy}")
    try:
        return loads(text)
    except UsageError as error:
        raise UsageError(f"The tokeniser file {str(path)!r} cannot be used: {error}") from error


# Each takes what follows the colon and the config field that has it, which few messages need.
_READERS = {
    "file": lambda place, _: _from_file(at_home(place)),
    "hf": subwords.from_hub,
    sentencepieces.KIND: lambda place, _: sentencepieces.read(place),
}


def _parse(spec: str, field: str = "data.tokeniser") -> specs.SpecItem:
    item = specs.parse_one(spec, field, _MAKERS, KINDS)
    specs.check_options(item, _MAKERS[item.name], given=["texts"])
    return item
