"""A table of trials for the tests of what is made of it: five seeds of five mechanisms in two trials."""

from train.data.trials.sizes import CPU
from train.grids.trial_table import TrialTable

# Accuracies of each seed at the greatest size; of `retention`, one seed diverged, which is chance; `super` has nothing.
RECALLED = {
    "dot_product": [1.0, 1.0, 1.0, 0.995, 1.0],
    "linear": [0.50, 0.52, 0.49, 0.51, 0.50],
    "delta": [0.70, 0.69, 0.71, 0.70, 0.72],
    "retention": [0.20, 1 / 64, 0.22, 0.21, 0.19],
}
FOLLOWED = {
    "dot_product": [0.50, 0.51, 0.49, 0.50, 0.50],
    "linear": [0.51, 0.50, 0.50, 0.49, 0.50],
    "delta": [0.5, 1.0, 1.0, 0.5, 1.0],
}
KEPT = {"dot_product": (16384, 65536), "linear": (4224, 4224), "delta": (4096, 4096), "retention": (4096, 4096)}
CALL = {"versions": {"jax": "0.10"}, "devices": "1 cpu", "git": "abc", "matmul_precision": "default"}
SETTINGS = {"train.length": "1500 steps", "tuning.rates": [1e-3, 3e-3, 1e-2], "tuning.seeds": 1}


def row(trial, spec, accuracies, size):
    """Makes a cell whose accuracies at the sizes of training are 1."""
    return {
        "trial": trial,
        "spec": spec,
        "tried": {"3e-3": [0.5]},
        "rate": "3e-3",
        "seeds": [0, 1, 2, 3, 4],
        "diverged": sum(accuracy == 1 / 64 for accuracy in accuracies),
        "accuracy": [1.0] * 5,
        f"accuracy_at_{size}": accuracies,
        "cache_bytes": KEPT[spec][0],
        f"cache_bytes_at_{size}": KEPT[spec][1],
        "parameters": 10_000,
        "forward_flops_per_example": 2_400_000,
        "steps": [750, 1500],
        "curves": [[0.5, accuracy] for accuracy in accuracies],
    }


def table():
    """Makes the table."""
    rows = [row("stacked", spec, values, 128) for spec, values in RECALLED.items()]
    rows += [row("parity", spec, values, 128) for spec, values in FOLLOWED.items()]
    rows.append({"trial": "stacked", "spec": "super", "reason": "it has <other> lengths"})
    chances = {"stacked": 1 / 64, "parity": 0.5}
    trials = {
        name: {"settings": SETTINGS | {"data.source": CPU[name].source}, "chance": chance}
        for name, chance in chances.items()
    }
    return TrialTable(trials, rows, [CALL])
