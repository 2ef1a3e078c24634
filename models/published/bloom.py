"""BLOOM (arXiv:2211.05100) as in `transformers`, with ALiBi and a norm of the embeddings."""

from typing import Any

from models.gpt import GPTConfig
from models.published.architectures import SIDES, Architecture, Arrays, Fields, swapped
from models.published.gpt2 import FIXED

FUSED = ".query_key_value."
OTHER_NAMES = {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "hidden_size": "n_embed"}


def complete(theirs: Fields) -> dict[str, Any]:
    """Renames fields of older files, and adds the length in training."""
    renamed = {name: theirs[old] for name, old in OTHER_NAMES.items() if name not in theirs and old in theirs}
    return {"seq_length": 2048, **theirs, **renamed}


def unpack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Puts the queries of all heads before all keys and values; files have those of each head together."""
    sizes = theirs["n_head"], len(SIDES), -1
    return {name: swapped(array, *sizes) if FUSED in name else array for name, array in arrays.items()}


def pack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Undoes `unpack`."""
    sizes = len(SIDES), theirs["n_head"], -1
    return {name: swapped(array, *sizes) if FUSED in name else array for name, array in arrays.items()}


BLOOM = Architecture(
    title="BLOOM",
    model_type="bloom",
    transformers="BloomForCausalLM",
    config=GPTConfig,
    fields={"depth": "n_layer", "width": "hidden_size", "heads": "n_head", "norm_epsilon": "layer_norm_epsilon"},
    dropouts={"dropout": "hidden_dropout", "attention_dropout": "attention_dropout"},
    fixed={
        **FIXED,
        "attention": "alibi",
        "norm_embedding": True,
        "positions": "none",
        "activation": "gelu_new",
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
    joined={FUSED: [f".{side}." for side in SIDES]},
)
