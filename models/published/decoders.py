"""Decoders as in `transformers`: Llama, Mistral, Qwen and Gemma.

Their `config.json` has many fields for what our config says in spec strings; `read` and `write` translate.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from attention.errors import UsageError
from attention.scores.rotary import Rotary
from attention.specs import SpecItem, joined
from models.gpt import GPTConfig
from models.mechanisms import Mechanism
from models.published.architectures import ACTIVATION_NAMES, SIZES, Architecture, Fields, Table

# Our names of the options of rotary scalings, and theirs.
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
OPTIONAL = ("beta_fast", "beta_slow")  # YaRN's
YARN = ("attention_factor", "mscale", "mscale_all_dim")  # which decide YaRN's magnitude
# Their fields that only some families read.
BIASES = ("attention_bias", "mlp_bias")
WINDOWS = ("sliding_window", "layer_types", "use_sliding_window", "max_window_layers", "sliding_window_pattern")
CAPS = ("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar")
ROPES = ("rope_local_base_freq",)  # such a family also has rotary positions by kind of layer
TYPES = {  # types of the fields that `read` reads
    **dict.fromkeys(("head_dim", "num_key_value_heads", "sliding_window", "sliding_window_pattern"), int),
    **dict.fromkeys(("max_window_layers", "first_k_dense_replace", "kv_lora_rank", "q_lora_rank"), int),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), int),
    **dict.fromkeys((*CAPS, *ROPES, "rope_theta"), int | float),
    **dict.fromkeys((*BIASES, "tie_word_embeddings", "use_sliding_window", "use_bidirectional_attention"), bool),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), dict),
    "layer_types": list,
}
QK_EPSILON = 1e-6  # ε of our norms of queries and keys
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclasses.dataclass(frozen=True)
class Family:
    """What `transformers` reads from the `config.json` of one family of decoders.

    Attributes:
      heeded: The fields among `BIASES`, `WINDOWS`, `CAPS` and `ROPES` that it reads.
      qk_norm: The norm of its queries and keys.
      activation: Its field for the MLPs' activation.
      defaults: Values of fields that files may omit.
      renamed: Activations by the wrong names that files have for them.
    """

    heeded: tuple[str, ...] = ()
    qk_norm: str = ""
    activation: str = "hidden_act"
    defaults: Fields = dataclasses.field(default_factory=lambda: {"hidden_act": "silu"})
    renamed: Table = dataclasses.field(default_factory=dict)


def spec(name: str, options: Fields) -> str:
    """Writes a spec string without the options that are off."""
    return str(SpecItem(name, {option: value for option, value in options.items() if value}))


def _is_size(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def rotary_spec(rope: Fields) -> str:
    """Writes rotary positions as a spec string."""
    kind, options = rope.get("rope_type", rope.get("type", "default")), {}
    if kind != "default":
        names = SCALINGS.get(kind, {})
        plain = {"rope_type": kind, "type": kind, "truncate": True, "partial_rotary_factor": 1.0}
        plain |= {name: rope.get(name) for name in ("truncate", *YARN) if kind == "yarn"}
        given = {key for key, value in rope.items() if value not in (None, plain.get(key))}
        if not names or given - {"rope_theta", *names.values()}:
            known = ", ".join(SCALINGS)
            raise UsageError(f"Rotary positions scaled as {dict(rope)} cannot be loaded; only {known} can.")
        if missing := [name for name in names.values() if name not in given and name not in OPTIONAL]:
            raise UsageError(f"Rotary positions scaled as {dict(rope)} cannot be loaded without {', '.join(missing)}.")
        options = {ours: rope.get(theirs) for ours, theirs in names.items() if theirs in given}
    base = rope.get("rope_theta", 10_000.0)
    more = [rope[name] for name in YARN if rope.get(name)]  # 0 means none
    if not all(map(_is_size, (base, *options.values(), *more))):
        raise UsageError(f"Rotary positions of {dict(rope)} cannot be loaded: their options must be numbers above 0.")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UsageError("Rotary positions of a part of each head cannot be loaded: transformers' decoders turn all.")
    if kind == "yarn":
        options |= {"exact": rope.get("truncate") is False, "magnitude": _magnitude(rope)}
    return spec("rotary", {"base": float(base), "scaling": spec(kind, options) if options else ""})


def _magnitude(rope: Fields) -> float:
    """Computes YaRN's factor of turned queries and keys; 0 means the paper's."""
    scale, over = rope.get("mscale"), rope.get("mscale_all_dim")
    quotient = yarn_gain(rope["factor"], scale) / yarn_gain(rope["factor"], over) if scale and over else 0.0
    return float(rope.get("attention_factor") or quotient)


def yarn_gain(factor: float, scale: float) -> float:
    """Computes 0.1 · scale · ln(factor) + 1, which YaRN's factors are made of."""
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0


def _ropes(theirs: Fields, kinds: list[str], by_kind: bool) -> str:
    """Reads `model.positions`, given each layer's kind, from old and new forms of `config.json`."""
    rope = theirs.get("rope_parameters")
    if rope is None:
        rope = (theirs.get("rope_scaling") or {}) | {"rope_theta": theirs.get("rope_theta", 10_000.0)}
        if by_kind:
            rope = {FULL: rope, SLIDING: {"rope_theta": theirs["rope_local_base_freq"]}}
    if not by_kind and {*rope} & {FULL, SLIDING}:
        raise UsageError("Only Gemma 3 has rotary positions by kind of layer.")
    return joined([rotary_spec(rope.get(kind, rope)) for kind in kinds])


def _kinds(theirs: Fields) -> list[str]:
    """Finds each layer's kind: full or sliding attention."""
    depth, window = theirs["num_hidden_layers"], theirs.get("sliding_window")
    if not window or theirs.get("use_sliding_window") is False:
        return [FULL] * depth
    if kinds := theirs.get("layer_types"):
        check_kinds(kinds, depth)
        return list(kinds)
    pattern, full = theirs.get("sliding_window_pattern") or depth + 1, theirs.get("max_window_layers", 0)
    return [SLIDING if (layer + 1) % pattern and layer >= full else FULL for layer in range(depth)]


def check_kinds(kinds: Sequence[str], depth: int) -> None:
    """Raises UsageError unless `layer_types` names a kind for each layer."""
    if len(kinds) != depth or {*map(str, kinds)} - {SLIDING, FULL}:
        raise UsageError(f"layer_types={kinds} cannot be loaded; only {depth} times {SLIDING} or {FULL} can.")


def heeded(theirs: Fields, family: Family) -> dict[str, Any]:
    """Drops the fields that only other families read."""
    unheeded = {*BIASES, *WINDOWS, *CAPS, *ROPES} - {*family.heeded}
    return {name: value for name, value in theirs.items() if name not in unheeded}


def read(theirs: Fields, family: Family) -> dict[str, Any]:
    """Reads our fields of a Llama or one of its descendants, except those that merely have another name.

    Raises:
      UsageError: a field has a wrong type, or asks for what our GPT does not have.
    """
    theirs = heeded({**family.defaults, **theirs}, family)
    check_types(theirs)
    if theirs.get("use_bidirectional_attention"):
        raise UsageError("use_bidirectional_attention=True cannot be loaded: a GPT is causal.")
    if family.qk_norm and theirs["rms_norm_eps"] != QK_EPSILON:
        raise UsageError(
            f"rms_norm_eps={theirs['rms_norm_eps']} also applies to queries and keys, where only {QK_EPSILON} can be."
        )
    heads, kinds = theirs["num_attention_heads"], _kinds(theirs)
    groups, head = theirs.get("num_key_value_heads") or heads, theirs.get("head_dim") or 0
    cap, over = theirs.get("attn_logit_softcapping") or 0.0, theirs.get("query_pre_attn_scalar") or 0
    width = head or theirs["hidden_size"] // heads
    options = {
        "cap": float(cap),
        "qk_norm": family.qk_norm,
        "scale": over**-0.5 if over and over != width else 0.0,
        "kv_heads": groups if groups != heads else 0,
    }
    activation = theirs.get(family.activation) or family.defaults[family.activation]
    windows = [theirs["sliding_window"] if kind == SLIDING else 0 for kind in kinds]
    specs = [spec("soft_cap" if cap else "dot_product", options | {"window": window}) for window in windows]
    return {
        "attention": joined(specs),
        "positions": _ropes(theirs, kinds, {*ROPES} <= {*family.heeded}),
        "head": width if width * heads != theirs["hidden_size"] else 0,
        "logit_cap": float(theirs.get("final_logit_softcapping") or 0.0),
        "attention_bias": theirs.get("attention_bias") or False,
        "mlp_bias": theirs.get("mlp_bias") or False,
        "activation": family.renamed.get(activation, activation),
        "tied_output": theirs.get("tie_word_embeddings") or False,
    }


def check_types(theirs: Fields) -> None:
    """Raises UsageError if a field that is read has a wrong type."""
    for name, kind in TYPES.items():
        value = theirs.get(name)
        wrong = value is not None and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool))
        if wrong or (isinstance(value, int | float) and value < 0):
            raise UsageError(f"config.json has {name}={value!r}, which cannot be loaded.")


def rope_fields(rotary: Rotary | None) -> dict[str, Any]:
    """Writes their fields of rotary positions."""
    rotary = rotary or Rotary()  # reading it back shows the difference
    made, (name, _, _) = rotary.rule, rotary.scaling.partition("(")
    rope: dict[str, Any] = {"rope_type": "default" if name == "none" else name, "rope_theta": rotary.base}
    if rotary.fraction != 1:
        rope["partial_rotary_factor"] = rotary.fraction
    if name in SCALINGS:
        rope |= {theirs: getattr(made, ours) for ours, theirs in SCALINGS[name].items()}
    if name == "yarn":
        rope |= {"truncate": not made.exact} | ({"attention_factor": made.magnitude} if made.magnitude else {})
    return rope


def write(config: GPTConfig) -> dict[str, Any]:
    """Writes `config.json` of such a model without `Architecture.fields`; `read` must recover our fields from it."""
    rows: tuple[Mechanism, ...] = config.mechanisms["attention"]
    kinds = [SLIDING if row.window else FULL for row in rows]
    width = config.head or config.width // config.heads
    scale = getattr(rows[0].score, "scale", 0.0)
    ropes = {kind: rope_fields(rotary) for kind, rotary in zip(kinds, config.rotaries, strict=True)}
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
    activation = ACTIVATION_NAMES[config.activation]
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
    family: Family,
    block: Table | None = None,
    absent: Mapping[str, float] | None = None,
    **fixed: Any,
) -> Architecture:
    """Describes Llama or one of its descendants."""
    common = {"norm": "pre", "norm_type": "rms", "gated": True, "scale_embeddings": False, "output_bias": False}
    return Architecture(
        title=title,
        model_type=kind,
        transformers=name,
        config=GPTConfig,
        fields=SIZES | {"norm_epsilon": "rms_norm_eps"},
        fixed=common | fixed,
        modules={"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"},
        blocks={"block": "model.layers"},
        block_modules=BLOCK | (block or {}),
        body="model.",
        head="lm_head.",
        tied={"lm_head.weight": "model.embed_tokens.weight"},
        read=lambda theirs: read(theirs, family) | fixed,
        write=lambda config: heeded(write(config), family),
        absent=absent or {},
    )


GEMMA: dict[str, Any] = {"norm_type": "rms_offset", "scale_embeddings": True, "tied_output": True}
OUT = {"attention/out/bias": 0.0}
SILU = {"hidden_act": "silu"}
QWEN = SILU | {"use_sliding_window": False, "max_window_layers": 28}
TANH = {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 256, "query_pre_attn_scalar": 256}
GEMMA_1 = Family(
    ("attention_bias",),
    defaults={"hidden_act": "gelu_pytorch_tanh", "head_dim": 256},
    renamed={"gelu": "gelu_pytorch_tanh"},
)
GEMMA_2 = Family(
    ("attention_bias", *WINDOWS, *CAPS),
    activation="hidden_activation",
    defaults=TANH | {"sliding_window": 4096, "sliding_window_pattern": 2},
)
GEMMA_3 = Family(
    ("attention_bias", *WINDOWS, *CAPS, *ROPES),
    "rms_offset",
    "hidden_activation",
    TANH | {"sliding_window": 4096, "sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 10_000.0},
)
LLAMA = _decoder("Llama", "llama", "LlamaForCausalLM", Family(BIASES))
DECODERS = (  # a model that fits several is exported as the first
    _decoder("Qwen 2", "qwen2", "Qwen2ForCausalLM", Family(WINDOWS, defaults=QWEN), absent=OUT, attention_bias=True),
    LLAMA,
    _decoder("Mistral", "mistral", "MistralForCausalLM", Family(WINDOWS[:1], defaults=SILU | {"sliding_window": 4096})),
    _decoder("Qwen 3", "qwen3", "Qwen3ForCausalLM", Family(("attention_bias", *WINDOWS), "rms", defaults=QWEN), NORMS),
    _decoder("Gemma", "gemma", "GemmaForCausalLM", GEMMA_1, **GEMMA),
    _decoder("Gemma 2", "gemma2", "Gemma2ForCausalLM", GEMMA_2, SANDWICH, norm="sandwich", **GEMMA),
    _decoder("Gemma 3", "gemma3_text", "Gemma3ForCausalLM", GEMMA_3, SANDWICH | NORMS, norm="sandwich", **GEMMA),
)
