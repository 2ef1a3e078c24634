"""Language models of decoder blocks as `transformers` has them: GPT-2, Llama, Mistral, Qwen and Gemma.

Their `config.json` says in many fields what ours says in spec strings: `read` and `write` translate.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention.errors import UsageError
from attention.scores.rotary import Rotary
from models.gpt import GPTConfig
from models.mechanisms import Mechanism
from models.published.architectures import Architecture, Table

Arrays = dict[str, np.ndarray]
Fields = Mapping[str, Any]

# The names of the options of rotary scalings, ours and theirs.
SCALINGS: dict[str, Table] = {
    "linear": {"factor": "factor"},
    "yarn": {
        "factor": "factor",
        "original": "original_max_position_embeddings",
        "fast": "beta_fast",
        "slow": "beta_slow",
    },
    "llama3": {
        "factor": "factor",
        "original": "original_max_position_embeddings",
        "low": "low_freq_factor",
        "high": "high_freq_factor",
    },
}
# Their fields that only some families heed.
BIASES = ("attention_bias", "mlp_bias")
WINDOWS = ("sliding_window",)
CAPS = ("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar")
SLIDING, FULL = "sliding_attention", "full_attention"
ACTIVATIONS = {"silu": "swish", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"}


def _call(name: str, options: Fields) -> str:
    """Returns a spec string, without options that are off."""
    given = ", ".join(f"{option}={value!r}" for option, value in options.items() if value)
    return f"{name}({given})" if given else name


def _joined(items: list[str]) -> str:
    """Returns a spec string with an item for each layer; the last repeats."""
    while len(items) > 1 and items[-1] == items[-2]:
        items.pop()
    return "|".join(items)


def _rotary(rope: Fields) -> str:
    """Returns the spec of rotary positions from theirs."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    scaling = ""
    if kind != "default":
        if kind not in SCALINGS or "attention_factor" in rope or "mscale" in rope:
            raise UsageError(
                f"Rotary positions scaled as {dict(rope)} cannot be loaded; only {', '.join(SCALINGS)} can."
            )
        scaling = _call(kind, {ours: rope.get(theirs) for ours, theirs in SCALINGS[kind].items()})
    base, fraction = float(rope.get("rope_theta", 10_000.0)), rope.get("partial_rotary_factor", 1.0)
    return _call("rotary", {"base": base, "fraction": fraction if fraction != 1 else 0, "scaling": scaling})


def _ropes(theirs: Fields, kinds: list[str]) -> str:
    """Returns `model.positions` of layers of these kinds, from old and new forms of `config.json`."""
    rope = theirs.get("rope_parameters")
    if rope is None:
        rope = (theirs.get("rope_scaling") or {}) | {"rope_theta": theirs.get("rope_theta", 10_000.0)}
        if "rope_local_base_freq" in theirs:
            rope = {FULL: rope, SLIDING: {"rope_theta": theirs["rope_local_base_freq"]}}
    return _joined([_rotary(rope.get(kind, rope)) for kind in kinds])


def _kinds(theirs: Fields) -> list[str]:
    """Returns for each layer whether its attention is full or slides."""
    depth, window = theirs["num_hidden_layers"], theirs.get("sliding_window")
    if not window or theirs.get("use_sliding_window") is False:
        return [FULL] * depth
    if theirs.get("layer_types"):
        return list(theirs["layer_types"])
    if pattern := theirs.get("sliding_window_pattern"):
        return [SLIDING if (layer + 1) % pattern else FULL for layer in range(depth)]
    return [SLIDING] * depth


def read(theirs: Fields, heeded: tuple[str, ...], qk_norm: str) -> dict[str, Any]:
    """Returns our fields of a Llama or one of its descendants, beside those that are only named otherwise.

    Args:
      theirs: `config.json`.
      heeded: Those of `BIASES`, `WINDOWS` and `CAPS` that the family has.
      qk_norm: The norm of its queries and keys.

    Raises:
      UsageError: a scaling of rotary positions or a kind of layer is unknown.
    """
    theirs = {name: value for name, value in theirs.items() if name not in {*BIASES, *WINDOWS, *CAPS} - {*heeded}}
    heads, kinds = theirs["num_attention_heads"], _kinds(theirs)
    groups, head = theirs.get("num_key_value_heads") or heads, theirs.get("head_dim") or 0
    if unknown := sorted({*kinds} - {SLIDING, FULL}):
        raise UsageError(f"Layers of type {unknown[0]!r} cannot be loaded; only {SLIDING} and {FULL} can.")
    cap, over = theirs.get("attn_logit_softcapping") or 0.0, theirs.get("query_pre_attn_scalar") or 0
    width = head or theirs["hidden_size"] // heads
    options = {
        "cap": float(cap),
        "qk_norm": qk_norm,
        "scale": over**-0.5 if over and over != width else 0.0,
        "kv_heads": groups if groups != heads else 0,
    }
    windows = [theirs["sliding_window"] if kind == SLIDING else 0 for kind in kinds]
    specs = [_call("soft_cap" if cap else "dot_product", options | {"window": window}) for window in windows]
    return {
        "attention": _joined(specs),
        "positions": _ropes(theirs, kinds),
        "head": width if width * heads != theirs["hidden_size"] else 0,
        "logit_cap": float(theirs.get("final_logit_softcapping") or 0.0),
        "attention_bias": bool(theirs.get("attention_bias", False)),
        "mlp_bias": bool(theirs.get("mlp_bias", False)),
        "activation": theirs.get("hidden_activation") or theirs.get("hidden_act") or "silu",
        "tied_output": bool(theirs.get("tie_word_embeddings", False)),
    }


def _rope(rotary: Rotary | None) -> dict[str, Any]:
    rotary = rotary or Rotary()  # which then differs
    name, _, _ = rotary.scaling.partition("(")
    rope: dict[str, Any] = {"rope_type": "default" if name == "none" else name, "rope_theta": rotary.base}
    if rotary.fraction != 1:
        rope["partial_rotary_factor"] = rotary.fraction
    if name in SCALINGS:
        made = rotary.rule
        rope |= {theirs: getattr(made, ours) for ours, theirs in SCALINGS[name].items()}
    return rope


def write(config: GPTConfig) -> dict[str, Any]:
    """Returns `config.json` of such a model, without what `Architecture.fields` says; `read` must give it back."""
    rows: tuple[Mechanism, ...] = config.mechanisms["attention"]
    kinds = [SLIDING if row.window else FULL for row in rows]
    width = config.head or config.width // config.heads
    scale = getattr(rows[0].score, "scale", 0.0)
    ropes = {kind: _rope(rotary) for kind, rotary in zip(kinds, config.rotaries, strict=True)}
    theirs = {
        "num_key_value_heads": rows[0].kv_heads or config.heads,
        "head_dim": width,
        "sliding_window": max(row.window for row in rows) or None,
        "use_sliding_window": SLIDING in kinds,
        "layer_types": kinds,
        "query_pre_attn_scalar": round(scale**-2) if scale else width,
        "attn_logit_softcapping": getattr(rows[0].score, "cap", None),
        "final_logit_softcapping": config.logit_cap or None,
        "rope_parameters": ropes if len({str(rope) for rope in ropes.values()}) > 1 else ropes[kinds[0]],
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tied_output,
    }
    activation = {ours: name for name, ours in ACTIVATIONS.items()}.get(config.activation, "")
    return theirs | {"hidden_act": activation, "hidden_activation": activation}


PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
BLOCK = {
    **{f"attention/{ours}": f"self_attn.{theirs}" for ours, theirs in PROJECTIONS.items()},
    **{f"mlp/{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    "norm_attention": "input_layernorm",
    "norm_mlp": "post_attention_layernorm",
}
NORMS = {f"attention/score/{side}_norm": f"self_attn.{side[0]}_norm.weight" for side in ("query", "key")}
SANDWICH = {
    "norm_attention_out": "post_attention_layernorm",
    "norm_mlp": "pre_feedforward_layernorm",
    "norm_mlp_out": "post_feedforward_layernorm",
}


def _decoder(
    title: str,
    kind: str,
    name: str,
    heeded: tuple[str, ...],
    block: Table | None = None,
    qk_norm: str = "",
    absent: tuple[str, ...] = (),
    **fixed: Any,
) -> Architecture:
    """Returns Llama or one of its descendants."""
    common = {"norm": "pre", "norm_type": "rms", "gated": True, "scale_embeddings": False, "output_bias": False}
    return Architecture(
        title=title,
        model_type=kind,
        transformers=name,
        config=GPTConfig,
        fields={
            "depth": "num_hidden_layers",
            "width": "hidden_size",
            "heads": "num_attention_heads",
            "mlp": "intermediate_size",
            "norm_epsilon": "rms_norm_eps",
        },
        dropouts={},
        fixed=common | fixed,
        standard={},
        modules={"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"},
        blocks={"block": "model.layers"},
        block_modules=BLOCK | (block or {}),
        body="model.",
        head="lm_head.",
        tied={"lm_head.weight": "model.embed_tokens.weight"},
        read=lambda theirs: read(theirs, heeded, qk_norm) | fixed,
        write=write,
        absent=absent,
    )


GEMMA: dict[str, Any] = {"norm_type": "rms_offset", "scale_embeddings": True, "tied_output": True}
OUT = ("attention/out/bias",)
DECODERS = (  # where a model fits several, it is exported as the first
    _decoder("Qwen 2", "qwen2", "Qwen2ForCausalLM", WINDOWS, absent=OUT, attention_bias=True),
    _decoder("Llama", "llama", "LlamaForCausalLM", BIASES),
    _decoder("Mistral", "mistral", "MistralForCausalLM", WINDOWS),
    _decoder("Qwen 3", "qwen3", "Qwen3ForCausalLM", ("attention_bias", *WINDOWS), NORMS, "rms"),
    _decoder("Gemma", "gemma", "GemmaForCausalLM", ("attention_bias",), **GEMMA),
    _decoder(
        "Gemma 2",
        "gemma2",
        "Gemma2ForCausalLM",
        ("attention_bias", *WINDOWS, *CAPS),
        SANDWICH,
        norm="sandwich",
        **GEMMA,
    ),
    _decoder(
        "Gemma 3",
        "gemma3_text",
        "Gemma3ForCausalLM",
        ("attention_bias", *WINDOWS, *CAPS),
        SANDWICH | NORMS,
        "rms_offset",
        norm="sandwich",
        **GEMMA,
    ),
)


def _cut(arrays: Arrays) -> Arrays:
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


def _join(arrays: Arrays) -> Arrays:
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
