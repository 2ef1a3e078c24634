"""GPT-2 (Radford et al. 2019) as in `transformers`."""

from models.gpt import GPTConfig
from models.published.architectures import SIDES, Architecture, Arrays, Fields

FIXED = {  # BLOOM has them too
    "norm": "pre",
    "norm_type": "layer",
    "gated": False,
    "attention_bias": True,
    "mlp_bias": True,
    "scale_embeddings": False,
    "tied_output": True,
    "head": 0,
    "logit_cap": 0.0,
}
TURNED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # kernels as (inputs, outputs)
MASKS = (".attn.bias", ".attn.masked_bias")  # in older files


def turned(arrays: Arrays, theirs: Fields) -> Arrays:
    """Transposes kernels and drops masks."""
    kept = {name: array for name, array in arrays.items() if not name.endswith(MASKS)}
    return {name: array.T if name.endswith(TURNED) else array for name, array in kept.items()}


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
    fixed=FIXED | {"positions": "learned"},
    standard={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "tie_word_embeddings": True},
    modules={"embed": "transformer.wte", "positions": "transformer.wpe", "norm": "transformer.ln_f"},
    blocks={"block": "transformer.h"},
    block_modules={
        **{f"attention/{side}": f"attn.{side[0]}" for side in SIDES},
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
    read=lambda theirs: {"mlp": theirs.get("n_inner") or 4 * theirs["n_embd"]},
    write=lambda config: {"n_inner": config.mlp},
    unpack=turned,
    pack=turned,
    joined={".c_attn.": (".q.", ".k.", ".v.")},
)
