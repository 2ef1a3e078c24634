"""The same colours and the same bytes everywhere."""

import numpy as np
from matplotlib.figure import Figure

from analysis.pictures import style
from models.mechanisms import MECHANISMS


@style.quiet
def some_figure():
    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([0, 1], [1, 0], label="$x 漢")
    figure.legend()
    return figure


def test_mechanisms_look_different():
    """A mechanism without a look takes a free one in each picture."""
    assert len(set(style.MECHANISMS.values())) == len(style.MECHANISMS)
    assert len(set(style.colours(MECHANISMS).values())) == len(MECHANISMS)
    labels = [f"{name}, heads {heads}" for name in ("super", "efficient", "word") for heads in range(8)]
    assert len(set(style.colours(labels).values())) == len(labels)


def test_weights_are_orange_negative_ones_are_blue_and_zero_shows_what_is_below():
    for weights, blue in (([0.0, 0.2, 0.5], False), ([-0.4, 0.0, 0.1], True)):
        look = style.scale(np.array(weights))
        low, high = look["clim"]
        red, _, of_blue, alpha = look["cmap"]((np.array(weights) - low) / (high - low)).T
        np.testing.assert_allclose(alpha, 0.9 * np.abs(weights) / max(map(abs, weights)), atol=0.01)
        assert (of_blue > red).any() == blue
        assert max(abs(low), high) == max(map(abs, weights))


def test_files_are_the_same_bytes_twice(tmp_path, recwarn):
    first, second = (style.save(some_figure(), tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in (*first, *second)] == ["a.png", "a.svg", "b.png", "b.svg"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert not recwarn.list


def test_an_ending_chooses_one_file(tmp_path):
    assert style.save(some_figure(), tmp_path / "b.1.svg") == (tmp_path / "b.1.svg",)
    assert [path.name for path in style.save(some_figure(), tmp_path / "dim=0.5")] == ["dim=0.5.png", "dim=0.5.svg"]
    assert len(list(tmp_path.iterdir())) == 3
