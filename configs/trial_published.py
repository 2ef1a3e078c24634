"""A small task at the size of its paper.

    python -m train.main --config=configs/trial_published.py:recall --config.model.attention=delta

The argument is a trial in `PUBLISHED` of `train/data/trials/sizes.py`, `recall` by default. It needs an accelerator.
Sizes are those of Arora et al. 2023, Poli et al. 2024 (MAD), Jelassi et al. 2024, Gu and Dao 2023, Grazzi et al. 2024
and Siems et al. 2025, except those that `sizes.py` calls ours. The frame and the length are ours. `docs/trials.md`
describes the trials.
"""

from configs import defaults
from train.data.trials.sizes import PUBLISHED


def get_config(trial: str = "recall"):
    """A frame of one or two layers, width 128."""
    config = defaults.trial(trial, PUBLISHED)
    config.data.update(batch_size=128, eval_examples=1000)
    config.optimizer.update(learning_rate=1e-3, warmup="1000 steps")
    config.train.update(length="20000 steps", log_every="1000 steps", eval_every="1000 steps")
    return config
