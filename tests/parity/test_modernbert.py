"""Our ModernBERT against transformers': the same logits from the same weights, in and out."""

import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask
from models.masked_lm import MaskedLMConfig
from models.published import pretrained
from tests.models.small import apply
from tests.parity.close import assert_close, load_ours, logits_of, noisy, reloaded, torch, transformers

TOKENS = np.random.default_rng(0).integers(1, 13, (3, 12))
TOKENS[1, 8:] = 0  # padding
REAL = TOKENS != 0
SIZES = {"vocab_size": 13, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "pad_token_id": 0}
SIZES |= {"intermediate_size": 24, "max_position_embeddings": 32, "local_attention": 6}
SIZES |= dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
BASES = {"full_attention": {"rope_type": "default", "rope_theta": 300.0}}
BASES |= {"sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}


@pytest.mark.parametrize("options", [{}, {"rope_parameters": BASES, "global_attn_every_n_layers": 2}])
def test_logits_are_equal_with_padding_and_an_export_loads(options, tmp_path):
    config, eager = transformers.ModernBertConfig(**SIZES, **options), {"attn_implementation": "eager"}
    theirs = noisy(lambda: transformers.ModernBertForMaskedLM._from_config(config, **eager), 0.2)
    theirs.save_pretrained(tmp_path / "theirs")
    sizes = lambda described: (described.vocabulary, described.length)  # noqa: E731
    model, params, report = load_ours(tmp_path / "theirs", MaskedLMConfig, sizes, TOKENS)
    params["params"]["head"]["dense"]["bias"] *= 0
    assert (report.new, report.skipped) == (("head/dense/bias",), ())
    expected = logits_of(theirs, TOKENS, attention_mask=torch.as_tensor(REAL.astype(int)))
    dense = Mask(dense=jnp.asarray(REAL)[:, None, None, :])
    found = apply(model, params, jnp.asarray(TOKENS), dense)
    assert_close(found, expected, "ModernBert", where=REAL)
    pretrained.export(str(tmp_path / "ours"), model.config, params["params"], length=32)
    again = reloaded(theirs, tmp_path / "ours", **eager)
    np.testing.assert_allclose(logits_of(again, TOKENS), logits_of(theirs, TOKENS), atol=1e-6)
