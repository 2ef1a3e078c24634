"""Parity of all bits so far, tested on longer ones.

    python -m train.main --config="configs/trial_parity.py:delta"

Two layers of 64 units with an MLP, on 3 to 32 bits, tested on 64 and 128. The argument is an attention mechanism,
`dot_product` without one. The task is that of Grazzi et al. 2024; settings are ours.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """A frame of two layers, width 64, one head."""
    config = defaults.trial("words(size=32, least=3, group='Z2', tested=(64, 128))", attention)
    config.model.update(depth=2, width=64, mlp=128)
    return config
