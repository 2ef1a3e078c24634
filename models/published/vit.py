"""The Vision Transformer (Dosovitskiy et al. 2021) as in `transformers`, and DeiT without distillation."""

import math
from collections.abc import Mapping
from typing import Any

from attention.errors import UsageError
from models.published.architectures import DROPOUTS, SIDES, SIZES, Architecture, Arrays, Fields
from models.vit import ViTConfig

KERNEL = "vit.embeddings.patch_embeddings.projection.weight"
TOKEN, POSITIONS = "vit.embeddings.cls_token", "vit.embeddings.position_embeddings"
CLASSES, TOKENS = "num_labels", "tokens"  # our names of what files express differently


def complete(theirs: Fields) -> dict[str, Any]:
    """Adds the numbers of classes and of tokens, if the fields that they depend on have the right types."""
    side, patch = theirs.get("image_size"), theirs.get("patch_size")
    if "image_size" in theirs and not (type(side) is int and type(patch) is int and patch > 0):
        raise UsageError(
            f"config.json has image_size={side!r} and patch_size={patch!r}, but only whole numbers can be loaded."
        )
    classes = theirs.get("id2label") or theirs.get(CLASSES) or 2
    said = {CLASSES: classes if isinstance(classes, int) else len(classes)}
    return {**theirs, **said} | ({TOKENS: (side // patch) ** 2 + 1} if side and patch else {})


def finish(theirs: Fields, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Undoes `complete`, given the shapes of our parameters by path."""
    patch, side = theirs["patch_size"], math.isqrt(theirs[TOKENS] - 1)
    if side**2 != theirs[TOKENS] - 1:
        raise UsageError(f"A ViT of transformers has square images, but {theirs[TOKENS] - 1} patches make no square.")
    names = {str(label): f"LABEL_{label}" for label in range(theirs[CLASSES])}
    return {name: value for name, value in theirs.items() if name not in (CLASSES, TOKENS)} | {
        "image_size": side * patch,
        "num_channels": shapes["embed/kernel"][0] // patch**2,
        "id2label": names,
        "label2id": {name: int(label) for label, name in names.items()},
    }


def unpack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Flattens the patches' kernel from (outputs, channel, row, column), and drops the batch axis of tables."""
    prefix = "" if KERNEL in arrays else "vit."  # without a head, names have no prefix
    forms = {KERNEL: lambda kernel: kernel.transpose(0, 2, 3, 1).reshape(len(kernel), -1)}
    forms |= {TOKEN: lambda token: token.reshape(-1), POSITIONS: lambda table: table[0]}
    return {name: forms.get(prefix + name, lambda array: array)(array) for name, array in arrays.items()}


def pack(arrays: Arrays, theirs: Fields) -> Arrays:
    """Undoes `unpack`."""
    patch, kernel = theirs["patch_size"], arrays[KERNEL]
    square = kernel.reshape(len(kernel), patch, patch, -1).transpose(0, 3, 1, 2)
    return arrays | {KERNEL: square, TOKEN: arrays[TOKEN][None, None], POSITIONS: arrays[POSITIONS][None]}


VIT = Architecture(
    title="ViT",
    model_type="vit",
    transformers="ViTForImageClassification",
    config=ViTConfig,
    fields={
        **SIZES,
        "norm_epsilon": "layer_norm_eps",
        "activation": "hidden_act",
        "patch": "patch_size",
    },
    dropouts=DROPOUTS,
    fixed={"norm": "pre", "positions": "learned", "attention_bias": True, "pool": "class_token"},
    standard={"qkv_bias": True},
    modules={
        "embed": "vit.embeddings.patch_embeddings.projection",
        "class_token": TOKEN,
        "positions/table": POSITIONS,
        "norm": "vit.layernorm",
        "head": "classifier",
    },
    blocks={"block": "vit.encoder.layer"},
    block_modules={
        **{f"attention/{side}": f"attention.attention.{side}" for side in SIDES},
        "attention/out": "attention.output.dense",
        "mlp/up": "intermediate.dense",
        "mlp/down": "output.dense",
        "norm_attention": "layernorm_before",
        "norm_mlp": "layernorm_after",
    },
    body="vit.",
    head="classifier.",
    vocabulary=CLASSES,
    length=TOKENS,
    complete=complete,
    finish=finish,
    unpack=unpack,
    pack=pack,
    new_head=True,
)
