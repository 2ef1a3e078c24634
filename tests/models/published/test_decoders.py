"""GPT-2, Llama and its descendants without transformers: `tests/parity` compares the logits with theirs."""

import dataclasses
import json
import math

import chex
import jax
import jax.numpy as jnp
import pytest
from safetensors.numpy import load_file

from attention import UsageError
from models.gpt import GPT, GPTConfig
from models.mechanisms import resolve
from models.published import decoders, pretrained
from models.published.hugging_face import CONFIG, SAFETENSORS
from tests.models.published.families import describe
from tests.models.small import random_params
from tests.sizes import more, once
from train import loading

MODERN = {"norm_type": "rms", "gated": True, "activation": "swish", "mlp_bias": False, "output_bias": False}
GEMMA = {"norm_type": "rms_offset", "scale_embeddings": True, "activation": "gelu_tanh", "head": 6, "norm": "sandwich"}
NORMED = "dot_product(qk_norm='rms_offset', scale=0.25"
YARN = "yarn(factor=8.0, original=16, fast=32.0, slow=1.0, exact=True, magnitude=1.0)"
LATENT = "dot_product(latent=6, latent_norm=True, rotary=4"
GPTS = {
    "deepseek_v2": {"attention": f"{LATENT}, query_latent=5)", "tied_output": False},
    "deepseek_v2 with yarn": {
        "attention": f"{LATENT}, scale=0.5)",
        "positions": f"rotary(base=500.0, scaling={YARN!r})",
    },
    "mamba2": {
        "attention": "state_space(groups=2, state=6, conv=3, gate='gate_first', skip=True, epsilon=1e-05)",
        **{"mlp": 0, "head": 8, "norm_epsilon": 1e-5, "positions": "none", "tied_output": False},
        **{"gated": False, "mlp_bias": True},
    },
    "mamba2 with heads of D/N": {
        "attention": "state_space(groups=4, state=5, conv=2, gate='gate_first', skip=True, epsilon=1e-05)",
        **{"mlp": 0, "norm_epsilon": 1e-5, "positions": "none"},
        **{"gated": False, "mlp_bias": True},
    },
    "llama": {"attention": "dot_product(kv_heads=2)", "tied_output": False},
    "mistral": {"attention": "dot_product(kv_heads=2, window=5)"},
    "qwen2": {"attention_bias": True},
    "qwen3": {"attention": "dot_product(qk_norm='rms')", "positions": "rotary(base=1000000.0)", "norm_epsilon": 1e-6},
    "gemma2": GEMMA | {"attention": "soft_cap(cap=2.0, window=3)|soft_cap(cap=2.0)", "logit_cap": 3.0},
    "gemma3_text": GEMMA
    | {"attention": f"{NORMED}, window=3)|{NORMED})"}
    | {"norm_epsilon": 1e-6, "positions": "rotary(base=10000.0)|rotary(base=1000000.0, scaling='linear(factor=8.0)')"},
}


def build(**fields):
    sizes = {"depth": 2, "width": 16, "heads": 4, "mlp": 24}
    config = GPTConfig(name="gpt", **sizes | {"positions": "rotary(base=500.0)"} | MODERN | fields)
    params = random_params(GPT(config, vocabulary=11, length=8), jnp.zeros((1, 4), jnp.int32))["params"]
    for layer in range(2) if config.attention_bias else ():  # Qwen 2 has none of outputs
        params[f"block_{layer}"]["attention"]["out"]["bias"] *= 0
    return config, params


@pytest.mark.parametrize("kind", once(GPTS, ["llama", "mamba2"]))
def test_a_gpt_goes_out_as_what_it_is_and_comes_back(kind, tmp_path):
    config, params = build(**GPTS[kind])
    pretrained.export(str(tmp_path / "out"), config, params, length=8)
    assert json.loads((tmp_path / "out" / CONFIG).read_text())["model_type"] == kind.partition(" ")[0]
    described = pretrained.describe(str(tmp_path / "out"))
    same = GPTConfig(name="gpt", **described.fields)
    assert same.mechanisms == config.mechanisms
    assert same.rotaries == config.rotaries
    assert (described.vocabulary, described.length) == (11, 8)
    spelled = {"attention": config.attention, "positions": config.positions}
    rates = {name: getattr(config, name) for name in ("dropout", "embedding_dropout", "attention_dropout")}
    assert dataclasses.replace(same, **spelled, **rates) == config
    loaded, report = pretrained.load(str(tmp_path / "out"), same, jax.tree.map(jnp.zeros_like, params))
    chex.assert_trees_all_equal(loaded, params)
    assert report.skipped == ()


def test_a_file_has_no_fields_that_only_other_families_read(tmp_path):
    """With types of layers, `transformers` makes masks that Llama refuses in a cache of fixed size."""
    pretrained.export(str(tmp_path), *build(**GPTS["llama"]))
    theirs = json.loads((tmp_path / CONFIG).read_text())
    assert {"attention_bias", "mlp_bias"} <= theirs.keys()  # which Llama reads
    assert not {"layer_types", "sliding_window", "query_pre_attn_scalar", "final_logit_softcapping"} & theirs.keys()


@pytest.mark.parametrize(
    ("kind", "older", "windows"),
    [
        more("gemma2", {}, [3, 0, 3, 0, 3, 0, 3]),
        more("gemma3_text", {}, [3, 3, 3, 3, 3, 0, 3]),
        ("gemma3_text", {"sliding_window_pattern": 2}, [3, 0, 3, 0, 3, 0, 3]),
        more("mistral", {}, [5] * 7),
        more("qwen2", {"sliding_window": 4}, [0] * 7),
        ("qwen2", {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 5}, [0, 0, 0, 0, 0, 4, 4]),
    ],
)
def test_older_files_do_not_say_which_layers_slide(kind, older, windows, tmp_path):
    pretrained.export(str(tmp_path), *build(**GPTS[kind]))
    missing = dict.fromkeys(("layer_types", "use_sliding_window"), ...)
    describe(tmp_path, missing | {"num_hidden_layers": 7} | older)
    fields = pretrained.describe(str(tmp_path)).fields
    assert [row.window for row in resolve(fields["attention"], 7)] == windows


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention": "neural(dim=2)"}, r"no such model; .* closest, but model.attention is 'neural\(dim=2\)'"),
        ({"positions": "none"}, "model.positions is 'none'"),
        ({"gated": False}, "model.gated is False, there True"),
        ({"mlp": 0, "gated": False, "mlp_bias": True}, r"model\.mlp is 0, and blocks there have an MLP"),
        (GPTS["mamba2"] | {"activation": "gelu"}, r"model\.activation is 'gelu', there 'swish'"),
    ],
)
def test_what_has_no_counterpart_is_not_exported(fields, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        pretrained.export(str(tmp_path / "out"), *build(**fields))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "part of each head"),
        ("llama", {"tie_word_embeddings": "false"}, "tie_word_embeddings='false', which cannot be loaded"),
        ("deepseek_v2", {"first_k_dense_replace": 1}, r"1 of the 2 layers have experts \(first_k_dense_replace=1\)"),
        more("deepseek_v2", {"v_head_dim": 3}, "Values of a head are 3 wide and keys 4; only equal widths"),
        more("deepseek_v2", {"attention_bias": True}, "attention_bias=True; only False can be loaded"),
        ("llama", {"model_type": "gpt_oss"}, "'gpt_oss', which cannot be loaded: its MLPs are experts"),
        more("qwen3", {"rms_norm_eps": 1e-5}, "rms_norm_eps=1e-05 is of queries and keys too"),
        more("gemma2", {"layer_types": ["full_attention"]}, "only 2 times sliding_attention or full_attention can"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "a GPT is causal"),
        ("mamba2", {"hidden_act": "gelu"}, "hidden_act='gelu'; only 'silu' can be loaded"),
        ("llama", {"intermediate_size": 0}, "intermediate_size=0; only blocks with an MLP can be loaded"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic.* cannot be loaded; only lin"),
        ("llama", {"rope_parameters": ..., "rope_theta": 0}, "options must be numbers above 0"),  # 0 is not the usual
    ],
)
def test_what_our_gpt_has_not_is_refused(kind, change, message, tmp_path):
    pretrained.export(str(tmp_path), *build(**GPTS[kind]))
    describe(tmp_path, change)
    with pytest.raises(UsageError, match=message):
        pretrained.describe(str(tmp_path))


LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}
LLAMA_3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (
            {"rope_type": "llama3"},
            "without factor, original_max_position_embeddings, low_freq_factor, high_freq_factor",
        ),
        *((LLAMA_3 | {name: None}, f"cannot be loaded without {name}") for name in [*LLAMA_3][1:]),
        *((LLAMA_3 | {name: 0}, "options must be numbers above 0") for name in [*LLAMA_3][1:]),
        ({"rope_type": "linear", "factor": 0}, "options must be numbers above 0"),
        *(({"rope_theta": theta}, "options must be numbers above 0") for theta in (0, -1.0, math.inf, None, True)),
    ],
)
def test_rotary_positions_need_all_their_numbers(rope, message):
    """None is taken for one that is off."""
    with pytest.raises(UsageError, match=message):
        decoders.rotary_spec(rope)


TYPES = {"F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1, "I64": 8, "C64": 8}  # bytes of a number


@pytest.mark.parametrize("kind", TYPES)
def test_weights_that_are_no_plain_floats_are_refused(tmp_path, kind):
    config, params = build(**GPTS["llama"])
    pretrained.export(str(tmp_path), config, params)
    write_zeros(
        tmp_path / SAFETENSORS, {name: array.shape for name, array in load_file(tmp_path / SAFETENSORS).items()}, kind
    )
    with pytest.raises(UsageError, match=r"numbers of type \w+; give the model in (bfloat16 or )?float32\."):
        pretrained.load(str(tmp_path), config, params)


def write_zeros(path, shapes, kind):
    """Writes the format by hand, since NumPy has not all of its types."""
    head, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + TYPES[kind] * math.prod(shape)
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(head).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


def test_the_wide_keys_of_mamba_are_no_heads_of_dot_products(tmp_path):
    config, params = build(**GPTS["mamba2"] | {"attention": GPTS["mamba2"]["attention"].replace("state=6", "state=16")})
    pretrained.export(str(tmp_path), config, params, length=8)
    exchanged, fresh = build(**GPTS["mamba2"] | {"attention": "dot_product"})
    _, report = pretrained.load(str(tmp_path), exchanged, fresh)
    assert report.regrouped == ()
    carried = {path.split("/")[2] for path in report.carried}
    assert carried == {"out", "value"}


@pytest.mark.more
def test_todays_gpt_is_a_llama(tmp_path):
    config = loading.validate(loading.load("configs/gpt_modern_pydoc.py").to_dict()).model
    params = random_params(GPT(config, 260, 8), jnp.zeros((1, 4), jnp.int32))["params"]
    pretrained.export(str(tmp_path), config, params)
    assert json.loads((tmp_path / CONFIG).read_text())["model_type"] == "llama"
