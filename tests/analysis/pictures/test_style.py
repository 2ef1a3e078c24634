"""The same colours and the same bytes everywhere."""

import pytest
from matplotlib.figure import Figure

from analysis.pictures import style
from attention import UsageError
from models.mechanisms import MECHANISMS


@style.quiet
def some_figure():
    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([0, 1], [1, 0], label="$x 漢")
    figure.legend()
    return figure


def test_every_mechanism_looks_different():
    assert set(style.MECHANISMS) == set(MECHANISMS)
    assert len(set(style.MECHANISMS.values())) == len(MECHANISMS)


def test_labels_take_the_colour_of_their_mechanism_whatever_else_is_drawn():
    alone = style.colours(["model.attention=super, model.heads=2"])
    together = style.colours(
        ["neural(dim=2)|dot_product", "other", "model.attention=super, model.heads=2", "dot_product"]
    )
    assert set(alone.values()) == {style.MECHANISMS["super"]}
    assert together["model.attention=super, model.heads=2"] == style.MECHANISMS["super"]
    assert together["neural(dim=2)|dot_product"] == style.MECHANISMS["neural"]
    assert together["dot_product"] == style.MECHANISMS["dot_product"]


def test_labels_of_one_mechanism_differ():
    labels = [f"{name}, heads {heads}" for name in ("super", "efficient", "word") for heads in range(8)]
    assert len(set(style.colours(labels).values())) == len(labels)


def test_files_are_the_same_bytes_twice(tmp_path, recwarn):
    first, second = (style.save(some_figure(), tmp_path / name) for name in ("a", "b.svg"))
    assert [path.name for path in (*first, *second)] == ["a.png", "a.svg", "b.png", "b.svg"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert len(one.read_bytes()) > 1000
    assert not recwarn.list


def test_files_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be drawn"):
        style.save(some_figure(), tmp_path / "file" / "picture")
