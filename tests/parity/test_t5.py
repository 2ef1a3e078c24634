"""Our T5 against transformers': the same logits from the same weights, in and out, and the same tokens of a search."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.encoder_decoder import EncoderDecoderConfig
from models.published import pretrained
from tests.parity.close import assert_close, load_ours, noisy, reloaded, torch, transformers
from tests.parity.test_marian import apply, logits_of
from tests.parity.test_marian_search import generated, generation, translated

SIZES = {"vocab_size": 13, "d_model": 16, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 2}
SIZES |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
KINDS = {"1.0": {"d_kv": 8}, "1.1": {"d_kv": 6, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}}
SPECIAL = {"pad": 0, "start": 0, "end": 1}
RANDOM = np.random.default_rng(0)
LENGTHS = RANDOM.integers(1, 17, 6)
SOURCE = np.where(np.arange(16) < LENGTHS[:, None], RANDOM.integers(2, 13, (6, 16)), 0)
TARGET = np.concatenate([np.zeros((6, 1), int), RANDOM.integers(2, 13, (6, 13))], axis=1)
BATCH = SOURCE, LENGTHS, TARGET
# Of float32, since T5 does not scale its scores: on some CPUs PyTorch and JAX are both 1.5e-5 from float64 somewhere.
ROUNDING = 5e-5


def make(kind, folder, seed=0, noise=0.3, factor=1.0, **changes):
    tokens = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    config = transformers.T5Config(**SIZES | tokens | KINDS[kind] | changes)
    model = noisy(lambda: transformers.T5ForConditionalGeneration(config), noise, seed)
    with torch.no_grad():
        model.shared.weight *= factor
    model.save_pretrained(folder)
    return model


def ours(folder):
    sizes = lambda described: (*[described.vocabulary] * 2, 20, 20)  # noqa: E731
    model, params, report = load_ours(folder, EncoderDecoderConfig, sizes, *BATCH)
    return model, params["params"], report


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_equal_and_an_export_loads(kind, tmp_path):
    theirs = make(kind, tmp_path / "theirs", factor=0.5 if kind == "1.1" else 1.0)  # logits of ten or so
    model, params, report = ours(tmp_path / "theirs")
    assert (report.new, report.skipped, report.cut) == ((), (), ())
    expected = logits_of(theirs, *BATCH)
    found = apply(model, params, *BATCH)
    assert_close(found, expected, "T5", atol=ROUNDING * np.abs(expected).max())
    pretrained.export(str(tmp_path / "ours"), model.config, params, SPECIAL, 20)
    again = reloaded(theirs, tmp_path / "ours")
    np.testing.assert_allclose(logits_of(again, *BATCH), expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beams", [1, 4])
def test_targets_of_a_search_are_theirs(kind, beams, tmp_path):
    theirs = make(kind, tmp_path / "plain", 3, 0.6, num_decoder_layers=2)  # the encoder's, as transformers' caches have
    with torch.no_grad():
        for block in theirs.decoder.block:  # targets that differ among sources
            block.layer[1].EncDecAttention.o.weight *= 3
    theirs.save_pretrained(tmp_path)
    options = {"num_beams": beams, "length_penalty": 1.0} if beams > 1 else {}
    theirs.generation_config = generation(SPECIAL)
    expected = generated(theirs, SOURCE, LENGTHS, pad=0, **options)
    assert len({row.tobytes() for row in expected}) > 2  # of six sentences
    ended = np.cumsum(expected == 1, axis=1) > (expected == 1)  # beams are filled with the end where padding is 0
    expected = np.where(ended, 0, expected)
    model, params, _ = ours(tmp_path)
    np.testing.assert_array_equal(translated(model, params, SOURCE, LENGTHS, beams, special=SPECIAL), expected)


def test_an_output_of_its_own_is_loaded_from_older_files(tmp_path):
    """As in the published files of version 1.1, whose output transformers ties today."""
    theirs = make("1.1", tmp_path, factor=0.5)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"lm_head.weight": 2 * weights["shared.weight"]}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": False}
    del config["scale_decoder_outputs"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, params, report = ours(tmp_path)
    assert not model.config.tied_output
    assert (report.new, report.skipped) == ((), ())
    expected = 2 * logits_of(theirs, *BATCH)
    found = apply(model, params, *BATCH)
    assert_close(found, expected, "T5", atol=ROUNDING * np.abs(expected).max())
