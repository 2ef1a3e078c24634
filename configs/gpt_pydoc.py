"""A small GPT of bytes on Python's manual; offline, minutes.

    python -m train.main --config="configs/gpt_pydoc.py:neural(dim=2)"

The text is what CPython ships; it takes minutes on two cores. The argument is an attention mechanism, `dot_product`
by default. All settings are ours.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """GPT of 4 blocks, width 128, on 128 bytes."""
    config = defaults.language_modelling()
    config.model.update(attention=attention, depth=4, width=128, mlp=512, dropout=0.1)
    config.optimizer.learning_rate = 3e-3
    config.train.update(
        length="2000 steps", log_every="100 steps", eval_every="500 steps", checkpoint_every="500 steps"
    )
    return config
