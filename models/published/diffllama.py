"""DiffLlama (differential attention, Ye et al. 2024) as in `transformers`.

Each of our heads is two of theirs, heads n and n + N/2, whose softmaxes are subtracted.
"""

import dataclasses
import re
from typing import Any

import numpy as np

from attention.errors import UsageError
from models.gpt import GPTConfig
from models.published import decoders
from models.published.architectures import Arrays, Fields, swapped
from models.published.decoders import LLAMA

FAMILY = decoders.Family(("attention_bias",))
PAIRED = re.compile(r"\.[qkv]_proj\.")
LAMBDA = re.compile(r"\.lambda_[qk]([12])$")


def read(theirs: Fields) -> dict[str, Any]:
    """Reads our fields, except those that merely have another name."""
    fields, heads = decoders.read(theirs, FAMILY), theirs["num_attention_heads"]
    groups = theirs.get("num_key_value_heads") or heads
    if heads % 2 or groups % 2:
        raise UsageError(
            f"DiffLlama subtracts pairs of heads, so {heads} heads with {groups} key heads cannot be loaded."
        )
    attention = decoders.spec("differential", {"kv_heads": groups // 2 if groups != heads else 0})
    return fields | {"attention": attention, "heads": heads // 2, "head": 2 * fields["head"]}


def write(config: GPTConfig) -> dict[str, Any]:
    """Writes the fields that `read` reads."""
    theirs = decoders.write(config)
    doubled = {"num_attention_heads": 2 * config.heads, "num_key_value_heads": 2 * theirs["num_key_value_heads"]}
    return theirs | doubled | {"head_dim": theirs["head_dim"] // 2}


def unpack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Puts the two heads of a pair side by side, and the vectors of their λ into one array."""
    heads = theirs["num_attention_heads"]
    width = theirs.get("head_dim") or theirs["hidden_size"] // heads
    paired: Arrays = {}
    for name, array in arrays.items():
        if PAIRED.search(name):
            paired[name] = swapped(array, 2, -1, width)
        elif not LAMBDA.search(name):
            paired[name] = array
        elif name.endswith("1"):
            paired[name[:-1]] = np.concatenate([array, arrays[f"{name[:-1]}2"]])
    return paired


def pack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Undoes `unpack`."""
    apart: Arrays = {}
    for name, array in arrays.items():
        if PAIRED.search(name):
            apart[name] = swapped(array, -1, 2, theirs["head_dim"])
        elif ".lambda_" in name:
            apart |= {f"{name}{number}": half for number, half in enumerate(np.split(array, 2), start=1)}
        else:
            apart[name] = array
    return apart


DIFFLLAMA = dataclasses.replace(
    LLAMA,
    title="DiffLlama",
    model_type="diffllama",
    transformers="DiffLlamaForCausalLM",
    fixed={**LLAMA.fixed, "mlp_bias": False},
    standard={"rms_norm_eps": 1e-5, "attention_dropout": 0.0},  # as in the norm of each head
    block_modules=LLAMA.block_modules
    | {f"attention/score/{side}_vector": f"self_attn.lambda_{side[0]}" for side in ("query", "key")},
    absent={"attention/score/scale": 1.0},
    read=read,
    write=write,
    unpack=unpack,
    pack=pack,
)
