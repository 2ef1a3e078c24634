"""Keys and their values, then keys that ask (MQAR).

    python -m train.main --config="configs/trial_recall.py:gated_delta"

Two layers of 64 units with a short convolution, on 8 pairs in 64 tokens, tested on 16. The argument is an attention
mechanism, `dot_product` without one. The task is that of Arora et al. 2023, smaller; settings are ours.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """A frame of two layers, width 64, one head."""
    config = defaults.trial("recall(size=8, tested=(16,))", attention)
    config.model.update(depth=2, width=64, convolution=4)
    return config
