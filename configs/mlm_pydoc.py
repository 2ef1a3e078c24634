"""A small RoBERTa on Python's manual; offline, minutes.

    python -m train.main --config=configs/mlm_pydoc.py:mlp_roberta

The text is what CPython ships; it takes minutes on two cores. The argument is an attention mechanism, `dot_product`
by default. All settings are ours.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """RoBERTa of 3 blocks, width 128, on 128 of 2,048 subwords."""
    config = defaults.masked_language_modelling()
    config.model.update(attention=attention, depth=3, width=128, mlp=512)
    config.train.update(length="3000 steps", eval_every="500 steps", checkpoint_every="500 steps")
    return config
