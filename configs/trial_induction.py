"""What came after a sign, asked at the end.

    python -m train.main --config="configs/trial_induction.py:gated_delta"

Two layers of 64 units with a short convolution, on 64 tokens, tested on 256. The argument is an attention mechanism,
`dot_product` without one. The task is that of Gu and Dao 2023, smaller; settings are ours.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """A frame of two layers, width 64, one head."""
    config = defaults.trial("induction(size=64, tested=(256,))", attention)
    config.model.update(depth=2, width=64, convolution=4)
    return config
