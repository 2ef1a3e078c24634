"""Copying of symbols from among blanks.

    python -m train.main --config="configs/trial_selective.py:gated_delta"

Two layers of 64 units with sinusoidal positions and a short convolution, on 8 symbols in 64 tokens. The argument is an
attention mechanism, `dot_product` without one. The task is that of Gu and Dao 2023, smaller; settings are ours.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """A frame of two layers, width 64, one head."""
    config = defaults.trial("selective_copying(size=8, context=64)", attention)
    config.model.update(depth=2, width=64, positions="sinusoidal", convolution=4)
    return config
