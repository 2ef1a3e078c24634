"""Our BERT, RoBERTa and ModernBERT against transformers': the same logits from the same weights, in and out."""

import jax
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
REAL, TYPES = TOKENS != 0, np.arange(7) % 2 * np.ones((3, 1), int)
SIZES = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 0}
SIZES |= {"intermediate_size": 32, "max_position_embeddings": 12}
TYPED = SIZES | {"type_vocab_size": 2}
NEAR = SIZES | {"num_hidden_layers": 4, "local_attention": 4}
NEAR |= dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
BASES = {"full_attention": {"rope_type": "default", "rope_theta": 300.0}}
BASES |= {"sliding_attention": {"rope_type": "default", "rope_theta": 20.0}}
FAMILIES = {
    "bert": ("Bert", TYPED),
    "roberta": ("Roberta", TYPED | {"layer_norm_eps": 1e-5, "pad_token_id": 1}),
    **{name: ("Roberta", SIZES | {"type_vocab_size": 1, "hidden_act": name}) for name in ("gelu_new", "relu", "silu")},
    "gelu_pytorch_tanh": ("Roberta", SIZES | {"type_vocab_size": 1, "hidden_act": "gelu_pytorch_tanh"}),
    "modernbert": ("ModernBert", NEAR),
    "modernbert of other layers": ("ModernBert", NEAR | {"rope_parameters": BASES, "global_attn_every_n_layers": 2}),
}


def make(family, options, folder):
    config, kind = (getattr(transformers, f"{family}{end}") for end in ("Config", "ForMaskedLM"))
    model = noisy(lambda: kind._from_config(config(**options), attn_implementation="eager"), 0.2)
    model.save_pretrained(folder)
    return model


def ours(folder):
    return load_ours(folder, MaskedLMConfig, lambda described: (described.vocabulary, described.length), TOKENS)


@pytest.mark.parametrize("case", FAMILIES)
def test_logits_are_equal_with_padding_and_types_and_an_export_loads(case, tmp_path):
    family, options = FAMILIES[case]
    theirs = make(family, options, tmp_path / "theirs")
    model, params, report = ours(tmp_path / "theirs")
    if family == "ModernBert":  # whose head has no first bias
        params["params"]["head"]["dense"]["bias"] *= 0
    assert (report.new, report.skipped, report.cut) == (("head/dense/bias",) * (family == "ModernBert"), (), ())
    tokens = np.where(REAL, TOKENS, options["pad_token_id"])
    calls = {"plain": ({}, {}, ...)}
    mask, dense = torch.as_tensor(REAL.astype(int)), Mask(dense=jnp.asarray(REAL)[:, None, None, :])
    calls["padded"] = {"mask": dense}, {"attention_mask": mask}, REAL
    if model.config.token_types > 1:
        calls["typed"] = {"types": jnp.asarray(TYPES)}, {"token_type_ids": torch.as_tensor(TYPES)}, ...
    expected = {call: logits_of(theirs, tokens, **given) for call, (_, given, _) in calls.items()}
    for call, (given, _, where) in calls.items():
        assert call == "plain" or np.abs(expected[call] - expected["plain"])[where].max() > 1e-2
        assert_close(apply(model, params, jnp.asarray(tokens), **given), expected[call], family, atol=1e-4, where=where)
    pretrained.export(str(tmp_path / "ours"), model.config, params["params"], length=12)
    again = reloaded(theirs, tmp_path / "ours", attn_implementation="eager")
    np.testing.assert_allclose(logits_of(again, tokens), expected["plain"], atol=1e-6)


def test_the_first_files_call_norms_gamma_and_beta(tmp_path):
    theirs = make("Bert", TYPED, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in [name for name in weights if "LayerNorm" in name]:
        renamed = name.replace(".weight", ".gamma").replace(".bias", ".beta")
        weights[renamed] = weights.pop(name)
    weights["bert.pooler.dense.bias"] = np.zeros(16, np.float32)
    save_file(weights, tmp_path / "model.safetensors")
    model, params, report = ours(tmp_path)
    assert (report.new, report.skipped) == ((), ("bert.pooler.dense.bias",))
    assert_close(apply(model, params, jnp.asarray(TOKENS)), logits_of(theirs, TOKENS), "Bert")


def test_gradients_are_equal(tmp_path):
    theirs = make(*FAMILIES["roberta"], tmp_path)
    model, params, _ = ours(tmp_path)
    tokens, labels = (torch.tensor(np.ascontiguousarray(TOKENS[:, ::step])) for step in (1, -1))
    theirs(tokens, labels=labels).loss.backward()

    def loss(params):
        chances = jax.nn.log_softmax(model.apply(params, jnp.asarray(TOKENS)))
        return -jnp.mean(jnp.take_along_axis(chances, TOKENS[:, ::-1, None], axis=-1))

    gradient = jax.jit(jax.grad(loss))(params)["params"]["block_0"]
    block = theirs.roberta.encoder.layer[0]
    for found, expected in (
        (gradient["mlp"]["up"]["kernel"], block.intermediate.dense.weight),
        (gradient["attention"]["query"]["kernel"].reshape(16, 16), block.attention.self.query.weight),
        (gradient["attention"]["out"]["kernel"].reshape(16, 16), block.attention.output.dense.weight),
    ):
        np.testing.assert_allclose(found, expected.grad.numpy().T, atol=1e-5, rtol=1e-3)
