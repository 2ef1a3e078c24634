"""ModernBERT (Warner et al. 2024, arXiv:2412.13663) as `transformers` has it.

Every third layer sees all tokens, the others those nearby; each of the two kinds has rotary positions of its own.
"""

from typing import Any

import numpy as np

from attention.errors import UsageError
from attention.specs import joined
from models.masked_lm import MaskedLMConfig
from models.published import decoders
from models.published.architectures import Architecture, Arrays, Fields
from models.published.decoders import FULL, SLIDING

# Their arrays that hold several of ours, one below the other.
JOINED = {"attn.Wqkv.": ("attn.query.", "attn.key.", "attn.value."), "mlp.Wi.": ("mlp.gate.", "mlp.up.")}
OUTPUT, HEADS = "decoder.", "head.decoder."  # of the head, as in the other encoders
BASES = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}


def read(theirs: Fields) -> dict[str, Any]:
    """Returns our fields, beside those that are only named otherwise.

    Raises:
      UsageError: a field has a wrong type, or layers are of other kinds.
    """
    decoders.check_types(theirs)
    often = theirs.get("global_attn_every_n_layers") or 3
    kinds = [SLIDING if layer % often else FULL for layer in range(theirs["num_hidden_layers"])]
    kinds, depth = theirs.get("layer_types") or kinds, len(kinds)
    if len(kinds) != depth or {*map(str, kinds)} - {SLIDING, FULL}:
        raise UsageError(f"layer_types={kinds} cannot be loaded; only {depth} times {SLIDING} or {FULL} can.")
    window = (theirs.get("local_attention") or 128) // 2 + 1  # tokens on each side, and the query's own
    options = [{"window": window if kind == SLIDING else 0} for kind in kinds]
    ropes = {kind: {"rope_theta": theirs.get(name) or base} for kind, (name, base) in BASES.items()}
    given = theirs.get("rope_parameters") or {}
    ropes = {kind: {**rope, **(given.get(kind) or {})} for kind, rope in ropes.items()}
    return {
        "attention": joined([decoders.spec("dot_product", option) for option in options]),
        "positions": joined([decoders.rotary_spec(ropes[kind]) for kind in kinds]),
    }


def write(config: MaskedLMConfig) -> dict[str, Any]:
    """Returns the fields that `read` reads."""
    rows = config.mechanisms["attention"]
    kinds = [SLIDING if row.window else FULL for row in rows]
    ropes = {kind: decoders.rope_fields(rotary) for kind, rotary in zip(kinds, config.rotaries, strict=True)}
    window = max(row.window for row in rows)
    return {"layer_types": kinds, "rope_parameters": ropes, "local_attention": 2 * (window - 1) if window else 128}


def unpack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Cuts joined arrays."""
    cut: Arrays = {}
    for name, array in arrays.items():
        whole = next((whole for whole in JOINED if whole in name), "")
        if not whole:
            cut[f"head.{name}" if name.startswith(OUTPUT) else name] = array
            continue
        names = [name.replace(whole, piece) for piece in JOINED[whole]]
        cut |= zip(names, np.split(array, len(names)), strict=True)
    return cut


def pack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Undoes `unpack`."""
    whole = {}
    for name, array in arrays.items():
        joint = next((joint for joint, pieces in JOINED.items() if any(piece in name for piece in pieces)), "")
        if not joint:
            whole[name.removeprefix("head.") if name.startswith(HEADS) else name] = array
        elif JOINED[joint][0] in name:
            rows = [arrays[name.replace(JOINED[joint][0], piece)] for piece in JOINED[joint]]
            whole[name.replace(JOINED[joint][0], joint)] = np.concatenate(rows)
    return whole


MODERNBERT = Architecture(
    title="ModernBERT",
    model_type="modernbert",
    transformers="ModernBertForMaskedLM",
    config=MaskedLMConfig,
    fields={
        "depth": "num_hidden_layers",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "mlp": "intermediate_size",
        "norm_epsilon": "norm_eps",
        "activation": "hidden_activation",
        "padding_token": "pad_token_id",
    },
    dropouts={
        "embedding_dropout": "embedding_dropout",
        "dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
    },
    fixed={
        **{"norm": "pre", "norm_type": "layer_without_bias", "norm_first": False, "gated": True, "head": 0},
        **{"attention_bias": False, "mlp_bias": False, "skip_padding": False, "token_types": 0},
    },
    standard={
        **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), False),
        **{"decoder_bias": True, "classifier_activation": "gelu", "tie_word_embeddings": True},
    },
    modules={
        "embed": "model.embeddings.tok_embeddings",
        "norm_embedding": "model.embeddings.norm",
        "norm": "model.final_norm",
        "head": HEADS.removesuffix("."),
        "head/dense": "head.dense",
        "head/norm": "head.norm",
    },
    blocks={"block": "model.layers"},
    block_modules={
        **{f"attention/{side}": f"attn.{side}" for side in ("query", "key", "value")},
        **{f"mlp/{side}": f"mlp.{side}" for side in ("gate", "up")},
        "attention/out": "attn.Wo",
        "mlp/down": "mlp.Wo",
        "norm_attention": "attn_norm",
        "norm_mlp": "mlp_norm",
    },
    body="model.",
    head="head.",
    tied={f"{HEADS}weight": "model.embeddings.tok_embeddings.weight"},
    arrays={"head/dense/bias": ""},  # which it does not have
    read=read,
    write=write,
    unpack=unpack,
    pack=pack,
)
