"""Copying of symbols, tested on longer ones.

    python -m train.main --config="configs/trial_copying.py:gated_delta"

Two layers of 64 units with a short convolution, on up to 32 symbols, tested on 64. The argument is an attention
mechanism, `dot_product` without one. The task is that of Jelassi et al. 2024, smaller; settings are ours.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """A frame of two layers, width 64, one head."""
    config = defaults.trial("copying(size=32, least=8, tested=(64,))", attention)
    config.model.update(depth=2, width=64, convolution=4)
    return config
