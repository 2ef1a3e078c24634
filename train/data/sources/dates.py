"""Dates in two languages, `dates(...)`, which any machine can make with Babel from CLDR's data."""

import dataclasses
import datetime
import difflib
import functools
import hashlib
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated

import babel.dates
import babel.localedata

from attention import specs
from attention.errors import UsageError, check_known, unknown
from attention.types import Checked, Example, at_least, at_most, filled
from train.data.section import Section
from train.data.sources.rows import DataColumn, Row, Rows, digest
from train.data.splits import PARTS, named

FORMS = ("full", "long", "medium", "short")
Year = Annotated[int, at_least(1000), at_most(9999)]
Locales = Annotated[tuple[str, ...], filled, Example(("en", "de"))]
_NEAR = 5  # how many of the thousand language names an error shows


@dataclasses.dataclass(frozen=True)
class Dates(Checked):
    """The languages (Babel's names, such as `en` or `en_GB`), CLDR's forms, and the first and last year of the dates.

    A source is `en de Thursday, February 1, 2024`: its own language and the target's, then the date in one of the
    forms, always with four digits of the year. The target is the `full` form if the source has a weekday, else the
    `long` one, so that the source determines it. All white space is plain spaces.

    Each date occurs once; its hash chooses the languages and the form. No language is paired with itself.
    """

    sources: Locales = ("en",)
    targets: Locales = ("de",)
    forms: Annotated[tuple[str, ...], filled, Example(("full", "long"))] = FORMS
    first: Year = 1900
    last: Year = 2099

    def __post_init__(self):
        super().__post_init__()
        for locale in (*self.sources, *self.targets):
            known = babel.localedata.locale_identifiers()
            if locale not in known:
                near = difflib.get_close_matches(locale, known, n=_NEAR, cutoff=0.4)
                raise UsageError(
                    f"{unknown('language of dates', locale, near)} `pybabel --list-locales` lists all {len(known)}."
                )
        for form in self.forms:
            check_known("form of dates", form, FORMS)
        if not self.languages:
            raise UsageError(
                f"dates(sources={self.sources!r}, targets={self.targets!r}) has no two languages; add one."
            )
        if self.first > self.last:
            raise UsageError(f"dates(first={self.first}, last={self.last}) has no years; first must not be after last.")

    @property
    def languages(self) -> list[tuple[str, str]]:
        """The pairs of source and target languages."""
        pairs = itertools.product(self.sources, self.targets)
        return [pair for pair in pairs if pair[0] != pair[1]]

    def rows(self, split: str) -> Rows:
        """Opens `train`, `validation` or `test`: 80, 10 and 10 % of the dates, whatever the options."""
        named(dict.fromkeys(PARTS), split, "dates")
        content = digest([dataclasses.astuple(self), split, babel.__version__])
        return Rows(f"{split} of dates", content, functools.partial(self._pairs, split))

    def _pairs(self, split: str) -> Iterator[Row]:
        kinds = list(itertools.product(self.languages, self.forms))
        for key, date in sorted(_dates(self.first, self.last, split)):
            (source, target), form = kinds[int.from_bytes(key[8:16]) % len(kinds)]
            has_weekday = re.search(r"%\([Eec]+\)s", _pattern(source, form)[0].format)
            style = "full" if has_weekday else "long"
            text = f"{source} {target} {_write(date, source, form)}"
            yield {"where": f"The date {date}", "source": text, "target": _write(date, target, style)}


def open_split(name: str, split: str, columns: Sequence[DataColumn], data: Section) -> Rows:
    """Opens a split of the dates that a spec string names."""
    return parse(name).rows(split)


def parse(text: str, field: str = "data.source", forms: Collection[str] = ("dates(...)",)) -> Dates:
    """Reads `dates(...)`; raises a UsageError that names the config's field and what is valid if it cannot."""
    item = specs.parse_one(text, field, ["dates"], forms)
    specs.check_options(item, Dates)
    return Dates(**item.options)


def _dates(first: int, last: int, split: str) -> Iterator[tuple[bytes, datetime.date]]:
    """Yields the dates of a split, each with the hash that determines its place, languages and form."""
    days = range(datetime.date(first, 1, 1).toordinal(), datetime.date(last, 12, 31).toordinal() + 1)
    for date in map(datetime.date.fromordinal, days):
        key = hashlib.sha256(date.isoformat().encode()).digest()
        if {0: "validation", 1: "test"}.get(int.from_bytes(key[16:24]) % 10, "train") == split:
            yield key, date


def _write(date: datetime.date, locale: str, form: str) -> str:
    pattern, parsed = _pattern(locale, form)
    return " ".join(pattern.apply(date, parsed).split())  # CLDR also has narrow and non-breaking spaces


@functools.cache
def _pattern(locale: str, form: str) -> tuple[babel.dates.DateTimePattern, babel.Locale]:
    parsed = babel.Locale.parse(locale)
    pattern = parsed.date_formats[form]
    return babel.dates.DateTimePattern(pattern.pattern, re.sub(r"%\(y+\)s", "%(yyyy)s", pattern.format)), parsed
