"""Our Marian against transformers': the same logits from the same weights, both ways, and the same tokens of texts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.published import pretrained
from models.published.hugging_face import BIN, SAFETENSORS
from tests.models.published.families import SPECIAL
from tests.models.published.families import build as build_ours
from tests.parity.close import assert_close, load_ours, noisy, torch, transformers
from tests.train.data.tokenisers.test_marian import TEXTS, write
from train.data import tokenisers

SOURCE = np.array([[5, 3, 9, 2, 7, 8, 0], [4, 6, 0, 12, 12, 12, 12], [0, 12, 12, 12, 12, 12, 12]])
LENGTHS = np.array([7, 3, 1])
TARGET = np.array([[12, 8, 2, 5, 11], [12, 3, 10, 0, 12], [12, 7, 12, 12, 12]])
REAL = np.arange(5) < np.array([5, 4, 2])[:, None]


def make(seed=0, noise=0.3, **changes):
    sizes = {"vocab_size": 13, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "max_position_embeddings": 24}
    sizes |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    sizes |= {f"{side}_ffn_dim": 32 for side in ("encoder", "decoder")}
    tokens = {"pad_token_id": 12, "decoder_start_token_id": 12, "eos_token_id": 0, "forced_eos_token_id": 0}
    settings = {"activation_function": "swish", "scale_embedding": True, **sizes, **tokens, **changes}
    config = transformers.MarianConfig(**settings)
    model = noisy(lambda: transformers.MarianMTModel(config), noise, seed, but="embed_positions")
    model.final_logits_bias += noise * torch.randn_like(model.final_logits_bias)
    return model


def logits_of(model, source=SOURCE, lengths=LENGTHS, target=TARGET):
    mask = (np.arange(source.shape[1]) < lengths[:, None]).astype(int)
    with torch.no_grad():
        return model(*map(torch.as_tensor, (source, mask, target))).logits.numpy()


def ours(folder):
    sizes = lambda described: (*[described.vocabulary] * 2, *[described.length] * 2)  # noqa: E731
    model, params, report = load_ours(folder, EncoderDecoderConfig, sizes, SOURCE, LENGTHS, TARGET)
    return model, params["params"], report


def apply(model, params, source=SOURCE, lengths=LENGTHS, target=TARGET):
    return np.asarray(jax.jit(model.apply)({"params": params}, *map(jnp.asarray, (source, lengths, target))))


def assert_same(found, expected, where=REAL):
    assert_close(found, expected, "Marian", where=where)


@pytest.fixture
def saved(tmp_path):
    """A tiny Marian of transformers', and the folder that it saved."""
    model = make()
    model.save_pretrained(tmp_path / "theirs")
    return model, str(tmp_path / "theirs")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation_function": "relu", "decoder_layers": 3},
        {"activation_function": "gelu", "scale_embedding": False, "encoder_layers": 1},
    ],
)
def test_logits_are_equal_with_padding_on_both_sides(tmp_path, changes):
    theirs = make(**changes)
    theirs.save_pretrained(tmp_path)
    model, params, report = ours(str(tmp_path))
    assert (report.new, report.skipped, report.cut) == ((), (), ())
    assert_same(apply(model, params), logits_of(theirs))
    for row, (length, targets) in enumerate(zip(LENGTHS, REAL.sum(axis=1), strict=True)):  # alone, without padding
        source, target = SOURCE[row : row + 1, :length], TARGET[row : row + 1, :targets]
        alone = logits_of(theirs, source, LENGTHS[row : row + 1], target)
        assert_same(apply(model, params)[row : row + 1, :targets], alone, slice(None))


def test_every_weight_counts(saved):
    """Else the logits would be equal though an array were loaded into another's place."""
    _, folder = saved
    model, params, _ = ours(folder)
    arrays = [jnp.asarray(array) for array in (SOURCE, LENGTHS, TARGET)]
    gradients = jax.jit(jax.grad(lambda params: jnp.sum(jnp.sin(model.apply({"params": params}, *arrays)))))(params)
    for path, gradient in traverse_util.flatten_dict(gradients, sep="/").items():
        if not path.endswith("key/bias"):  # which softmax removes
            assert np.abs(gradient).max() > 1e-4, path


def test_bin_files_give_the_same_parameters(saved, tmp_path):
    """With everything that the published ones hold: copies of the embeddings and tables of positions."""
    theirs, folder = saved
    _, expected, _ = ours(folder)
    (tmp_path / "theirs" / SAFETENSORS).unlink()
    assert {"model.encoder.embed_positions.weight", "lm_head.weight"} <= set(theirs.state_dict())
    torch.save(theirs.state_dict(), tmp_path / "theirs" / BIN)
    _, params, report = ours(folder)
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert (report.new, report.skipped) == ((), ())


def test_a_half_precision_checkpoint_loads(saved, tmp_path):
    theirs, _ = saved
    theirs.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    model, params, _ = ours(str(tmp_path / "half"))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    again = transformers.MarianMTModel.from_pretrained(tmp_path / "half", dtype=torch.float32)
    assert_same(apply(model, params), logits_of(again))


@pytest.mark.parametrize("activation", ["swish", "relu"])
def test_our_export_loads_there(tmp_path, activation):
    rates = {"dropout": 0.1, "embedding_dropout": 0.1}
    config, params = build_ours("marian", length=24, activation=activation, **rates)
    model = EncoderDecoder(config, 13, 13, 24, 24)
    pretrained.export(str(tmp_path / "ours"), config, params, SPECIAL, 24)
    theirs, told = transformers.MarianMTModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    config, generation = theirs.config, theirs.generation_config
    assert (config.dropout, config.attention_dropout, config.max_position_embeddings) == (0.1, 0.0, 24)
    assert (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id) == (12, 12, 0)
    assert (generation.pad_token_id, generation.decoder_start_token_id, generation.max_length) == (12, 12, 24)
    assert (generation.forced_eos_token_id, generation.bad_words_ids) == (0, [[12]])
    assert_same(apply(model, params), logits_of(theirs.eval()))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The tokenisers of both sides, and transformers' for both."""
    folder = tmp_path_factory.mktemp("tokeniser")
    write(folder)
    made = [tokenisers.make(f"marian:{folder}/{side}.spm") for side in ("source", "target")]
    return *made, transformers.MarianTokenizer.from_pretrained(folder)


def test_ids_of_texts_are_equal(both):
    source, target, theirs = both
    end, unknown = source.special["end"], source.special["unknown"]
    assert (theirs.pad_token_id, theirs.eos_token_id, theirs.unk_token_id) == (source.special["pad"], end, unknown)
    assert unknown in source.encode("猫")
    for text in TEXTS:
        assert [*source.encode(text), end] == theirs(text).input_ids
        assert [*target.encode(text), end] == theirs(text_target=text).input_ids


def test_texts_of_ids_are_equal(both):
    source, target, theirs = both
    ids = np.random.default_rng(0).integers(0, source.size, (50, 9))
    for row in [*ids, *map(target.encode, TEXTS)]:
        assert target.decode(row) == theirs.decode(row, skip_special_tokens=True, use_source_tokenizer=False)
        assert source.decode(row) == theirs.decode(row, skip_special_tokens=True, use_source_tokenizer=True)
