"""Examples with weights of the test's own, for pages that need no model."""

from pathlib import Path

import numpy as np

from analysis.explore.extraction import Look, Looks
from analysis.pictures.attention_maps import TextMaps, rollout
from train import loading

WORDS = ["<script>", "</script>", "the", "␣", "\n", "the"]


def looks(name="one", *, signed=False, seed=0):
    """Makes a run of 2 layers with 3 heads that reads a text, a pair and an image, as no real run does."""
    config = loading.validate(loading.load("configs/gpt_pydoc.py:delta").to_dict())
    rng = np.random.default_rng(seed)

    def maps(rows, columns, causal=False):
        weights = rng.random((2, 3, len(rows), len(columns))) ** 3
        weights = weights - 0.3 if signed else weights
        weights = np.tril(weights) if causal else weights
        layers = {f"block_{layer}/attention": heads for layer, heads in enumerate(weights)}
        return TextMaps(rows, columns, layers, layers, rollout(weights) if len(rows) == len(columns) else [], causal)

    patches = ["class token", *(f"row {row}, column {column}" for row in (1, 2) for column in (1, 2))]
    return Looks(
        Path(name),
        config,
        [
            Look(
                "a text", {"self-attention": maps(WORDS, WORDS, causal=True)}, expected=[f"Next: {i}" for i in range(6)]
            ),
            Look("a pair", {"target to source": maps(list("ab"), list("xyz"))}, note="The model writes: ab"),
            Look("an image", {"self-attention": maps(patches, patches)}, rng.random((8, 8, 3)), (2, 2), "Class 3."),
        ],
    )
