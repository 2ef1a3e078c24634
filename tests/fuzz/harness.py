"""What every fuzzing test needs: nasty values, damaged files, a budget of time, and the question itself."""

import functools
import itertools
import json
import os
import signal
import time

import hypothesis
from hypothesis import HealthCheck
from hypothesis import strategies as st

from attention.errors import MESSAGE, UsageError

SECONDS = float(os.environ.get("FUZZ_SECONDS", 8))  # of all properties together
RANDOM = "FUZZ_RANDOM" in os.environ  # else every run begins with the same
PATIENCE = 30  # seconds for one answer
properties = []


class Unanswered(BaseException):
    """A call went on and on."""


DIGITS = st.integers(0, 6).map(lambda power: "9" * 4**power)
NESTED = st.builds(
    lambda opening, depth: opening * 4**depth,
    st.sampled_from(["[", "(", "{", "-", "not ", "[{'a':"]),
    st.integers(0, 8),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    DIGITS.map(int),
    st.sampled_from([10**9, 2**31, 2**40, 2**63, -1, 0, 1e308, 1e-320, "", "\ud800", "a" * 10**6]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=6,
)
TEXTS = st.one_of(
    st.text(max_size=30),
    VALUES.map(lambda value: repr(value) if len(str(value)) < 10**4 else str(value)),
    DIGITS,
    DIGITS.map(lambda digits: f"1e{digits}"),
    NESTED,
    st.sampled_from(
        ["{[]: 1}", "{1, []}", "a|" * 30_000 + "a", "[" * 300 + "]" * 300, "x" * 10**6, "1_000", "0x10", "\x00"]
    ),
)


def fuzzed(**strategies):
    """Makes a test of a property, which is tried with the drawn values for its share of `SECONDS`."""

    def decorate(check):
        properties.append(check)

        @functools.wraps(check)
        def test(tmp_path_factory, unchecked_shapes):
            places = itertools.count()
            folder = tmp_path_factory.mktemp("fuzz")

            def tried(**drawn):
                place = folder / str(next(places))
                place.mkdir()
                check(place, **drawn)

            options = hypothesis.settings(
                max_examples=20, deadline=None, database=None, suppress_health_check=list(HealthCheck)
            )
            end = time.monotonic() + SECONDS / len(properties)
            for number in itertools.count(time.time_ns() if RANDOM else 0):
                hypothesis.seed(number)(options(hypothesis.given(**strategies)(tried)))()
                if time.monotonic() > end:
                    break

        del test.__wrapped__  # whose arguments pytest would take for fixtures
        return test

    return decorate


def answers(call, *arguments):
    """Calls; gives None where a mistake is told in one sentence, and lets other errors through, which are bugs."""
    signal.signal(signal.SIGALRM, _never)
    signal.alarm(PATIENCE)
    try:
        return call(*arguments)
    except UsageError as error:
        said = str(error)
        assert said.strip(), "nothing is said"
        assert len(said) <= MESSAGE, f"{len(said)} characters"
        assert "\n" not in said
        return None
    finally:
        signal.alarm(0)


def _never(*_):
    raise Unanswered(f"nothing was said for {PATIENCE} seconds")


@st.composite
def changed(draw, valid):
    """A JSON value as `valid`, with one or two of its nodes replaced or removed."""
    value = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(1, 2))):
        node, key = draw(st.sampled_from(list(_places(value))))
        if draw(st.booleans()):
            node[key] = draw(VALUES)
        elif isinstance(node, dict):
            del node[key]
        if not value:
            break
    return value


def _places(value):
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list) and value[key]:
            yield from _places(value[key])


@st.composite
def damaged(draw, data):
    """Bytes as `data`, some of them cut off, put in or changed."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        put_in = draw(st.binary(max_size=4) | st.sampled_from([b"[" * 10**5, b"9" * 400]))
        after = draw(st.sampled_from([at, at + 1, len(data)]))
        data = data[:at] + put_in + data[after:]
    return data


def texts_of(valid):
    """The bytes of a JSON file: a changed value, or a damaged text."""
    return changed(valid).map(lambda value: json.dumps(value).encode()) | damaged(json.dumps(valid).encode())
