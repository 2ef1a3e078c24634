"""Our BERT against transformers': the same logits from the same weights, in and out."""

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from attention import Mask
from models.masked_lm import MaskedLMConfig
from models.published import pretrained
from tests.models.small import apply
from tests.parity.close import assert_close, load_ours, logits_of, noisy, reloaded, torch, transformers

TOKENS = np.array([[5, 3, 9, 2, 7, 4, 8], [4, 6, 10, 3, 0, 0, 0], [0, 0, 2, 8, 5, 7, 0]])  # 0 is padding
REAL = TOKENS != 0
SIZES = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 32, "max_position_embeddings": 9}


@pytest.fixture
def saved(tmp_path):
    """A tiny BERT of transformers', and the folder that it saved."""
    model = noisy(lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)), 0.1)
    model.save_pretrained(tmp_path / "theirs")
    return model, tmp_path / "theirs"


def ours(folder):
    return load_ours(folder, MaskedLMConfig, lambda described: (described.vocabulary, described.length), TOKENS)


def test_logits_are_equal_with_padding_and_types_and_an_export_loads(saved, tmp_path):
    theirs, folder = saved
    model, params, report = ours(folder)
    assert (report.new, report.skipped, report.cut) == ((), (), ())
    tokens, mask = jnp.asarray(TOKENS), torch.as_tensor(REAL.astype(int))
    assert_close(apply(model, params, tokens), logits_of(theirs, TOKENS), "Bert")
    dense = Mask(dense=jnp.asarray(REAL)[:, None, None, :])
    assert_close(
        apply(model, params, tokens, dense), logits_of(theirs, TOKENS, attention_mask=mask), "Bert", where=REAL
    )
    types = np.arange(7) % 2 * np.ones((3, 1), int)
    expected = logits_of(theirs, TOKENS, token_type_ids=torch.as_tensor(types))
    assert np.abs(expected - logits_of(theirs, TOKENS)).max() > 1e-2
    assert_close(apply(model, params, tokens, types=jnp.asarray(types)), expected, "Bert")
    pretrained.export(str(tmp_path / "ours"), model.config, params["params"])
    again = reloaded(theirs, tmp_path / "ours")
    np.testing.assert_allclose(logits_of(again, TOKENS), logits_of(theirs, TOKENS), atol=1e-6)


def test_the_first_files_call_norms_gamma_and_beta(saved):
    theirs, folder = saved
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if "LayerNorm" in name]:
        renamed = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        weights[renamed] = weights.pop(name)
    weights["bert.pooler.dense.bias"] = np.zeros(16, np.float32)
    save_file(weights, folder / "model.safetensors")
    model, params, report = ours(folder)
    assert (report.new, report.skipped) == ((), ("bert.pooler.dense.bias",))
    assert_close(apply(model, params, jnp.asarray(TOKENS)), logits_of(theirs, TOKENS), "Bert")
