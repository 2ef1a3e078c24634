"""That the command measures decoding and training; transformers, with the same tokens and losses, only where it is."""

import math

import pytest

from benchmarks import llama
from tests.benchmarks.conftest import AGAINST

SMALL = [f"--config.model.{size}" for size in ("depth=1", "width=16", "heads=8", "mlp=24")]
SHORT = ["--prompt=3", "--tokens=5", "--batches", "1", "2", "--sequences=2", "--length=6", "--vocabulary=40"]


@pytest.mark.more
@AGAINST
def test_the_command_measures_decoding_and_training(against, measured):
    chosen = [f"--against={against}"] if against else []
    result, printed = measured(llama.main, " ".join([*SMALL, *SHORT, "--rounds=1", *chosen]))
    contestants = {"bench", against} - {""}
    # Queries and outputs, half as many keys and values, three arrays of the MLP, three norms; embeddings.
    assert result["parameters"] == 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24 + 3 * 16 + 40 * 16
    assert [row["batch"] for row in result["decoding"]] == [1, 2]
    for row in result["decoding"]:
        assert set(row["tokens_per_second"]) == contestants
        assert row["same_tokens"] == 1.0
        assert row["weight_bytes_a_step"] == 4 * result["parameters"]
    losses = result["training"]["losses"]
    assert set(losses) == contestants
    if against:
        both = list(zip(losses["bench"], losses[against], strict=False))  # who is faster takes more steps
        assert len(both) > 1
        assert [ours for ours, _ in both] == pytest.approx([theirs for _, theirs in both], abs=1e-4)
    else:
        assert losses["bench"][0] == pytest.approx(math.log(40), abs=0.5)
        assert losses["bench"][1] < losses["bench"][0]
    assert f"{result['decoding'][0]['milliseconds_a_step']:.1f}" in printed
