import datetime
import itertools
import re

import babel
import pytest

from attention.errors import UsageError
from tests.sizes import more
from tests.train.data import streams
from train.data.sources import dates
from train.data.sources.dates import Dates, parse
from train.data.splits import PARTS

MONTHS = [
    *("Januar", "Februar", "März", "April", "Mai", "Juni"),
    *("Juli", "August", "September", "Oktober", "November", "Dezember"),
]
DAYS = ["Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag"]


def read(split="train", **options):
    rows = Dates(**{"first": 1995, "last": 2004} | options).rows(split)
    return [(row["source"], row["target"]) for row in rows.read()]


def everywhere(**options):
    return list(itertools.chain.from_iterable(read(split, **options) for split in PARTS))


def german(target):
    """Reads the date of a German phrase, and whether it has a weekday, which must be right."""
    weekday, day, month, year = re.fullmatch(r"(?:(\w+), )?(\d+)\. (\w+) (\d{4})", target).groups()
    date = datetime.date(int(year), MONTHS.index(month) + 1, int(day))
    assert weekday in (None, DAYS[date.weekday()])
    return date, weekday is not None


def dates_of(pairs):
    return {german(target)[0] for _, target in pairs}


class TestPhrases:
    @pytest.mark.parametrize(
        ("source", "form", "expected"),
        [
            ("en", "full", "en de Thursday, February 1, 2024"),
            ("en", "long", "en de February 1, 2024"),
            ("en", "medium", "en de Feb 1, 2024"),
            ("en", "short", "en de 2/1/2024"),
            ("en_GB", "short", "en_GB de 01/02/2024"),
            ("fr", "full", "fr de jeudi 1 février 2024"),
            ("ja", "full", "ja de 2024年2月1日木曜日"),
            ("eu", "long", "eu de 2024(e)ko otsailaren 1(a)"),
        ],
    )
    def test_written_by_hand(self, source, form, expected):
        pairs = dict(everywhere(sources=(source,), forms=(form,), first=2024, last=2024))
        assert pairs[expected] == ("Donnerstag, 1. Februar 2024" if form == "full" else "1. Februar 2024")

    def test_white_space_is_plain(self):
        assert "\u202f" in babel.dates.format_date(datetime.date(2000, 1, 1), "long", locale="ru")
        texts = "".join(map("".join, read("test", sources=("ru",), targets=("bg",))))
        assert {character for character in texts if character.isspace()} == {" "}


class TestDetermined:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            more({"sources": ("en", "en_GB", "fr", "es", "ja", "ar", "ko"), "targets": ("de", "en", "zh")}),
            more({"sources": ("de", "hu", "th", "lt"), "targets": ("en",), "forms": ("medium", "short")}),
        ],
    )
    def test_no_source_has_two_targets(self, options):
        pairs = everywhere(**{"first": 1900, "last": 2099} | options)
        assert len(pairs) == 73_049
        assert len({source for source, _ in pairs}) == len(pairs)

    def test_sources_read_back_and_have_a_weekday_where_targets_have_one(self):
        for source, target in read(forms=("short",)):
            month, day, year = re.fullmatch(r"en de (\d+)/(\d+)/(\d{4})", source).groups()
            assert german(target) == (datetime.date(int(year), int(month), int(day)), False)
        pairs = read()
        assert {german(target)[1] for _, target in pairs} == {True, False}
        for source, target in pairs:
            assert german(target)[1] == bool(re.search("day, ", source))
        assert not any(german(target)[1] for _, target in read(sources=("ms_BN",), forms=("full",)))  # without weekday


class TestSplits:
    def test_every_date_once(self):
        parts = [read(split) for split in PARTS]
        days = sorted(date for part in parts for date in dates_of(part))
        assert days == [datetime.date(1995, 1, 1) + datetime.timedelta(i) for i in range(3653)]
        assert sum(map(len, parts)) == len(days)
        sizes = [sum(1 for _ in dates._dates(1900, 2099, split)) / 73_049 for split in PARTS]
        assert sizes == pytest.approx([0.8, 0.1, 0.1], abs=0.005)

    def test_no_option_moves_a_date(self):
        test = dates_of(read("test"))
        assert dates_of(read("test", sources=("fr", "ja"), forms=("short", "full"))) == test
        longer = dates_of(read("test", first=1990, last=2010))
        assert {date for date in longer if 1995 <= date.year <= 2004} == test

    def test_the_same_for_ever(self):
        assert read("validation")[:3] == [
            ("en de Oct 26, 2002", "26. Oktober 2002"),
            ("en de Tuesday, November 17, 1998", "Dienstag, 17. November 1998"),
            ("en de Mar 15, 2003", "15. März 2003"),
        ]

    def test_kinds_are_even_and_in_no_order(self):
        pairs = read(sources=("en", "fr", "de"), first=1980, last=2019)
        tags = [source[:5] for source, _ in pairs]
        full = [german(target)[1] for _, target in pairs]
        years = [german(target)[0].year for _, target in pairs]
        assert set(tags) == {"en de", "fr de"}  # no language into itself
        for most in (len(pairs), 2000):
            assert tags[:most].count("fr de") / most == pytest.approx(0.5, abs=0.05)
            assert sum(full[:most]) / most == pytest.approx(0.25, abs=0.05)
            assert sum(years[:most]) / most == pytest.approx(1999.5, abs=1)


def test_content_follows_options_split_and_babel(monkeypatch):
    contents = [Dates().rows(split).content for split in PARTS]
    contents += [Dates(last=2100).rows("train").content, Dates(sources=("fr",)).rows("train").content]
    assert Dates().rows("train").content == contents[0]
    monkeypatch.setattr("babel.__version__", "1.0")
    contents.append(Dates().rows("train").content)
    assert len(set(contents)) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": ("english",)}, r"language of dates 'english'\. .*`pybabel --list-locales` lists all"),
        ({"sources": ("en-GB",)}, r"'en-GB'\. Did you mean 'en_GB'"),
        ({"forms": ("ful",)}, r"form of dates 'ful'\. Did you mean 'full'"),
        ({"sources": ("de",)}, r"sources=\('de',\), targets=\('de',\)\) has no two languages"),
        ({"first": 999}, "option first must be at least 1000 and at most 9999, but it is 999"),
        ({"first": 2000, "last": 1999}, r"first=2000, last=1999\) has no years"),
    ],
)
def test_mistakes(options, message):
    with pytest.raises(UsageError, match=message):
        Dates(**options)


def test_names_are_spec_strings():
    pairs = streams.read("dates(sources=('fr',), first=2000, last=2001)", "test", source="", target="")
    assert pairs == read("test", sources=("fr",), first=2000, last=2001)
    assert all(source.startswith("fr de ") for source, _ in pairs)
    with pytest.raises(UsageError, match=r"option of dates 'source'\. .*Valid: first, forms, last, sources, targets"):
        parse("dates(source=('en',))", "data.source")
