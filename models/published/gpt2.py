"""GPT-2 (Radford et al. 2019) as `transformers` has it."""

import numpy as np

from models.gpt import GPTConfig
from models.published.architectures import Architecture, Arrays, Fields


def _cut(arrays: Arrays, theirs: Fields) -> Arrays:
    """Cuts GPT-2's arrays of queries, keys and values side by side, and turns its kernels, `(inputs, outputs)`."""
    cut: Arrays = {}
    for name, array in arrays.items():
        if name.endswith((".attn.bias", ".attn.masked_bias")):  # masks, of older files
            continue
        if "c_attn" in name:
            for side, part in zip("qkv", np.split(array, 3, axis=-1), strict=True):
                cut[name.replace("c_attn", side)] = part.T
        else:
            cut[name] = array.T if _turned(name) else array
    return cut


def _join(arrays: Arrays, theirs: Fields) -> Arrays:
    joined: Arrays = {}
    for name, array in arrays.items():
        if ".attn.q." in name:
            sides = [arrays[name.replace(".attn.q.", f".attn.{side}.")] for side in "qkv"]
            joined[name.replace(".attn.q.", ".attn.c_attn.")] = np.concatenate([side.T for side in sides], axis=-1)
        elif ".attn.k." not in name and ".attn.v." not in name:
            joined[name] = array.T if _turned(name) else array
    return joined


def _turned(name: str) -> bool:
    return name.endswith(("c_proj.weight", "c_fc.weight"))


GPT2 = Architecture(
    title="GPT-2",
    model_type="gpt2",
    transformers="GPT2LMHeadModel",
    config=GPTConfig,
    fields={
        "depth": "n_layer",
        "width": "n_embd",
        "heads": "n_head",
        "norm_epsilon": "layer_norm_epsilon",
        "activation": "activation_function",
    },
    dropouts={"embedding_dropout": "embd_pdrop", "dropout": "resid_pdrop", "attention_dropout": "attn_pdrop"},
    fixed={
        "norm": "pre",
        "norm_type": "layer",
        "positions": "learned",
        "gated": False,
        "attention_bias": True,
        "mlp_bias": True,
        "scale_embeddings": False,
        "tied_output": True,
        "head": 0,
        "logit_cap": 0.0,
    },
    standard={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "tie_word_embeddings": True},
    modules={"embed": "transformer.wte", "positions": "transformer.wpe", "norm": "transformer.ln_f"},
    blocks={"block": "transformer.h"},
    block_modules={
        **{f"attention/{side}": f"attn.{side[0]}" for side in ("query", "key", "value")},
        "attention/out": "attn.c_proj",
        "mlp/up": "mlp.c_fc",
        "mlp/down": "mlp.c_proj",
        "norm_attention": "ln_1",
        "norm_mlp": "ln_2",
    },
    body="transformer.",
    head="lm_head.",
    tied={"lm_head.weight": "transformer.wte.weight"},
    length="n_positions",
    read=lambda theirs: {"mlp": theirs.get("n_inner") or 4 * theirs["n_embd"], "attention": "dot_product"},
    write=lambda config: {"n_inner": config.mlp},
    unpack=_cut,
    pack=_join,
)
