"""Marian (Junczys-Dowmunt et al. 2018; opus-mt-*) as in `transformers`."""

from collections.abc import Mapping
from typing import Any

from models.encoder_decoder import EncoderDecoderConfig
from models.published.architectures import Architecture

PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}


def generation(special: Mapping[str, int], length: int) -> dict[str, Any]:
    """Writes `generation_config.json`: sentences have at most `length` tokens, no padding among them, and an end."""
    return {
        "pad_token_id": special["pad"],
        "decoder_start_token_id": special["start"],
        "eos_token_id": special["end"],
        "forced_eos_token_id": special["end"],
        "bad_words_ids": [[special["pad"]]],
        "max_length": length,
    }


MARIAN = Architecture(
    title="Marian",
    model_type="marian",
    transformers="MarianMTModel",
    config=EncoderDecoderConfig,
    fields={
        "depth": "encoder_layers",
        "decoder_depth": "decoder_layers",
        "width": "d_model",
        "heads": "encoder_attention_heads",
        "mlp": "encoder_ffn_dim",
        "activation": "activation_function",
        "scale_embeddings": "scale_embedding",
    },
    dropouts={"embedding_dropout": "dropout", "dropout": "dropout", "attention_dropout": "attention_dropout"},
    fixed={
        "norm": "post",
        "norm_type": "layer",
        "norm_epsilon": 1e-5,
        "gated": False,
        "mlp_bias": True,
        "head": 0,
        "positions": "sinusoidal_halves",
        "attention_bias": True,
        "shared_embeddings": True,
        "tied_output": True,
        "output_bias": True,
    },
    standard={
        "is_decoder": False,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "share_encoder_decoder_embeddings": True,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "activation_dropout": 0.0,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
    },
    same={
        "decoder_attention_heads": "encoder_attention_heads",
        "decoder_ffn_dim": "encoder_ffn_dim",
        "decoder_vocab_size": "vocab_size",
    },
    special={"pad": "pad_token_id", "start": "decoder_start_token_id", "end": "eos_token_id"},
    modules={"embed": "model.shared", "head_bias": "final_logits_bias"},
    blocks={"encoder": "model.encoder.layers", "decoder": "model.decoder.layers"},
    block_modules={
        **{f"attention/{ours}": f"self_attn.{theirs}" for ours, theirs in PROJECTIONS.items()},
        **{f"cross/{ours}": f"encoder_attn.{theirs}" for ours, theirs in PROJECTIONS.items()},
        "norm_attention": "self_attn_layer_norm",
        "norm_cross": "encoder_attn_layer_norm",
        "mlp/up": "fc1",
        "mlp/down": "fc2",
        "norm_mlp": "final_layer_norm",
    },
    body="model.",
    head="final_logits_bias",
    tied={
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
        "lm_head.weight": "model.shared.weight",
    },
    sinusoids=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
    generation=generation,
)
