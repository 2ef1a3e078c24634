"""DeepSeek-V2 without experts, as in `transformers`: attention with latents, and dense MLPs."""

import dataclasses
import math
from typing import Any

import numpy as np

from attention.errors import UsageError
from attention.scores.rotary import Yarn
from models.gpt import GPTConfig
from models.published import decoders
from models.published.architectures import Arrays, Fields
from models.published.decoders import LLAMA

FAMILY = decoders.Family(("mlp_bias",))
# Their sizes by our rows' options, and the digits of a scale that are read.
SIZES = {"latent": "kv_lora_rank", "query_latent": "q_lora_rank", "rotary": "qk_rope_head_dim"}
DIGITS = 9


def read(theirs: Fields) -> dict[str, Any]:
    """Translates a DeepSeek-V2's fields to ours.

    Raises:
      UsageError: it has experts, or values of another width than keys.
    """
    decoders.check_types(theirs)
    depth, dense = theirs["num_hidden_layers"], theirs.get("first_k_dense_replace") or 0
    if dense < depth:
        raise UsageError(
            f"{depth - dense} of the {depth} layers have experts (first_k_dense_replace={dense}); only models of dense "
            "layers can be loaded."
        )
    head, values = theirs["qk_nope_head_dim"], theirs["v_head_dim"]
    if head != values:
        raise UsageError(f"Values of a head are {values} wide and keys {head}; only equal widths can be loaded.")
    fields = decoders.read({**theirs, "head_dim": head, "num_key_value_heads": None}, FAMILY)
    sizes = {option: theirs.get(name) or 0 for option, name in SIZES.items()}
    options = {**sizes, "latent_norm": True, "scale": _scale(theirs, head + sizes["rotary"])}
    return fields | {"attention": decoders.spec("dot_product", options)}


def _scale(theirs: Fields, width: int) -> float:
    """Computes the factor of scores if YaRN changes it; 0 means 1/√W."""
    rope = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    gain = decoders.yarn_gain(rope.get("factor") or 1.0, rope.get("mscale_all_dim") or 0.0)
    return 0.0 if gain == 1 else float(f"{gain**2 * width**-0.5:.{DIGITS}g}")


def write(config: GPTConfig) -> dict[str, Any]:
    """Writes `config.json` of such a model without `Architecture.fields`; `read` must recover our fields from it."""
    row, rotary = config.mechanisms["attention"][0], config.rotaries[0]
    head = config.head or config.width // config.heads
    sizes = {name: getattr(row, option) or None for option, name in SIZES.items()}
    theirs = decoders.write(config) | sizes | {"qk_nope_head_dim": head, "v_head_dim": head, "head_dim": row.rotary}
    theirs |= {"first_k_dense_replace": config.depth, "num_key_value_heads": config.heads}
    scale = getattr(row.score, "scale", 0.0)
    if scale and rotary and isinstance(rotary.rule, Yarn) and rotary.rule.factor > 1:
        gain = (scale * (head + row.rotary) ** 0.5) ** 0.5
        theirs["rope_parameters"]["mscale_all_dim"] = round((gain - 1) / (0.1 * math.log(rotary.rule.factor)), 12)
    return theirs


def _unpack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Cuts fused projections, and reorders columns that turn together from pairs to halves."""
    cut = dict(arrays)
    for name in [name for name in arrays if name.endswith(".kv_a_proj_with_mqa.weight")]:
        layer = name.removesuffix("kv_a_proj_with_mqa.weight")
        both, latent = cut.pop(name), len(arrays[f"{layer}kv_a_layernorm.weight"])
        cut[f"{layer}kv_a_proj.weight"], shared = both[:latent], both[latent:]
        cut[f"{layer}k_rope_proj.weight"] = _halves(shared[None])[0]
        key_value = cut.pop(f"{layer}kv_b_proj.weight")
        query = cut.pop(f"{layer}q_b_proj.weight" if f"{layer}q_b_proj.weight" in cut else f"{layer}q_proj.weight")
        heads = (len(query) - len(key_value) // 2) // len(shared)
        key, value = np.split(key_value.reshape(heads, -1, latent), 2, axis=1)
        cut[f"{layer}k_b_proj.weight"], cut[f"{layer}v_b_proj.weight"] = (x.reshape(-1, latent) for x in (key, value))
        query = query.reshape(heads, -1, query.shape[-1])
        content, turning = query[:, : -len(shared)], query[:, -len(shared) :]
        query = np.concatenate([_halves(turning), content], axis=1)
        cut[f"{layer}q_proj.weight"] = query.reshape(-1, query.shape[-1])
    return cut


def _pack(arrays: Arrays, theirs: Fields) -> Arrays:
    joined = dict(arrays)
    for name in [name for name in arrays if name.endswith(".k_rope_proj.weight")]:
        layer = name.removesuffix("k_rope_proj.weight")
        shared, latent = joined.pop(name), joined.pop(f"{layer}kv_a_proj.weight")
        joined[f"{layer}kv_a_proj_with_mqa.weight"] = np.concatenate([latent, _pairs(shared[None])[0]])
        key, value, query = (joined.pop(f"{layer}{side}_proj.weight") for side in ("k_b", "v_b", "q"))
        heads = (len(query) - len(key)) // len(shared)
        key, value, query = (x.reshape(heads, -1, x.shape[-1]) for x in (key, value, query))
        joined[f"{layer}kv_b_proj.weight"] = np.concatenate([key, value], axis=1).reshape(-1, len(latent))
        query = np.concatenate([query[:, len(shared) :], _pairs(query[:, : len(shared)])], axis=1)
        side = "q_b_proj" if f"{layer}q_a_proj.weight" in joined else "q_proj"
        joined[f"{layer}{side}.weight"] = query.reshape(-1, query.shape[-1])
    return joined


def _halves(rows: np.ndarray) -> np.ndarray:
    """Reorders rows `(N, R, D)` so that pairs (0, 1), (2, 3) that turn together become (0, R/2), (1, R/2 + 1)."""
    return np.concatenate([rows[:, ::2], rows[:, 1::2]], axis=1)


def _pairs(rows: np.ndarray) -> np.ndarray:
    return np.stack(np.split(rows, 2, axis=1), axis=2).reshape(rows.shape)


ATTENTION = {
    "query": "q_proj",
    "query_latent": "q_a_proj",
    "query_latent_norm": "q_a_layernorm",
    "latent": "kv_a_proj",
    "latent_norm": "kv_a_layernorm",
    "rotary_key": "k_rope_proj",
    "key": "k_b_proj",
    "value": "v_b_proj",
    "out": "o_proj",
}
DEEPSEEK = dataclasses.replace(
    LLAMA,
    title="DeepSeek-V2",
    model_type="deepseek_v2",
    transformers="DeepseekV2ForCausalLM",
    standard={"attention_bias": False},
    block_modules=decoders.BLOCK | {f"attention/{ours}": f"self_attn.{theirs}" for ours, theirs in ATTENTION.items()},
    read=read,
    write=write,
    unpack=_unpack,
    pack=_pack,
)
