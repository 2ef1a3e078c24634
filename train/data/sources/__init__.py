"""Sources of rows with named columns. To add one, add a file here and an entry in SOURCES."""

import dataclasses
import importlib
from collections.abc import Callable

from attention.errors import UsageError, unknown
from train.data.section import Section
from train.data.sources.rows import DataColumn, Rows


@dataclasses.dataclass(frozen=True)
class Source:
    """An entry of SOURCES; the file of the same name opens its splits.

    Prepared images keep their size, and slices of them their order. Others are brought to one size, and shuffled before
    they are sliced, since they may be sorted by class.
    """

    form: str  # how `data.source` names it: plainly, with a place after a colon, or with options
    gives: tuple[str, ...]  # the kinds of data that it has
    is_prepared: bool = False


SOURCES = {
    "digits": Source("digits", ("images",), is_prepared=True),
    "numpy": Source("numpy:FILE.npz", ("images",), is_prepared=True),
    "folder": Source("folder:DIR", ("images",)),
    "pydoc": Source("pydoc", ("text",)),
    "dates": Source("dates(sources=('en', 'fr'), targets=('de',))", ("pairs",)),
    "caption_digits": Source("caption_digits", ("captions",), is_prepared=True),
    "file": Source("file:PATH", ("images", "text", "pairs", "captions")),
    "hf": Source("hf:NAME", ("images", "text", "pairs", "captions")),
    "tfds": Source("tfds:NAME", ("images", "text", "pairs"), is_prepared=True),
}


def checker(kind: str) -> Callable[[str, str], None]:
    """Makes the check of a config field that names a source of `images`, `text`, `pairs` or `captions`.

    The check raises UsageError for anything else; it opens nothing.
    """

    def check(source: str, field: str) -> None:
        valid = {name: row for name, row in SOURCES.items() if kind in row.gives}
        forms = [row.form for row in valid.values()]
        name = kind_of(source)
        if name not in valid:
            raise unknown(field, source, forms)
        if "(" in valid[name].form:
            importlib.import_module(f"{__name__}.{name}").parse(source, field, forms)

    return check


def kind_of(source: str) -> str:
    """Finds the key in SOURCES that a source has; '' if it has none."""
    name, colon, place = source.partition(":")
    name = name.partition("(")[0]
    form = SOURCES[name].form if name in SOURCES else ""
    fits = place if ":" in form else not colon and ("(" in form or source == name)
    return name if form and fits else ""


def is_prepared(source: str) -> bool:
    """Says whether a source's images are prepared; see `Source`."""
    return SOURCES[kind_of(source)].is_prepared


def open_split(data: Section, split: str) -> Rows:
    """Opens a split by its plain name, from a config section's source, with the section's `COLUMNS`.

    Sources inside packages have columns of their own. Raises UsageError if the source, the split (MissingSplitError) or
    a column does not exist or cannot be read.
    """
    columns = [DataColumn(role, f"data.{field}", getattr(data, field)) for role, field in data.COLUMNS.items()]
    kind = kind_of(data.source)
    _, _, place = data.source.partition(":")
    names = tuple(column.name for column in columns)
    if place and len(columns) == 2 and ("" in names or names[0] == names[1]):
        fields = " and ".join(column.field for column in columns)
        raise UsageError(f"{fields} must name two columns (or languages), but they are {names}.")
    return importlib.import_module(f"{__name__}.{kind}").open_split(place or data.source, split, columns, data)
