"""That the command measures searches, both ways of them, and training steps; transformers only where it is."""

import pytest

from benchmarks import marian
from tests.benchmarks.conftest import AGAINST

SMALL = ["width=16", "heads=2", "mlp=16", "depth=1", "decoder_depth=1"]


@pytest.mark.long
@AGAINST
def test_the_command_measures_everything(against, measured, monkeypatch):
    flags = ["--rounds=1", "--source=4", "--tokens=5", "--again=6", "--vocabulary=40"]
    sizes = [f"--config.model.{size}" for size in SMALL]
    monkeypatch.setattr(marian, "BATCHES", (1, 2))
    result, printed = measured(marian.main, " ".join([*flags, *sizes, *[f"--against={against}"] * bool(against)]))
    contestants = {"bench", against} - {""}
    assert [(row["beams"], row["batch"]) for row in result["searches"]] == [(1, 1), (1, 2), (4, 1), (4, 2)]
    for row in result["searches"]:
        assert set(row["sentences_per_second"]) == contestants
        assert row["same_tokens"] == 1.0
        # Attention, cross-attention's queries and outputs, MLP and three norms with biases; the output with its own.
        weights = 6 * (16 * 16 + 16) + 2 * 16 * 16 + 32 + 3 * 32 + 40 * 17
        assert row["weight_bytes_a_step"] == 4 * weights
    assert result["again"]["same_tokens"] == 1.0
    assert set(result["training"]["tokens_per_second"]) == contestants
    first = [losses[0] for losses in result["training"]["losses"].values()]
    assert max(first) - min(first) < 0.5  # the same weights, other dropout
    ratio = result["projection"]["gaussian_over_dot_product"]
    assert 0 < ratio["least"] <= ratio["median"] <= ratio["greatest"]
    assert f"{ratio['median']:.2f}" in printed
