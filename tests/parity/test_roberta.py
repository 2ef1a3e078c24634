"""Our RoBERTa against transformers': the same logits from the same weights, in and out of every file format."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask
from models.masked_lm import MaskedLMConfig
from models.published import pretrained
from tests.models.small import apply
from tests.models.test_masked_lm import CONFIG, TOKENS, build
from tests.parity.close import assert_close, load_ours, noisy, torch, transformers
from tests.parity.close import logits_of as logits

PADDED = np.array([[5, 3, 9, 2, 7, 4, 8], [4, 6, 10, 3, 1, 1, 1], [1, 1, 2, 8, 5, 7, 1]])
REAL = PADDED != 1


def make(**changes):
    sizes = {"vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"intermediate_size": 32, "max_position_embeddings": 11, "type_vocab_size": 2, "layer_norm_eps": 1e-5}
    config = transformers.RobertaConfig(**sizes | more | changes)
    return noisy(lambda: transformers.RobertaForMaskedLM(config), 0.3)


def logits_of(model, tokens=PADDED, **options):
    return logits(model, tokens, **options)


@pytest.fixture
def saved(tmp_path):
    """A tiny RoBERTa of transformers', and the folder that it saved."""
    model = make()
    model.save_pretrained(tmp_path / "theirs")
    return model, str(tmp_path / "theirs")


def ours(folder):
    return load_ours(folder, MaskedLMConfig, lambda described: (described.vocabulary, described.length), TOKENS)


def assert_same(found, expected, where=...):
    assert_close(found, expected, "Roberta", atol=1e-4, rtol=0, where=where)


def test_logits_are_equal_with_and_without_a_padding_mask(saved):
    theirs, folder = saved
    model, params, report = ours(folder)
    assert (report.new, report.skipped) == ((), ())
    dropouts = dict.fromkeys(("embedding_dropout", "dropout", "attention_dropout"), 0.1)  # transformers' own
    assert model.config == dataclasses.replace(CONFIG, token_types=2, implementation="auto", **dropouts)
    masked = logits_of(theirs, attention_mask=torch.as_tensor(REAL.astype(int)))
    dense = Mask(dense=jnp.asarray(REAL)[:, None, None, :])
    assert_same(apply(model, params, jnp.asarray(PADDED), dense), masked, REAL)
    lengths = Mask(key_lengths=jnp.array([7, 4]))  # of the two whose padding trails
    assert_same(apply(model, params, jnp.asarray(PADDED[:2]), lengths), masked[:2], REAL[:2])
    assert_same(apply(model, params, jnp.asarray(PADDED)), logits_of(theirs))
    assert np.abs(logits_of(theirs) - masked)[REAL].max() > 1e-2  # the mask does something


def test_logits_are_equal_with_types(saved):
    theirs, folder = saved
    model, params, _ = ours(folder)
    types = np.arange(9) % 2 * np.ones((2, 1), int)
    expected = logits_of(theirs, np.asarray(TOKENS), token_type_ids=torch.as_tensor(types))
    assert_same(apply(model, params, TOKENS, types=jnp.asarray(types)), expected)


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_logits_are_equal_with_other_activations(tmp_path, activation):
    theirs = make(hidden_act=activation, type_vocab_size=1, layer_norm_eps=1e-6, pad_token_id=0)
    theirs.save_pretrained(tmp_path)
    model, params, _ = ours(str(tmp_path))
    assert_same(apply(model, params, TOKENS), logits_of(theirs, np.asarray(TOKENS)))


def test_gradients_are_equal(saved):
    theirs, folder = saved
    model, params, _ = ours(folder)
    tokens, labels = (torch.tensor(np.asarray(TOKENS[:, ::step])).long() for step in (1, -1))
    theirs(tokens, labels=labels).loss.backward()

    def loss(params):
        chances = jax.nn.log_softmax(model.apply(params, TOKENS))
        return -jnp.mean(jnp.take_along_axis(chances, TOKENS[:, ::-1, None], axis=-1))

    gradient = jax.jit(jax.grad(loss))(params)["params"]["block_0"]
    block = theirs.roberta.encoder.layer[0]
    for found, expected in (
        (gradient["mlp"]["up"]["kernel"], block.intermediate.dense.weight),
        (gradient["attention"]["query"]["kernel"].reshape(16, 16), block.attention.self.query.weight),
        (gradient["attention"]["out"]["kernel"].reshape(16, 16), block.attention.output.dense.weight),
    ):
        np.testing.assert_allclose(found, expected.grad.numpy().T, atol=1e-5, rtol=1e-3)


def test_our_export_loads_there(tmp_path):
    model, variables = build(depth=2, embedding_dropout=0.1, dropout=0.1)
    pretrained.export(str(tmp_path / "ours"), model.config, variables["params"])
    theirs, told = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.config.hidden_dropout_prob == 0.1
    assert theirs.config.attention_probs_dropout_prob == 0.0
    theirs.eval()
    assert_same(apply(model, variables, TOKENS), logits_of(theirs, np.asarray(TOKENS)))
    mask = torch.as_tensor(REAL.astype(int))
    found = apply(model, variables, jnp.asarray(PADDED), Mask(dense=jnp.asarray(REAL)[:, None, None, :]))
    assert_same(found, logits_of(theirs, attention_mask=mask), REAL)


def test_parameters_of_roberta_base_are_theirs():
    with torch.device("meta"):
        sizes = {"max_position_embeddings": 514, "type_vocab_size": 1}
        theirs = transformers.RobertaForMaskedLM(transformers.RobertaConfig(**sizes))
    assert sum(parameter.numel() for parameter in theirs.parameters()) == 124_697_433
