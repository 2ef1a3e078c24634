"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019) as in `transformers`."""

import re
from typing import Any

from models.masked_lm import MaskedLMConfig
from models.published.architectures import DROPOUTS, SIDES, SIZES, Architecture, Arrays, Fields

FIXED = {"norm": "post", "norm_type": "layer", "norm_first": True, "positions": "learned", "head": 0}
FIXED |= {"attention_bias": True, "mlp_bias": True, "gated": False}


def _encoder(
    title: str,
    kind: str,
    name: str,
    head: tuple[str, str, str],
    skip_padding: bool,
    standard: dict[str, Any],
    **more: Any,
) -> Architecture:
    """Describes BERT or RoBERTa; `head` has their names of the head, its dense layer and its norm."""
    whole, dense, norm = head
    return Architecture(
        title=title,
        model_type=kind,
        transformers=name,
        config=MaskedLMConfig,
        fields={
            **SIZES,
            "norm_epsilon": "layer_norm_eps",
            "activation": "hidden_act",
            "padding_token": "pad_token_id",
            "token_types": "type_vocab_size",
        },
        dropouts=DROPOUTS,
        fixed=FIXED | {"skip_padding": skip_padding},
        standard={"is_decoder": False, "position_embedding_type": "absolute", "tie_word_embeddings": True, **standard},
        modules={
            "embed": f"{kind}.embeddings.word_embeddings",
            "positions": f"{kind}.embeddings.position_embeddings",
            "token_types": f"{kind}.embeddings.token_type_embeddings",
            "norm_embedding": f"{kind}.embeddings.LayerNorm",
            "head": whole,
            "head/dense": f"{whole}.{dense}",
            "head/norm": f"{whole}.{norm}",
        },
        blocks={"block": f"{kind}.encoder.layer"},
        block_modules={
            **{f"attention/{side}": f"attention.self.{side}" for side in SIDES},
            "attention/out": "attention.output.dense",
            "norm_attention": "attention.output.LayerNorm",
            "mlp/up": "intermediate.dense",
            "mlp/down": "output.dense",
            "norm_mlp": "output.LayerNorm",
        },
        body=f"{kind}.",
        head=f"{whole.partition('.')[0]}.",
        tied={
            f"{whole}.decoder.weight": f"{kind}.embeddings.word_embeddings.weight",
            f"{whole}.decoder.bias": f"{whole}.bias",
        },
        **more,
    )


def _rename_norms(arrays: Arrays, theirs: Fields) -> Arrays:
    """Renames the norms' arrays, which are gamma and beta in the first published files."""
    names = {".gamma": ".weight", ".beta": ".bias"}
    return {re.sub(r"\.(gamma|beta)$", lambda old: names[old[0]], name): array for name, array in arrays.items()}


ROBERTA = _encoder(
    "RoBERTa",
    "roberta",
    "RobertaForMaskedLM",
    ("lm_head", "dense", "layer_norm"),
    True,
    {},
    unused_positions=lambda fields: fields["padding_token"] + 1,
)
BERT = _encoder(
    "BERT",
    "bert",
    "BertForMaskedLM",
    ("cls.predictions", "transform.dense", "transform.LayerNorm"),
    False,
    {"hidden_act": "gelu"},  # it applies to the head too
    unpack=_rename_norms,
)
