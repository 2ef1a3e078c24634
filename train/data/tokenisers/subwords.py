"""Tokenisers of words and subwords, from the package `tokenizers`: trained on a corpus, or read from JSON or a hub."""

import contextlib
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from jaxtyping import Integer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from attention.errors import UsageError, brief
from attention.types import Sentinel, at_least
from train.data import packages
from train.data.tokenisers.base import Ids, Tokeniser

# The special tokens of published tokenisers, by their names in `Tokeniser.special`.
_NAMES = {
    "pad": ("[PAD]", "<pad>", "[ PAD ]"),
    "unknown": ("[UNK]", "<unk>"),
    "mask": ("[MASK]", "<mask>", "[ MASK ]"),
    "start": ("[CLS]", "<s>", "[ CLS ]"),
    "end": ("[SEP]", "</s>", "<|endoftext|>", "[ SEP ]"),
}
_BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_WORD_SPECIAL = ["[ PAD ]", "[UNK]", "[ MASK ]", "[ CLS ]", "[ SEP ]"]  # no word of a text has spaces
_SPACES, _PUNCTUATION = r"[\s\x1c-\x1f]+", r"[!-/:-@\[-`{-~]"


class SubwordTokeniser(Tokeniser):
    """A tokeniser of the package `tokenizers`; text that looks like a special token is encoded as plain text."""

    def __init__(self, text: str):
        """Reads the package's JSON; raises UsageError if the package cannot."""
        try:
            self._tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the package raises nothing narrower
            raise UsageError(f"The package tokenizers cannot read this tokeniser: {error}.") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(ids.values()) + 1  # published vocabularies may have gaps
        # Only added tokens are special: an ordinary word may look like one.
        added = {token.content: i for i, token in self._tokenizer.get_added_tokens_decoder().items()} or ids
        matches_of = {name: [added[token] for token in tokens if token in added] for name, tokens in _NAMES.items()}
        self.special = {name: matches[0] for name, matches in matches_of.items() if matches}

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return SubwordTokeniser, (self.dumps(),)  # the package's own pickles lose how special tokens are encoded

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the package raises nothing narrower
            raise UsageError(f"The tokeniser cannot encode the text: {error}; choose another.") from error
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_marked(self, text: str) -> Ids:
        self._tokenizer.encode_special_tokens = False
        try:
            return self.encode(text)
        finally:
            self._tokenizer.encode_special_tokens = True

    def decode(self, ids: Integer[np.ndarray, " n"] | Sequence[int]) -> str:
        hidden = {i for name, i in self.special.items() if name != "unknown"}
        return self._tokenizer.decode([int(i) for i in ids if int(i) not in hidden], skip_special_tokens=False)

    def normalise(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return normalizer.normalize_str(text) if normalizer else text

    def dumps(self) -> str:
        return self._tokenizer.to_str(pretty=True)


def fit_words(
    texts: Iterable[str],
    size: Annotated[int, at_least(6), Sentinel(0, "every word")] = 0,
    lower: bool = True,
    strip: bool = True,
    marks: bool = False,
) -> SubwordTokeniser:
    """Trains a tokeniser of the most frequent words between white space, like Keras' TextVectorization.

    Id 0 is padding, id 1 an unknown word; with `marks`, ids 2 to 4 are mask, start and end. Words of equal frequency
    are in alphabetical order. `lower` first lower-cases text, and `strip` removes ASCII punctuation.
    """
    steps = [normalizers.Lowercase()] if lower else []
    steps += [normalizers.Replace(Regex(_PUNCTUATION), "")] if strip else []
    steps += [normalizers.Replace(Regex(_SPACES), " "), normalizers.Strip()]
    tokenizer = Tokenizer(models.WordLevel({}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = _WORD_SPECIAL[: 5 if marks else 2]
    trainer = trainers.WordLevelTrainer(vocab_size=size or 2**31, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return SubwordTokeniser(tokenizer.to_str())


def fit_bpe(texts: Iterable[str], size: Annotated[int, at_least(260)]) -> SubwordTokeniser:
    """Trains byte-level byte pair encoding, as in GPT-2 and RoBERTa, which restores every text exactly.

    There are at most `size` ids; four are special, and 256 are the bytes.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special, alphabet = ["<s>", "<pad>", "</s>", "<mask>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return SubwordTokeniser(tokenizer.to_str())


def fit_wordpiece(texts: Iterable[str], size: Annotated[int, at_least(6)], lower: bool = False) -> SubwordTokeniser:
    """Trains WordPiece, as in BERT, on texts that are read twice.

    There are at most `size` ids, five special ones included, but all characters are kept even beyond that. `lower`
    first lower-cases text and strips accents.
    """
    trained = _wordpiece({}, lower)
    # The package numbers continuing characters in a different order every time, and breaks ties by number. Listing them
    # as special tokens fixes their numbers; the vocabulary then moves to a tokeniser where they are not special.
    first = [*_BERT_SPECIAL, *_continuing(trained, texts)]
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=first, show_progress=False)
    trained.train_from_iterator(texts, trainer)
    tokenizer = _wordpiece(trained.get_vocab(), lower)
    tokenizer.add_special_tokens(_BERT_SPECIAL)
    return SubwordTokeniser(tokenizer.to_str())


def from_hub(name: str, field: str) -> SubwordTokeniser:
    """Loads the `tokenizer.json` of a hub repository, `NAME` or `NAME@REVISION`; a local copy is preferred."""
    repository, _, revision = name.partition("@")
    hub = packages.hub("huggingface_hub")
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


def _wordpiece(vocabulary: dict[str, int], lower: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _continuing(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """Lists `##c` for every character c that can continue a word."""
    characters: set[str] = set()
    for text in texts:  # one at a time: together they may not fit into memory
        characters.update(text)
    normal = tokenizer.normalizer.normalize_str(" ".join(sorted(characters)))
    split = tokenizer.pre_tokenizer.pre_tokenize_str
    return [f"##{c}" for c in sorted(set(normal)) if [word for word, _ in split(f"a{c}")] == [f"a{c}"]]
