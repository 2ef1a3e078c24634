"""RoBERTa (Liu et al. 2019) as `transformers` has it, for `models.published.pretrained`."""

from models.masked_lm import MaskedLMConfig
from models.published.architectures import Architecture

ROBERTA = Architecture(
    title="RoBERTa",
    model_type="roberta",
    transformers="RobertaForMaskedLM",
    config=MaskedLMConfig,
    fields={
        "depth": "num_hidden_layers",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "mlp": "intermediate_size",
        "norm_epsilon": "layer_norm_eps",
        "activation": "hidden_act",
        "padding_token": "pad_token_id",
        "token_types": "type_vocab_size",
    },
    dropouts={
        "embedding_dropout": "hidden_dropout_prob",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
    },
    fixed={"norm": "post", "positions": "learned", "attention_bias": True},
    standard={"is_decoder": False, "position_embedding_type": "absolute", "tie_word_embeddings": True},
    modules={
        "embed": "roberta.embeddings.word_embeddings",
        "positions": "roberta.embeddings.position_embeddings",
        "token_types": "roberta.embeddings.token_type_embeddings",
        "norm_embedding": "roberta.embeddings.LayerNorm",
        "head": "lm_head",
        "head/dense": "lm_head.dense",
        "head/norm": "lm_head.layer_norm",
    },
    blocks={"block": "roberta.encoder.layer"},
    block_modules={
        "attention/query": "attention.self.query",
        "attention/key": "attention.self.key",
        "attention/value": "attention.self.value",
        "attention/out": "attention.output.dense",
        "norm_attention": "attention.output.LayerNorm",
        "mlp/up": "intermediate.dense",
        "mlp/down": "output.dense",
        "norm_mlp": "output.LayerNorm",
    },
    body="roberta.",
    head="lm_head.",
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    unused_positions=lambda fields: fields["padding_token"] + 1,
)
