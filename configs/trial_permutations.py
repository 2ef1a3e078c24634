"""Products of permutations, tested on longer ones.

    python -m train.main --config="configs/trial_permutations.py:gated_delta"

Two layers of 64 units with an MLP, on 3 to 16 permutations, tested on 32. The argument is an attention mechanism,
`dot_product` without one. The task is that of Merrill et al. 2024; settings are ours.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """A frame of two layers, width 64, one head."""
    config = defaults.trial("words(size=16, least=3, group='S3', tested=(32,))", attention)
    config.model.update(depth=2, width=64, mlp=128)
    return config
