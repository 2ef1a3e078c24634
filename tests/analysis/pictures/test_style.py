"""The same colours and the same bytes everywhere."""

import re

import numpy as np
from matplotlib.colors import rgb_to_hsv, to_rgb
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
    assert set(style.MECHANISMS) <= set(MECHANISMS)
    assert len(set(style.MECHANISMS.values())) == len(style.MECHANISMS)
    assert len(set(style.colours(MECHANISMS).values())) == len(MECHANISMS)
    labels = [f"{name}, heads {heads}" for name in ("super", "efficient", "word") for heads in range(8)]
    assert len(set(style.colours(labels).values())) == len(labels)


def test_a_mechanism_has_its_colour_or_a_lighter_shade_of_it_whatever_else_is_drawn():
    """Variants have the mechanism's hue."""
    variants = [f"neural(dim={dim})|dot_product" for dim in (2, 16, 64)]
    looks = style.colours(["dot_product", *variants, "additive", "model.attention=super, model.heads=2", "other"])
    hues = [rgb_to_hsv(to_rgb(looks[name][0])) for name in variants]
    np.testing.assert_allclose([hue for hue, _, _ in hues], rgb_to_hsv(to_rgb(style.BLUE))[0], atol=0.01)
    assert looks["model.attention=super, model.heads=2"] == style.MECHANISMS["super"]
    assert looks["dot_product"] == style.MECHANISMS["dot_product"]
    assert len(set(looks.values())) == len(looks)


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
        assert len(one.read_bytes()) > 1000
    assert not recwarn.list


def test_an_ending_chooses_one_file(tmp_path):
    assert style.save(some_figure(), tmp_path / "b.1.svg") == (tmp_path / "b.1.svg",)
    assert [path.name for path in style.save(some_figure(), tmp_path / "dim=0.5")] == ["dim=0.5.png", "dim=0.5.svg"]
    assert len(list(tmp_path.iterdir())) == 3


@style.quiet
def test_an_svg_has_no_ground_and_all_its_ink_is_light_on_dark_pages(tmp_path):
    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([0, 1], color=style.BLACK, label="x")
    figure.legend()
    text = style.save(figure, tmp_path / "a.svg")[0].read_text()
    drawn, rules = text.partition("<style")[0] + text.partition("</style>")[2], text.partition("</style>")[0]
    ink = {colour for colour in re.findall(r"(?:fill|stroke): (#\w+)", drawn) if max(to_rgb(colour)) < 0.45}
    assert style.BLACK in ink
    assert all(f'[style*="stroke: {colour}"]{{stroke:{style.ON_DARK[colour]} !important}}' in rules for colour in ink)
    assert all(min(to_rgb(style.ON_DARK[colour])) > 0.7 for colour in ink)
    assert "fill: #ffffff" not in drawn
