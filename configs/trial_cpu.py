"""A small task that separates mechanisms, for CPUs.

    python -m train.main --config=configs/trial_cpu.py:parity --config.model.attention=delta

The argument is a trial in `CPU` of `train/data/trials/sizes.py`, `stacked` by default. `docs/trials.md` describes the
trials and names their sources; the sizes are ours.
"""

from configs import defaults
from train.data.trials.sizes import CPU


def get_config(trial: str = "stacked"):
    """A frame of one or two layers, width 32, one head."""
    return defaults.trial(trial, CPU)
