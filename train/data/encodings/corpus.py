"""Corpora: tokenisers, learned from the training split if need be, and rows that are tokenised once, on disk."""

import dataclasses
import functools
import hashlib
import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int32, Int64, Integer

from attention.errors import UsageError
from train.data import section, sources, splits, tokenisers
from train.data.encodings import cache
from train.data.encodings.cache import Array, Chunk, Lazy, Mapped
from train.data.encodings.images import LabelledImages, encode
from train.data.section import Section
from train.data.sources.rows import Row, Rows, digest
from train.data.splits import Split
from train.data.tokenisers import Tokeniser

ORDER = 1  # the version of the orders that splits are cut from; another number also makes vocabularies again
_LEARNED = 2  # the version of tokenisers
_FORMAT = 3  # the version of the folders; another number makes them again
# The most texts, and about the most characters, to encode together: this bounds memory.
_BATCH_TEXTS, _BATCH_CHARACTERS = 1024, 1_000_000


@dataclasses.dataclass(frozen=True)
class Stored(Lazy):
    """A tokenised text: the ids of all documents end to end, as uint16 if they fit, else uint32.

    `lengths`, `sizes` and `labels` give each document's tokens, its bytes in UTF-8, and its class as an index of
    `class_names`, which are in the source's order, or else in the order of their first rows. The digest `content`
    depends on documents and classes alone, not on where or when they were read.
    """

    ids: Array
    lengths: Array
    sizes: Array
    labels: Array
    content: str = ""
    class_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.lengths)

    @functools.cached_property
    def token_offsets(self) -> Int64[np.ndarray, " n"]:
        """Where each document begins in the ids, and where the last one ends."""
        return np.append(0, np.cumsum(self.lengths[:], dtype=np.int64))


def tokenise(rows: Rows, column: str, tokeniser: Tokeniser, end: bool, cache_dir: Path) -> Stored:
    """Encodes a column's texts, and the rows' classes, unless the cache has them.

    With `end`, the tokeniser's end token follows each document. Raises UsageError if there is no text.
    """
    key = digest([_FORMAT, rows.content, column, *rows.class_names, tokeniser.dumps(), end])
    encoded = functools.partial(_encoded, rows, column, tokeniser, [tokeniser.special["end"]] if end else [])
    arrays, content, class_names = cache.arrays(cache_dir / "texts" / key, encoded, rows.class_names)
    return Stored(**arrays, content=content, class_names=class_names)


def _encoded(
    rows: Rows, column: str, tokeniser: Tokeniser, after: list[int], classes: dict[str, int]
) -> Iterator[Chunk]:
    kind, count = np.uint16 if tokeniser.size <= 2**16 else np.uint32, 0
    read = cache.progress(rows.read(), f"Encoding {rows.name}")
    for batch in _batches((row[column], row.get("label", "")) for row in read):
        texts, labels = zip(*batch, strict=True)
        ids = [np.append(ids, after) for ids in tokeniser.encode_batch(texts)]
        yield {
            "ids": np.concatenate(ids).astype(kind),
            "lengths": np.array([len(some) for some in ids], np.int32),
            "sizes": np.array([len(text.encode()) for text in texts], np.int32),
            "labels": np.array([classes.setdefault(label, len(classes)) for label in labels], np.int32),
        }
        count += sum(map(len, ids))
    if not count:
        raise UsageError(f"There is no text in {rows.name}; give a source that has some.")


def _batches(documents: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    batch, characters = [], 0
    for document in documents:
        batch.append(document)
        characters += len(document[0])
        if len(batch) == _BATCH_TEXTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


@dataclasses.dataclass(frozen=True)
class TokenisedSplit(Lazy):
    """A split of tokenised rows, such as documents or pairs."""

    columns: Mapping[str, Stored]  # the texts of all rows in the part that the split is cut from
    split: Split
    rows: Int64[np.ndarray, " rows"]  # the split's indices in the part
    classes: tuple[int, ...] = ()  # the corpus's number of each class of the part
    images: LabelledImages | None = None  # of all rows in the part, if they have some

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def content(self) -> str:
        """A digest of all rows in the part."""
        texts = digest(stored.content for stored in self.columns.values())
        return digest([texts, self.images.content]) if self.images else texts

    @functools.cached_property
    def ids(self) -> Integer[np.ndarray, " tokens"]:
        """The ids of documents in their original order, end to end, mapped from disk."""
        return self._first.ids[slice(*self._first.token_offsets[self._ends])]

    @property
    def bytes(self) -> int:
        """The number of bytes of documents in their original order, in UTF-8."""
        return int(self._first.sizes[slice(*self._ends)].sum())

    @functools.cached_property
    def labels(self) -> Int32[np.ndarray, " rows"]:
        """Each document's class, an index of the corpus's `class_names`."""
        return np.array(self.classes, np.int32)[self._first.labels[self.rows]]

    def row(self, index: int) -> list[Integer[np.ndarray, " tokens"]]:
        """Takes the ids of one row's columns, mapped from disk."""
        row = self.rows[index]
        return [stored.ids[slice(*stored.token_offsets[row : row + 2])] for stored in self.columns.values()]

    def places(self, column: str, numbers: Integer[np.ndarray, " n"]) -> dict[str, Int64[np.ndarray, " n"]]:
        """Finds where the texts of some rows of the split are in a column."""
        offsets, rows = self.columns[column].token_offsets, self.rows[numbers]
        return {f"{column}_start": offsets[rows], f"{column}_length": offsets[rows + 1] - offsets[rows]}

    def lengths(self, column: str) -> Int64[np.ndarray, " rows"]:
        """Counts each row's tokens in a column."""
        return self.columns[column].lengths[self.rows].astype(np.int64)

    @property
    def _first(self) -> Stored:
        return next(iter(self.columns.values()))

    @property
    def _ends(self) -> list[int]:
        return [int(self.rows[0]), int(self.rows[-1]) + 1]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokenised text, whose columns are `text`, or `source` and `target`, each with its tokeniser."""

    tokenisers: dict[str, Tokeniser]  # by column; one object if columns share it
    splits: dict[str, TokenisedSplit]  # `train`, `validation` and `test`
    rows: dict[str, Rows] = dataclasses.field(default_factory=dict)  # of the parts that the splits are cut from
    class_names: tuple[str, ...] = ()  # of labelled text

    @property
    def tokeniser(self) -> Tokeniser:
        """The tokeniser of what the model writes: the text, or the target."""
        return list(self.tokenisers.values())[-1]

    def texts(self, part: str, column: str, indices: Integer[np.ndarray, " k"]) -> list[str]:
        """Reads a column's texts in some rows of a split."""
        tokens = self.splits[part]
        places = {int(row): place for place, row in enumerate(tokens.rows[indices])}
        texts = [""] * len(places)
        for number, row in enumerate(self.rows[tokens.split.name].read()):
            if number in places:
                texts[places[number]] = row[column]
        return texts


def load(data: Section) -> Corpus:
    """Reads and encodes the texts, and any images, that a section names; later calls only map the cache."""
    cache_dir = cache.root(data.cache_dir)
    names, rows = splits.opened(data, lambda part: stripped(sources.open_split(data, part)))
    tokeniser_of = {}
    for field, columns in data.learned.items():
        tokeniser = _learn(data, field, columns, names["train"], rows[names["train"].name], cache_dir)
        tokeniser_of |= dict.fromkeys(columns, tokeniser)
    for column, tokeniser in tokeniser_of.items():
        field = f"{column}_vocabulary".removeprefix("text_")
        section.check_stated(field, getattr(data, field), tokeniser.size)
        if data.end_token and "end" not in tokeniser.special:
            raise UsageError(
                f"data.end_token asks for an end token, but {data.tokeniser!r} has none; set it to False (or, for "
                "words, write words(marks=True))."
            )
    stored = {
        name: {column: tokenise(part, column, made, data.end_token, cache_dir) for column, made in tokeniser_of.items()}
        for name, part in rows.items()
    }
    images = {name: encode(part, data.image_shape, cache_dir) for name, part in rows.items() if "image" in data.COLUMNS}
    tokenised = {}
    for part, split in names.items():
        columns = stored[split.name]
        chosen = _cut(data, split, rows[split.name], next(iter(columns.values())).__len__, cache_dir)
        tokenised[part] = TokenisedSplit(columns, split, chosen, images=images.get(split.name))
    return Corpus(tokeniser_of, tokenised, rows)


def _learn(data: Section, field: str, columns: Sequence[str], split: Split, rows: Rows, cache_dir: Path) -> Tokeniser:
    """Makes a tokeniser; one that needs training is trained once, on columns of the training split."""
    spec = getattr(data, field)
    if not tokenisers.needs_fitting(spec):
        return tokenisers.make(spec, field=f"data.{field}")

    def fit(partial: Path) -> None:
        chosen = itertools.repeat(True)
        if not split.is_whole:
            places = _cut(data, split, rows, lambda: sum(1 for _ in rows.read()), cache_dir)
            chosen = np.isin(np.arange(places.max(initial=-1) + 1), places)
        partial.write_text(tokenisers.make(spec, _Texts(rows, columns, chosen)).dumps(), "utf-8")

    key = digest([_LEARNED, ORDER, spec, rows.content, split.text, data.sliced_by, *columns])
    return tokenisers.loads(cache.make_once(cache_dir / "tokenisers" / f"{key}.json", fit).read_text("utf-8"))


@dataclasses.dataclass(frozen=True)
class _Texts:
    """The texts in columns of chosen rows, which can be iterated over again."""

    rows: Rows
    columns: Sequence[str]
    chosen: Iterable[bool]

    def __iter__(self) -> Iterator[str]:
        chosen = itertools.compress(self.rows.read(), self.chosen)  # stops after the last chosen row
        for row in cache.progress(chosen, f"Learning the vocabulary of {self.rows.name}"):
            yield from (row[column] for column in self.columns)


def _cut(
    data: Section, split: Split, rows: Rows, count: Callable[[], int], cache_dir: Path
) -> Int64[np.ndarray, " rows"]:
    """Chooses the rows of a split: texts in order, labelled ones shuffled, others with equal values kept together.

    The order that slices of pairs are cut from is random, fixed, and made once; no test sentence is trained on.
    """
    role = data.sliced_by
    if role == "label":
        return splits.shuffled(split, count())
    if role == "text" or split.is_whole:
        return np.arange(*split.bounds(count()))
    path = cache_dir / "orders" / digest([ORDER, rows.content, role])
    made = cache.make_once(path, lambda partial: partial.write_bytes(_grouped(rows, role)))
    order, begins = Mapped(str(made), "int64", (2, -1))[:]
    places = np.append(np.flatnonzero(begins), len(begins))  # where groups begin: both bounds move up to one
    return order[slice(*(int(places[np.searchsorted(places, bound)]) for bound in split.bounds(len(order))))]


def _key(value: str | bytes | np.ndarray, number: int) -> bytes:
    """Encodes a value; an image in an array equals no other."""
    value = str(number) if isinstance(value, np.ndarray) else value
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _grouped(rows: Rows, role: str) -> bytes:
    """Makes a random order that keeps rows of equal values together, and marks with 1 where another value begins."""
    keys = (_key(row[role], number) for number, row in enumerate(rows.read()))
    hashes = b"".join(hashlib.blake2b(key, digest_size=8).digest() for key in keys)
    if not hashes:
        raise UsageError(f"There is no text in {rows.name}; give a source that has some.")
    keys = np.frombuffer(hashes, ">u8").astype(np.uint64)
    order = np.argsort(keys, kind="stable")
    begins = np.diff(keys[order], prepend=keys[order[:1]] + np.uint64(1)) != 0
    return np.stack([order, begins]).astype(np.int64).tobytes()


def with_classes(corpus: Corpus) -> Corpus:
    """Numbers the classes, in the source's order or else sorted; raises UsageError if training lacks one."""
    training = corpus.splits["train"]
    names = corpus.rows[training.split.name].class_names or splits.ordered_classes(training.columns["text"].class_names)
    numbered = {}
    for part, text in corpus.splits.items():
        numbers = splits.class_numbers(text.columns["text"].class_names, names, part, "data.label_column")
        numbered[part] = dataclasses.replace(text, classes=numbers)
    return dataclasses.replace(corpus, splits=numbered, class_names=names)


def stripped(rows: Rows) -> Rows:
    """Strips white space from sources and targets, and leaves out pairs of empty sides, which many corpora have.

    Documents stay as they are. Reading raises UsageError if only one side of a row is empty.
    """
    return dataclasses.replace(rows, read=lambda: filter(None, map(_strip, rows.read())))


def _strip(row: Row) -> Row:
    """Strips a row; {} is a row to leave out."""
    if "text" in row:
        return row
    row = row | {side: row[side].strip() for side in ("source", "target") if side in row}
    sides = [side for side in ("image", "source", "target") if side in row]
    empty = [side for side in sides if not len(row[side])]
    if empty and len(empty) < len(sides):
        (filled,) = set(sides) - set(empty)
        there = "" if filled == "image" else f" {textwrap.shorten(row[filled], 60, placeholder=' …')!r}"
        raise UsageError(f"{row['where']} has an empty {empty[0]} beside the {filled}{there}; fix or remove the row.")
    return {} if empty else row
