"""Targets that our search finds with a Marian against those of transformers' `generate`: token by token and beams."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.published import pretrained
from tests.models.published.families import SPECIAL
from tests.parity.test_marian import make, ours, torch, transformers
from train.generation.decoding import translate
from train.generation.search import Search

RANDOM = np.random.default_rng(0)
MANY = RANDOM.integers(1, 8, 12)
SENTENCES = np.where(np.arange(7) < MANY[:, None], RANDOM.integers(1, 12, (12, 7)), 12), MANY
VARIED = (2, 4, 6, 7, 8)  # seeds of models whose targets end at many lengths


def varied(seed):
    """A Marian that ends its targets here and there: its end is likelier at later positions."""
    model = make(seed)
    table = model.model.decoder.embed_positions.weight
    with torch.no_grad():
        model.model.shared.weight[0] += 2 * (table[6] - table[0])
    model.generation_config = generation(SPECIAL)
    return model


def generation(special):
    start, end = special["start"], special["end"]
    tokens = {"decoder_start_token_id": start, "pad_token_id": start, "eos_token_id": end, "forced_eos_token_id": end}
    return transformers.GenerationConfig(**tokens, bad_words_ids=[[start]], max_length=13)


def generated(model, source, lengths, pad=12, **options):
    """Their targets without the start, padded to 12 tokens."""
    mask = torch.as_tensor((np.arange(source.shape[1]) < lengths[:, None]).astype(int))
    with torch.no_grad():
        found = model.generate(torch.as_tensor(source), attention_mask=mask, do_sample=False, **options).numpy()
    return np.pad(found[:, 1:], ((0, 0), (0, 13 - found.shape[1])), constant_values=pad)


def translated(model, params, source, lengths, beams, length_penalty=1.0, special=SPECIAL):
    search = Search(beams=beams, length_penalty=length_penalty, max_length=12)
    arrays = jnp.asarray(source), jnp.asarray(lengths)
    return np.asarray(translate(model, params, *arrays, search, jax.random.key(0), **special)[0].tokens)


@pytest.mark.parametrize(("beams", "length_penalty"), [(1, 1.0), (4, 1.0), (4, 0.0), (4, 2.0)])
def test_targets_are_theirs(tmp_path, beams, length_penalty):
    options = {"num_beams": beams, "length_penalty": length_penalty} if beams > 1 else {}
    ends = []
    for seed in VARIED:
        theirs, folder = varied(seed), str(tmp_path / str(seed))
        theirs.save_pretrained(folder)
        model, params, _ = ours(folder)
        expected = generated(theirs, *SENTENCES, **options)
        np.testing.assert_array_equal(translated(model, params, *SENTENCES, beams, length_penalty), expected)
        ends += list((expected == 0).argmax(axis=1))
    assert len(set(ends)) >= 5


@pytest.mark.parametrize("beams", [1, 4])
def test_our_export_generates_what_we_do_however_padded(tmp_path, beams):
    varied(2).save_pretrained(tmp_path / "theirs")
    model, params, _ = ours(str(tmp_path / "theirs"))
    pretrained.export(str(tmp_path / "ours"), model.config, params, SPECIAL, 13)
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "ours").eval()
    source, lengths = SENTENCES
    expected = generated(theirs, source, lengths, num_beams=beams)
    longer = np.pad(source, ((0, 0), (0, 3)), constant_values=12)
    np.testing.assert_array_equal(translated(model, params, longer, lengths, beams), expected)
    short = lengths < 5
    found = translated(model, params, source[short, :4], lengths[short], beams)
    np.testing.assert_array_equal(found, expected[short])
    assert np.any(expected[:, 1:-1] == 0)
