"""A key that came before asks for its value.

    python -m train.main --config="configs/trial_in_context.py:gated_delta"

Two layers of 64 units with a short convolution, on 32 pairs of 8 keys, tested on 64. The argument is an attention
mechanism, `dot_product` without one. The task is that of Poli et al. 2024 (MAD), smaller; settings are ours.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """A frame of two layers, width 64, one head."""
    config = defaults.trial("in_context_recall(size=32, tested=(64,))", attention)
    config.model.update(depth=2, width=64, convolution=4)
    return config
