"""BLOOM (2211.05100) as `transformers` has it: ALiBi, and a norm of the embeddings."""

from typing import Any

import numpy as np

from models.gpt import GPTConfig
from models.published.architectures import Architecture, Arrays, Fields

FUSED = "query_key_value"
SIDES = ("query", "key", "value")
OTHER_NAMES = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "hidden_size": "n_embed"}


def complete(theirs: Fields) -> dict[str, Any]:
    """Returns their fields by today's names, with the length of training."""
    renamed = {name: theirs[old] for name, old in OTHER_NAMES.items() if name not in theirs and old in theirs}
    return {"seq_length": 2048, **theirs, **renamed}


def unpack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Cuts arrays that have query, key and value of each head one after the other."""
    cut: Arrays = {}
    for name, array in arrays.items():
        if FUSED not in name:
            cut[name] = array
            continue
        heads = array.reshape(theirs["n_head"], len(SIDES), -1, *array.shape[1:])
        for index, side in enumerate(SIDES):
            cut[name.replace(FUSED, side)] = heads[:, index].reshape(-1, *array.shape[1:])
    return cut


def pack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Undoes `unpack`."""
    joined = {name: array for name, array in arrays.items() if not any(f".{side}." in name for side in SIDES)}
    for name in arrays.keys() - joined.keys():
        if ".query." in name:
            sides = [arrays[name.replace("query", side)] for side in SIDES]
            heads = [side.reshape(theirs["n_head"], -1, *side.shape[1:]) for side in sides]
            whole = np.stack(heads, axis=1)
            joined[name.replace("query", FUSED)] = whole.reshape(-1, *whole.shape[3:])
    return joined


BLOOM = Architecture(
    title="BLOOM",
    model_type="bloom",
    transformers="BloomForCausalLM",
    config=GPTConfig,
    fields={"depth": "n_layer", "width": "hidden_size", "heads": "n_head", "norm_epsilon": "layer_norm_epsilon"},
    dropouts={"dropout": "hidden_dropout", "attention_dropout": "attention_dropout"},
    fixed={
        "attention": "alibi",
        "norm": "pre",
        "norm_type": "layer",
        "norm_embedding": True,
        "positions": "none",
        "activation": "gelu_new",
        "gated": False,
        "attention_bias": True,
        "mlp_bias": True,
        "scale_embeddings": False,
        "tied_output": True,
        "head": 0,
        "logit_cap": 0.0,
    },
    standard={"apply_residual_connection_post_layernorm": False, "tie_word_embeddings": True},
    modules={
        "embed": "transformer.word_embeddings",
        "norm_embedding": "transformer.word_embeddings_layernorm",
        "norm": "transformer.ln_f",
    },
    blocks={"block": "transformer.h"},
    block_modules={
        **{f"attention/{side}": f"self_attention.{side}" for side in SIDES},
        "attention/out": "self_attention.dense",
        "mlp/up": "mlp.dense_h_to_4h",
        "mlp/down": "mlp.dense_4h_to_h",
        "norm_attention": "input_layernorm",
        "norm_mlp": "post_attention_layernorm",
    },
    body="transformer.",
    head="lm_head.",
    tied={"lm_head.weight": "transformer.word_embeddings.weight"},
    length="seq_length",
    complete=complete,
    read=lambda theirs: {"mlp": 4 * theirs["hidden_size"]},
    unpack=unpack,
    pack=pack,
)
