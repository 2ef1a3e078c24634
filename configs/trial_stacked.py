"""Recall of values, a key and its value in one position.

    python -m train.main --config="configs/trial_stacked.py:delta"

One layer of 64 units without convolution, positions or MLP, on 32 pairs, tested on 64 and 128. The argument is an
attention mechanism, `dot_product` without one. The task is a form of multi-query associative recall (Arora et al.
2023); all settings are ours.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """A frame of one layer, width 64, one head."""
    config = defaults.trial("stacked_recall(size=32, tested=(64, 128))", attention)
    config.model.update(depth=1, width=64)
    return config
