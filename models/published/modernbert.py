"""ModernBERT (Warner et al. 2024, arXiv:2412.13663) as in `transformers`.

Every third layer sees all tokens, the others only those nearby; both kinds have rotary positions of their own.
"""

from typing import Any

from attention.specs import joined
from models.masked_lm import MaskedLMConfig
from models.published import decoders
from models.published.architectures import SIDES, SIZES, Architecture, Fields
from models.published.decoders import FULL, SLIDING

BASES = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}


def read(theirs: Fields) -> dict[str, Any]:
    """Reads our fields, except those that merely have another name.

    Raises:
      UsageError: a field has a wrong type, or layers are of other kinds.
    """
    decoders.check_types(theirs)
    often = theirs.get("global_attn_every_n_layers") or 3
    kinds = [SLIDING if layer % often else FULL for layer in range(theirs["num_hidden_layers"])]
    kinds, depth = theirs.get("layer_types") or kinds, len(kinds)
    decoders.check_kinds(kinds, depth)
    window = (theirs.get("local_attention") or 128) // 2 + 1  # tokens on each side, and the query's own
    options = [{"window": window if kind == SLIDING else 0} for kind in kinds]
    ropes = {
        kind: {"rope_theta": base if theirs.get(name) is None else theirs[name]} for kind, (name, base) in BASES.items()
    }
    given = theirs.get("rope_parameters") or {}
    ropes = {kind: {**rope, **(given.get(kind) or {})} for kind, rope in ropes.items()}
    return {
        "attention": joined([decoders.spec("dot_product", option) for option in options]),
        "positions": joined([decoders.rotary_spec(ropes[kind]) for kind in kinds]),
    }


def write(config: MaskedLMConfig) -> dict[str, Any]:
    """Writes the fields that `read` reads."""
    rows = config.mechanisms["attention"]
    kinds = [SLIDING if row.window else FULL for row in rows]
    ropes = {kind: decoders.rope_fields(rotary) for kind, rotary in zip(kinds, config.rotaries, strict=True)}
    window = max(row.window for row in rows)
    return {"layer_types": kinds, "rope_parameters": ropes, "local_attention": 2 * (window - 1) if window else 128}


MODERNBERT = Architecture(
    title="ModernBERT",
    model_type="modernbert",
    transformers="ModernBertForMaskedLM",
    config=MaskedLMConfig,
    fields={
        **SIZES,
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
        "head": "decoder",
        "head/dense": "head.dense",
        "head/dense/bias": "",  # it has none
        "head/norm": "head.norm",
    },
    blocks={"block": "model.layers"},
    block_modules={
        **{f"attention/{side}": f"attn.{side}" for side in SIDES},
        **{f"mlp/{side}": f"mlp.{side}" for side in ("gate", "up")},
        "attention/out": "attn.Wo",
        "mlp/down": "mlp.Wo",
        "norm_attention": "attn_norm",
        "norm_mlp": "mlp_norm",
    },
    body="model.",
    head=("head.", "decoder."),
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    read=read,
    write=write,
    joined={"attn.Wqkv.": ("attn.query.", "attn.key.", "attn.value."), "mlp.Wi.": ("mlp.gate.", "mlp.up.")},
)
