"""Small models of all families, their folders, and what tests change in these."""

import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors.numpy import load_file, save_file

from models.encoder_decoder import EncoderDecoderConfig
from models.gpt import GPTConfig
from models.masked_lm import MaskedLMConfig
from models.published import pretrained
from models.published.hugging_face import CONFIG, SAFETENSORS
from models.vit import ViTConfig
from tests.models.small import random_params, small

VOCABULARY, LENGTH = 13, 6
SPECIAL = {"pad": 12, "start": 12, "end": 0}
TOKENS, IMAGES = jnp.zeros((1, 4), jnp.int32), jnp.zeros((1, 6, 6, 2))
MODERN = {"norm_type": "rms", "mlp_bias": False, "attention_bias": False, "gated": True}
UNPADDED = {"padding_token": 0, "skip_padding": False}
RELATIVE = "relative(buckets=8, distance=12, scale=1.0"
MODELS = {
    "roberta": small(MaskedLMConfig, norm="post"),
    "marian": small(
        EncoderDecoderConfig,
        **{"norm": "post", "positions": "sinusoidal_halves", "activation": "swish", "decoder_depth": 1},
        output_bias=True,
    ),
    "bert": small(MaskedLMConfig, norm="post", token_types=2, **UNPADDED),
    "modernbert": small(
        MaskedLMConfig,
        **{"attention": "dot_product|dot_product(window=3)", "token_types": 0, "norm_first": False},
        positions="rotary(base=160000.0)|rotary(base=10000.0)",
        **MODERN | UNPADDED | {"norm_type": "layer_without_bias"},
    ),
    "vit": small(ViTConfig, patch=2, pool="class_token"),
    "bloom": small(GPTConfig, attention="alibi", positions="none", activation="gelu_tanh", mlp=64, norm_embedding=True),
    "diffllama": small(
        GPTConfig,
        **{"attention": "differential(kv_heads=2)", "positions": "rotary(base=500.0)", "activation": "swish"},
        **{"heads": 4, "head": 8, "tied_output": False, "output_bias": False},
        **MODERN,
    ),
    "t5": small(
        EncoderDecoderConfig,
        **{"attention": f"{RELATIVE})", "decoder_attention": f"{RELATIVE}, ahead=False)"},
        **{"cross_attention": "dot_product(scale=1.0)", "positions": "none", "activation": "gelu_tanh", "head": 6},
        **{"scale_embeddings": False, "tied_output": False},
        **MODERN,
    ),
}

LLAMA = {"norm_type": "rms", "gated": True, "activation": "swish", "mlp_bias": False, "output_bias": False}
GEMMA = {"norm_type": "rms_offset", "scale_embeddings": True, "activation": "gelu_tanh", "head": 6, "norm": "sandwich"}
NORMED = "dot_product(qk_norm='rms_offset', scale=0.25"
YARN = "yarn(factor=8.0, original=16, fast=32.0, slow=1.0, exact=True, magnitude=1.0)"
LATENT = "dot_product(latent=6, latent_norm=True, rotary=4"
DECODERS = {
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
    "llama": {"attention": "dot_product(kv_heads=2)", "tied_output": False},
    "mistral": {"attention": "dot_product(kv_heads=2, window=5)"},
    "qwen2": {"attention_bias": True},
    "qwen3": {"attention": "dot_product(qk_norm='rms')", "positions": "rotary(base=1000000.0)", "norm_epsilon": 1e-6},
    "gemma2": GEMMA | {"attention": "soft_cap(cap=2.0, window=3)|soft_cap(cap=2.0)", "logit_cap": 3.0},
    "gemma3_text": GEMMA
    | {"attention": f"{NORMED}, window=3)|{NORMED})"}
    | {"norm_epsilon": 1e-6, "positions": "rotary(base=10000.0)|rotary(base=1000000.0, scaling='linear(factor=8.0)')"},
}
SIZES = {"depth": 2, "width": 16, "heads": 4, "mlp": 24, "positions": "rotary(base=500.0)"}
MODELS |= {kind: GPTConfig(name="gpt", **SIZES | LLAMA | fields) for kind, fields in DECODERS.items()}


# What a family's files lack, and what it is there.
ABSENT = {
    "modernbert": ("head/dense/bias", 0.0),
    "diffllama": ("score/scale", 1.0),
    "qwen2": ("attention/out/bias", 0.0),
}


def build(kind, seed=0, length=LENGTH, **changes):
    """A config and its parameters, of which every one counts that the family has."""
    config = dataclasses.replace(MODELS[kind], **changes)
    sizes, inputs = (VOCABULARY, length), (TOKENS,)
    if kind == "vit":
        sizes, inputs = (IMAGES.shape[1:], 5), (IMAGES,)
    if kind in ("t5", "marian"):
        sizes, inputs = (VOCABULARY, VOCABULARY, length, length), (TOKENS, jnp.array([4]), TOKENS)
    params = random_params(config.build(*sizes), *inputs, seed=seed)["params"]
    for side in ("encoder", "decoder") if kind == "t5" else ():  # which layers share
        params[f"{side}_1"]["attention"]["score"] = params[f"{side}_0"]["attention"]["score"]
    place, value = ABSENT.get(kind, ("nowhere", 0.0))
    flat = flatten_dict(params, sep="/")
    flat = {path: jnp.full_like(x, value) if path.endswith(place) else x for path, x in flat.items()}
    return config, unflatten_dict(flat, sep="/")


def export(folder, kind, length=LENGTH, **changes):
    config, params = build(kind, length=length, **changes)
    pretrained.export(str(folder), config, params, SPECIAL, length)
    return config, params


def load(folder, kind, **changes):
    """Parameters of a folder in a model that had others, and the report."""
    return pretrained.load(str(folder), *build(kind, seed=7, **changes))


def edit(folder, change):
    """Replaces a folder's weights by what `change` makes of them."""
    weights = load_file(folder / SAFETENSORS)
    change(weights)
    save_file(weights, folder / SAFETENSORS)


def describe(folder, changes):
    """Changes what a folder says of its model; `...` takes a field away."""
    said = json.loads((folder / CONFIG).read_text()) | changes
    (folder / CONFIG).write_text(json.dumps({name: value for name, value in said.items() if value is not ...}))


def as_flax(folder: Path):
    """A folder's weights as transformers' Flax models have them: (inputs, outputs), kernel, scale, embedding."""
    tree = {}
    for name, array in load_file(folder / SAFETENSORS).items():
        *path, leaf = name.split(".")
        if leaf == "weight":
            last = path[-1].lower()
            leaf = "scale" if "norm" in last else "embedding" if "embed" in last or last == "shared" else "kernel"
        tree[*path, leaf] = array.T if leaf == "kernel" else array
    return unflatten_dict(tree)
