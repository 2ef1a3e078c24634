"""Both versions of T5 (Raffel et al. 2020) as in `transformers`.

All its layers share the first one's biases of relative positions; ours have their own. Before tied embeddings it scales
the decoder's states; our last norm includes that factor.
"""

import re
from typing import Any

import numpy as np

from attention.errors import UsageError
from models.encoder_decoder import EncoderDecoderConfig
from models.published.architectures import ACTIVATION_NAMES, Architecture, Arrays, Fields
from models.published.marian import MARIAN

BIASES = "layer.0.SelfAttention.relative_attention_bias"
LAST = "decoder.final_layer_norm.weight"
DEPTHS = {"encoder": "num_layers", "decoder": "num_decoder_layers"}


def complete(theirs: Fields) -> dict[str, Any]:
    """Adds the fields that older and newer files omit."""
    defaults = {
        "n_positions": 512,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "relu",
        "num_decoder_layers": theirs.get("num_layers"),
        "decoder_start_token_id": theirs.get("pad_token_id"),
    }
    return defaults | {name: value for name, value in theirs.items() if value is not None}


def _tied(theirs: Fields) -> bool:
    """Tells whether the output is tied to the embeddings; newer files always say it is."""
    return "scale_decoder_outputs" in theirs or bool(theirs.get("tie_word_embeddings", True))


def _factor(theirs: Fields) -> float:
    """Computes the factor of the decoder's states before the output."""
    scaled = theirs.get("scale_decoder_outputs", theirs.get("tie_word_embeddings", True))
    return theirs["d_model"] ** -0.5 if scaled else 1.0


def read(theirs: Fields) -> dict[str, Any]:
    """Reads our fields, except those that merely have another name."""
    for name in ("d_kv", "relative_attention_num_buckets", "relative_attention_max_distance"):
        if type(theirs[name]) is not int:
            raise UsageError(f"config.json has {name}={theirs[name]!r}, which must be a whole number.")
    gate, _, activation = theirs["feed_forward_proj"].rpartition("-")
    if gate not in ("", "gated"):
        raise UsageError(f"feed_forward_proj={theirs['feed_forward_proj']!r} cannot be loaded; gated-gelu can.")
    buckets, distance = theirs["relative_attention_num_buckets"], theirs["relative_attention_max_distance"]
    relative = f"relative(buckets={buckets!r}, distance={distance!r}, scale=1.0"
    return {
        "attention": f"{relative})",
        "decoder_attention": f"{relative}, ahead=False)",
        "cross_attention": "dot_product(scale=1.0)",
        "gated": bool(gate),
        "activation": "gelu_new" if gate and activation == "gelu" else activation,
        "head": theirs["d_kv"] if theirs["d_kv"] * theirs["num_heads"] != theirs["d_model"] else 0,
        "tied_output": _tied(theirs),
    }


def write(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Writes the fields that `read` reads."""
    score = config.mechanisms["attention"][0].score
    activation = ACTIVATION_NAMES[config.activation]
    gated = "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"
    return {
        "relative_attention_num_buckets": getattr(score, "buckets", 32),
        "relative_attention_max_distance": getattr(score, "distance", 128),
        "feed_forward_proj": gated if config.gated else activation,
        "d_kv": config.head or config.width // config.heads,
        "tie_word_embeddings": config.tied_output,
    }


def unpack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Copies the first layer's biases to all, and names the encoder's arrays as the decoder's."""
    named: Arrays = {}
    for name, array in arrays.items():
        if name.startswith("encoder."):
            name = name.replace(".layer.1.", ".layer.2.")
        if BIASES in name:
            side = name.partition(".")[0]
            named |= {f"{side}.block.{layer}.{BIASES}": array.T.reshape(-1) for layer in range(theirs[DEPTHS[side]])}
        elif not name.endswith("embed_tokens.weight"):  # a copy, in older files
            named[name.replace(".wi.", ".wi_1.")] = array * _factor(theirs) if name == LAST else array
    return named


def pack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Undoes `unpack`.

    Raises:
      UsageError: the biases of relative positions differ among layers.
    """
    named: Arrays = {}
    for name, array in arrays.items():
        side, first = name.partition(".")[0], re.sub(r"block\.\d+", "block.0", name)
        if name.endswith(BIASES):
            if not np.array_equal(array, arrays[first]):
                raise UsageError(
                    f"The layers of T5's {side} share a bias of relative positions, but here each has its own."
                )
            named[f"{first}.weight"] = array.reshape(theirs["num_heads"], -1).T
            continue
        if side == "encoder":
            name = name.replace(".layer.2.", ".layer.1.")
        name = name if "gated" in theirs["feed_forward_proj"] else name.replace(".wi_1.", ".wi.")
        named[name] = (array / _factor(theirs)).astype(array.dtype) if name == LAST else array
    return named


SELF, CROSS, MLP = "layer.0.SelfAttention", "layer.1.EncDecAttention", "layer.2.DenseReluDense"
T5 = Architecture(
    title="T5",
    model_type="t5",
    transformers="T5ForConditionalGeneration",
    config=EncoderDecoderConfig,
    fields={
        "depth": "num_layers",
        "decoder_depth": "num_decoder_layers",
        "width": "d_model",
        "heads": "num_heads",
        "mlp": "d_ff",
        "norm_epsilon": "layer_norm_epsilon",
    },
    dropouts=dict.fromkeys(("embedding_dropout", "dropout", "attention_dropout"), "dropout_rate"),
    fixed={
        "norm": "pre",
        "norm_type": "rms",
        "positions": "none",
        "attention_bias": False,
        "mlp_bias": False,
        "shared_embeddings": True,
        "scale_embeddings": False,
        "output_bias": False,
    },
    standard={"is_encoder_decoder": True, "is_decoder": False},
    special=MARIAN.special,
    modules={
        "embed": "shared",
        "encoder_norm": "encoder.final_layer_norm",
        "decoder_norm": "decoder.final_layer_norm",
        "head": "lm_head",
    },
    blocks={"encoder": "encoder.block", "decoder": "decoder.block"},
    block_modules={
        **{f"attention/{side}": f"{SELF}.{side[0]}" for side in ("query", "key", "value", "out")},
        **{f"cross/{side}": f"{CROSS}.{side[0]}" for side in ("query", "key", "value", "out")},
        "attention/score/bucket_bias": BIASES,
        "norm_attention": "layer.0.layer_norm",
        "norm_cross": "layer.1.layer_norm",
        "norm_mlp": "layer.2.layer_norm",
        "mlp/gate": f"{MLP}.wi_0",
        "mlp/up": f"{MLP}.wi_1",
        "mlp/down": f"{MLP}.wo",
    },
    body="",
    head="lm_head.",
    tied={"lm_head.weight": "shared.weight"},
    length="n_positions",
    complete=complete,
    read=read,
    write=write,
    unpack=unpack,
    pack=pack,
    generation=MARIAN.generation,
)
