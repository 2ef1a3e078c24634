"""Mamba-2 (Dao & Gu 2024) as in `transformers`: blocks of a state space alone.

One matrix projects the inputs to gate, values, keys, queries and steps, in this order; one convolution covers values,
keys and queries.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attention.errors import UsageError
from attention.recurrences.selective import StateSpace
from models.gpt import GPTConfig
from models.published.architectures import Architecture, Arrays, Fields
from models.published.decoders import spec

FUSED = ("gate", "value", "key", "query", "step")
CONVOLVED = ("value", "key", "query")
DEFAULTS = {  # those of `Mamba2Config`; the length is ours, since there is no longest sequence
    "num_heads": 128,
    "head_dim": 64,
    "hidden_size": 4096,
    "state_size": 128,
    "num_hidden_layers": 64,
    "layer_norm_epsilon": 1e-5,
    "expand": 2,
    "conv_kernel": 4,
    "n_groups": 8,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
}
UNLIMITED = [0.0, {"__float__": "Infinity"}]  # as transformers 5 writes Infinity
SCORE = {
    "step_kernel": "step",
    "step_bias": "dt_bias",
    "forget_rate": "A_log",
    "skip": "D",
    "gate_kernel": "gate",
    "gate_scale": "norm.weight",
    **{f"{side}_taps{bias}": f"{side}_taps{bias}" for side in CONVOLVED for bias in ("", "_bias")},
}


def complete(theirs: Fields) -> Fields:
    """Adds the fields that files may omit."""
    unlimited = theirs.get("time_step_limit") == [0.0, float("inf")]
    return DEFAULTS | dict(theirs) | ({"time_step_limit": UNLIMITED} if unlimited else {})


def read(theirs: Fields) -> dict[str, Any]:
    """Reads our fields, except those that merely have another name."""
    inner, heads = theirs["expand"] * theirs["hidden_size"], theirs["num_heads"]
    if inner != heads * theirs["head_dim"]:
        raise UsageError(f"{heads} heads of {theirs['head_dim']} do not make up expand * hidden_size = {inner}.")
    options = {"groups": theirs["n_groups"], "state": theirs["state_size"], "conv": theirs["conv_kernel"]}
    options |= {"gate": "gate_first", "skip": True, "epsilon": theirs["layer_norm_epsilon"]}
    head = theirs["head_dim"] if inner != theirs["hidden_size"] else 0
    return {"attention": spec("state_space", options), "head": head}


def write(config: GPTConfig) -> dict[str, Any]:
    """Writes the fields that `read` reads."""
    head = config.head or config.width // config.heads
    score, inner = config.mechanisms["attention"][0].score, config.heads * head
    if not isinstance(score, StateSpace) or not (score.groups and score.state and score.conv) or inner % config.width:
        raise UsageError("Only state_space with groups, state and conv can be exported as Mamba-2.")
    sizes = {"n_groups": score.groups, "state_size": score.state, "conv_kernel": score.conv}
    return sizes | {"head_dim": head, "expand": inner // config.width}


def unpack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Cuts the projection and the convolution into ours."""
    sizes, cut = _sizes(theirs), {}
    for name, array in arrays.items():
        layer, _, fused = name.rpartition("mixer.")
        if fused == "in_proj.weight":
            sides = _split(array, FUSED, sizes)
            cut |= {f"{layer}mixer.{side}.weight": sides[side] for side in CONVOLVED}
            cut |= {f"{layer}mixer.{side}": sides[side].T.reshape(-1) for side in ("gate", "step")}
        elif fused in ("conv1d.weight", "conv1d.bias"):
            bias = "_bias" if fused.endswith("bias") else ""
            sides = _split(array.reshape(len(array), -1), CONVOLVED, sizes)
            cut |= {f"{layer}mixer.{side}_taps{bias}": taps.T.reshape(-1) for side, taps in sides.items()}
        else:
            cut[name.replace("embedding.", "embeddings.")] = array
    return cut


def pack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Undoes `unpack`."""
    joined, sizes = dict(arrays), _sizes(theirs)
    for name in [name for name in arrays if name.endswith("mixer.step")]:
        layer = name.removesuffix("step")
        sides = {side: joined.pop(f"{layer}{side}.weight") for side in CONVOLVED}
        sides |= {side: joined.pop(f"{layer}{side}").reshape(-1, sizes[side]).T for side in ("gate", "step")}
        joined[f"{layer}in_proj.weight"] = np.concatenate([sides[side] for side in FUSED])
        for theirs_name, bias in (("weight", ""), ("bias", "_bias")):
            taps = [joined.pop(f"{layer}{side}_taps{bias}").reshape(-1, sizes[side]).T for side in CONVOLVED]
            whole = np.concatenate(taps)
            joined[f"{layer}conv1d.{theirs_name}"] = whole[:, 0] if bias else whole[:, None]
    return joined


def _sizes(theirs: Fields) -> dict[str, int]:
    inner, heads = theirs["expand"] * theirs["hidden_size"], theirs["num_heads"]
    state = theirs["n_groups"] * theirs["state_size"]
    return {"gate": inner, "value": inner, "key": state, "query": state, "step": heads}


def _split(array: np.ndarray, names: Sequence[str], sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """Cuts stacked rows into those of each name."""
    ends = np.cumsum([sizes[name] for name in names])[:-1]
    return dict(zip(names, np.split(array, ends), strict=True))


MAMBA2 = Architecture(
    title="Mamba-2",
    model_type="mamba2",
    transformers="Mamba2ForCausalLM",
    config=GPTConfig,
    fields={
        "depth": "num_hidden_layers",
        "width": "hidden_size",
        "heads": "num_heads",
        "norm_epsilon": "layer_norm_epsilon",
        "tied_output": "tie_word_embeddings",
    },
    fixed={
        "mlp": 0,
        "activation": "silu",  # the convolution's, which ours always has
        "norm": "pre",
        "norm_type": "rms",
        "norm_embedding": False,
        "positions": "none",
        "attention_bias": False,
        "scale_embeddings": False,
        "output_bias": False,
        "logit_cap": 0.0,
    },
    standard={"hidden_act": "silu", "use_bias": False, "use_conv_bias": True, "time_step_limit": UNLIMITED},
    modules={"embed": "backbone.embeddings", "norm": "backbone.norm_f", "head": "lm_head"},
    blocks={"block": "backbone.layers"},
    block_modules={
        "norm_attention": "norm",
        "attention/out": "mixer.out_proj",
        **{f"attention/{side}": f"mixer.{side}" for side in CONVOLVED},
        **{f"attention/score/{ours}": f"mixer.{theirs}" for ours, theirs in SCORE.items()},
    },
    body="backbone.",
    head="lm_head.",
    tied={"lm_head.weight": "backbone.embeddings.weight"},
    complete=complete,
    read=read,
    write=write,
    unpack=unpack,
    pack=pack,
)
