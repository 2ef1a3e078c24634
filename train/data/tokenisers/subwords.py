"""Subword tokenisers of the package `tokenizers`, which are trained on a corpus, or read from JSON or a hub."""

import contextlib
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import numpy as np
from jaxtyping import Integer

from attention.errors import UsageError
from attention.types import at_least
from train.data import packages
from train.data.rows.hub import NEED
from train.data.rows.rows import brief
from train.data.tokenisers.plain import Ids, Tokeniser

# The special tokens of published tokenisers, by the names of `Tokeniser.special`.
_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unknown": ("[UNK]", "<unk>"),
    "mask": ("[MASK]", "<mask>"),
    "start": ("[CLS]", "<s>"),
    "end": ("[SEP]", "</s>", "<|endoftext|>"),
}


_BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


class SubwordTokeniser(Tokeniser):
    """A tokeniser of the package `tokenizers`; see `train.data.tokenisers.Tokeniser`.

    Text that happens to read like a special token is encoded as the text it is.
    """

    def __init__(self, text: str):
        """Reads the package's JSON.

        Raises:
          UsageError: the JSON cannot be read, or the package is missing.
        """
        try:
            self._tokenizer = _tokenizers().Tokenizer.from_str(text)
        except Exception as error:  # the package raises nothing narrower
            raise UsageError(f"The package tokenizers cannot read this tokeniser: {error}.") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        # Published vocabularies may have gaps.
        self.size = max(ids.values()) + 1
        matches_of = {name: [ids[token] for token in tokens if token in ids] for name, tokens in _NAMES.items()}
        self.special = {name: matches[0] for name, matches in matches_of.items() if matches}

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of the pieces of each text."""
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the package raises no kind of its own
            raise UsageError(f"The tokeniser cannot encode the text: {error}; choose another.") from error
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_marked(self, text: str) -> Ids:
        """Returns the ids of a text in which special tokens stand, as chat templates write it."""
        self._tokenizer.encode_special_tokens = False
        try:
            return self.encode(text)
        finally:
            self._tokenizer.encode_special_tokens = True

    def decode(self, ids: Integer[np.ndarray, " n"] | Sequence[int]) -> str:
        """Returns the text of the pieces."""
        hidden = {i for name, i in self.special.items() if name != "unknown"}
        return self._tokenizer.decode([int(i) for i in ids if int(i) not in hidden], skip_special_tokens=False)

    def normalise(self, text: str) -> str:
        """Returns the text as the package's normaliser changes it, for example to lower case."""
        normalizer = self._tokenizer.normalizer
        return normalizer.normalize_str(text) if normalizer else text

    def dumps(self) -> str:
        """Returns the package's JSON."""
        return self._tokenizer.to_str(pretty=True)


def fit_bpe(texts: Iterable[str], size: Annotated[int, at_least(260)]) -> SubwordTokeniser:
    """Trains byte-level byte pair encoding, as in GPT-2 and RoBERTa, which restores every text exactly.

    Args:
      texts: The texts to train on.
      size: The most ids; four are special, 256 are the bytes.
    """
    t = _tokenizers()
    tokenizer = t.Tokenizer(t.models.BPE())
    tokenizer.pre_tokenizer = t.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = t.decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<mask>"]
    alphabet = t.pre_tokenizers.ByteLevel.alphabet()
    trainer = t.trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return SubwordTokeniser(tokenizer.to_str())


def fit_wordpiece(texts: Iterable[str], size: Annotated[int, at_least(6)], lower: bool = False) -> SubwordTokeniser:
    """Trains WordPiece, as in BERT.

    Args:
      texts: The texts to train on, which are read twice.
      size: The most ids, five special ones included; every character is kept even beyond that.
      lower: Whether text is lower-cased and loses its accents first.
    """
    trained = _wordpiece({}, lower)
    # The package numbers continuing characters as it meets them, in a different order every time, and breaks ties by
    # number. Naming them beforehand fixes their numbers; the vocabulary then moves to a tokeniser where they are not
    # special.
    first = [*_BERT_SPECIAL, *_continuing(trained, texts)]
    trainer = _tokenizers().trainers.WordPieceTrainer(vocab_size=size, special_tokens=first, show_progress=False)
    trained.train_from_iterator(texts, trainer)
    tokenizer = _wordpiece(trained.get_vocab(), lower)
    tokenizer.add_special_tokens(_BERT_SPECIAL)
    return SubwordTokeniser(tokenizer.to_str())


def from_hub(name: str, field: str) -> SubwordTokeniser:
    """Loads the `tokenizer.json` of a hub repository, `NAME` or `NAME@REVISION`; a copy fetched before is used.

    Args:
      name: The repository.
      field: The config field that names it, for messages.

    Raises:
      UsageError: the file cannot be fetched.
    """
    repository, _, revision = name.partition("@")
    hub = packages.load("huggingface_hub", NEED)
    fetch = functools.partial(hub.hf_hub_download, repository, "tokenizer.json", revision=revision or None)
    path = ""
    with contextlib.suppress(OSError, ValueError):  # not fetched yet; an invalid name fails again below
        path = fetch(local_files_only=True)
    try:
        path = path or fetch()
    except Exception as error:  # what it raises has no common base
        raise UsageError(
            f"Cannot fetch tokenizer.json of {repository!r}, which {field} names ({brief(error)}): check the name and "
            "the network, or use file:PATH."
        ) from error
    return SubwordTokeniser(Path(path).read_text(encoding="utf-8"))


def _wordpiece(vocabulary: dict[str, int], lower: bool) -> Any:
    t = _tokenizers()
    tokenizer = t.Tokenizer(t.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = t.normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = t.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = t.decoders.WordPiece()
    return tokenizer


def _continuing(tokenizer: Any, texts: Iterable[str]) -> list[str]:
    """Returns `##c` for every character that a word can continue with."""
    characters: set[str] = set()
    for text in texts:  # one at a time: all of them together may not fit into memory
        characters.update(text)
    normal = tokenizer.normalizer.normalize_str(" ".join(sorted(characters)))
    split = tokenizer.pre_tokenizer.pre_tokenize_str
    return [f"##{c}" for c in sorted(set(normal)) if [word for word, _ in split(f"a{c}")] == [f"a{c}"]]


def _tokenizers() -> ModuleType:
    return packages.load("tokenizers", "Subwords need the package {}")
