"""The sizes of trials: small ones for two CPU cores, and the papers'."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class TrialSize:
    """A trial and its model; other fields are as in `configs.defaults.trial`."""

    source: str  # for `data.source`
    model: Mapping[str, Any]  # fields of the model
    examples: int = 100_000  # for training


_MIXED: Mapping[str, Any] = {"convolution": 4}  # a short convolution before the blocks
_SINUSOIDAL: Mapping[str, Any] = {"positions": "sinusoidal"}
_PLACED = _MIXED | _SINUSOIDAL
_DEEP: Mapping[str, Any] = {"mlp": 64}  # an MLP in each block

CPU = {
    "stacked": TrialSize("stacked_recall(size=32, tested=(64, 128))", {"depth": 1}),
    "stacked_narrow": TrialSize("stacked_recall(size=32, tested=(64, 128))", {"depth": 1, "width": 16}),
    "stacked_wide": TrialSize("stacked_recall(size=32, tested=(64, 128))", {"depth": 1, "width": 64}),
    "growing": TrialSize("stacked_recall(size=64, least=4, keys=256, tested=(128, 256))", {"depth": 1}),
    "rewritten": TrialSize("stacked_recall(size=32, rewritten=16, tested=(64,))", _DEEP),
    "recall": TrialSize("recall(size=8, tested=(16,))", _MIXED),
    "in_context": TrialSize("in_context_recall(size=32, tested=(64,))", _MIXED),
    "noisy": TrialSize("in_context_recall(size=32, noise=0.2, tested=(64,))", _MIXED),
    "fuzzy": TrialSize("fuzzy_recall(size=9, tested=(18,))", _MIXED),
    "selective": TrialSize("selective_copying(size=4, context=32)", _PLACED),
    "copying": TrialSize("copying(size=32, least=8, tested=(64,))", _MIXED),
    "induction": TrialSize("induction(size=64, tested=(256,))", _MIXED),
    "compression": TrialSize("compression(size=16)", _PLACED | _DEEP),
    "memorisation": TrialSize("memorisation(size=16)", _MIXED | _DEEP),
    "parity": TrialSize("words(size=32, least=3, group='Z2', tested=(64, 128))", _DEEP),
    "addition": TrialSize("words(size=32, least=3, group='Z5', tested=(64, 128))", _DEEP),
    "permutations": TrialSize("words(size=16, least=3, group='S3', tested=(32,))", _DEEP),
    "alternating": TrialSize("words(size=16, least=3, group='A5', tested=(32,))", _DEEP),
    "symmetric": TrialSize("words(size=16, least=3, group='S5', tested=(32,))", _DEEP),
}

_STACKED = "stacked_recall(size=64, keys=4096, values=4096, tested=(128, 256))"
_ZOOLOGY: Mapping[str, Any] = {"width": 128, "convolution": 4}
_MAD: Mapping[str, Any] = {"width": 128, "heads": 8, "mlp": 256, "convolution": 4}
_STATE: Mapping[str, Any] = {"width": 128, "heads": 8, "mlp": 512}

PUBLISHED = {
    "stacked": TrialSize(_STACKED, {"depth": 1, "width": 128}),  # ours, as are the next four
    "stacked_narrow": TrialSize(_STACKED, {"depth": 1, "width": 64}),
    "stacked_wide": TrialSize(_STACKED, {"depth": 1, "width": 256}),
    "growing": TrialSize("stacked_recall(size=64, least=4, keys=4096, values=4096, tested=(256,))", {"depth": 1}),
    "rewritten": TrialSize("stacked_recall(size=64, rewritten=32, keys=4096, values=4096, tested=(128,))", _STATE),
    "recall": TrialSize("recall(size=64, keys=4096, values=4096, context=512)", _ZOOLOGY),
    "in_context": TrialSize("in_context_recall(size=64)", _MAD, 12_800),
    "noisy": TrialSize("in_context_recall(size=64, noise=0.2)", _MAD, 12_800),
    "fuzzy": TrialSize("fuzzy_recall(size=18)", _MAD, 12_800),
    "selective": TrialSize("selective_copying(size=16, context=256)", _MAD | _SINUSOIDAL, 12_800),
    "copying": TrialSize("copying(size=50, least=10, symbols=26, tested=(100, 300, 1000))", _MAD),
    "induction": TrialSize("induction(size=256, tested=(1024, 4096))", _ZOOLOGY),
    "compression": TrialSize("compression(size=32)", _MAD | _SINUSOIDAL, 12_800),
    "memorisation": TrialSize("memorisation(size=16)", _MAD, 256),
    "parity": TrialSize("words(size=40, least=3, group='Z2', tested=(256,))", _STATE),
    "addition": TrialSize("words(size=40, least=3, group='Z5', tested=(256,))", _STATE),  # ours
    "permutations": TrialSize("words(size=128, least=3, group='S3', tested=(512,))", _STATE),
    "alternating": TrialSize("words(size=128, least=3, group='A5', tested=(512,))", _STATE),
    "symmetric": TrialSize("words(size=128, least=3, group='S5', tested=(512,))", _STATE),
}
