import datetime
import itertools

import pytest

from tests.train.data import streams
from train.data.sources.dates import Dates
from train.data.splits import PARTS


def rows(split="train", **options):
    return list(Dates(**{"first": 1995, "last": 2004} | options).rows(split).read())


def read(split="train", **options):
    return [(row["source"], row["target"]) for row in rows(split, **options)]


def everywhere(**options):
    return list(itertools.chain.from_iterable(read(split, **options) for split in PARTS))


def dates_of(split, **options):
    return [datetime.date.fromisoformat(row["where"].removeprefix("The date ")) for row in rows(split, **options)]


@pytest.mark.parametrize(
    ("source", "form", "expected"),
    [
        ("en", "full", "en de Thursday, February 1, 2024"),
        ("en", "short", "en de 2/1/2024"),
        ("en_GB", "short", "en_GB de 01/02/2024"),
        ("ja", "full", "ja de 2024年2月1日木曜日"),
        ("ru", "long", "ru de 1 февраля 2024 г."),  # where CLDR has a narrow space
        ("ms_BN", "full", "ms_BN de 01 Februari 2024"),  # without a weekday
    ],
)
def test_phrases_by_hand(source, form, expected):
    pairs = dict(everywhere(sources=(source,), forms=(form,), first=2024, last=2024))
    has_weekday = form == "full" and source != "ms_BN"
    assert pairs[expected] == ("Donnerstag, 1. Februar 2024" if has_weekday else "1. Februar 2024")


@pytest.mark.parametrize(
    "options", [{}, {"sources": ("en", "en_GB", "fr", "es", "ja", "ar", "ko"), "targets": ("de", "en", "zh")}]
)
def test_no_source_has_two_targets(options):
    pairs = everywhere(**options)
    assert len({source for source, _ in pairs}) == len(pairs) == 3653


class TestSplits:
    def test_every_date_once(self):
        parts = [dates_of(split) for split in PARTS]
        days = sorted(itertools.chain.from_iterable(parts))
        assert days == [datetime.date(1995, 1, 1) + datetime.timedelta(i) for i in range(3653)]
        assert [len(part) / len(days) for part in parts] == pytest.approx([0.8, 0.1, 0.1], abs=0.02)

    def test_no_option_moves_a_date(self):
        test = set(dates_of("test"))
        assert set(dates_of("test", sources=("fr", "ja"), forms=("short", "full"))) == test
        longer = dates_of("test", first=1990, last=2010)
        assert {date for date in longer if 1995 <= date.year <= 2004} == test

    def test_the_same_for_ever(self):
        assert read("validation")[:3] == [
            ("en de Oct 26, 2002", "26. Oktober 2002"),
            ("en de Tuesday, November 17, 1998", "Dienstag, 17. November 1998"),
            ("en de Mar 15, 2003", "15. März 2003"),
        ]

    def test_kinds_are_even_and_in_no_order(self):
        tags = [source[:5] for source, _ in read(sources=("en", "fr", "de"))]
        years = [date.year for date in dates_of("train")]
        assert set(tags) == {"en de", "fr de"}  # no language into itself
        for most in (len(tags), 1000):
            assert tags[:most].count("fr de") / most == pytest.approx(0.5, abs=0.05)
            assert sum(years[:most]) / most == pytest.approx(1999.5, abs=0.5)


def test_content_follows_options_split_and_babel(monkeypatch):
    contents = [Dates().rows(split).content for split in PARTS]
    contents += [Dates(last=2100).rows("train").content, Dates(sources=("fr",)).rows("train").content]
    assert Dates().rows("train").content == contents[0]
    monkeypatch.setattr("babel.__version__", "1.0")
    contents.append(Dates().rows("train").content)
    assert len(set(contents)) == 6


def test_names_are_spec_strings():
    pairs = streams.read("dates(sources=('fr',), first=2000, last=2001)", "test", source="", target="")
    assert pairs == read("test", sources=("fr",), first=2000, last=2001)
