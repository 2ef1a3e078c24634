"""Benchmarks in their shortest form."""

import importlib.util

import pytest

AGAINST = " --against=transformers" if importlib.util.find_spec("transformers") else ""
SMALL = "--config.model.depth=1 --config.model.width=16 --config.model.mlp=16"
SHORTEST = (
    "attention --length=16 --heads=2 --width=8 --rounds=1 --only dot_product neural --growth 16 32",
    "compiling --rounds=1 --vocabulary=500 --batch=2 --context=64",
    f"decoding {SMALL} --length=12 --rounds=1 --attention=super --attention=delta",
    "endurance --rounds=1 --seconds=0.5",
    "inference --rounds=1 --tasks classify_imdb --heads 4 --batches 4 --samples=10 --attention efficient",
    "layers --models vit --rounds=1 --specs dot_product neural(dim=2)|dot_product",
    f"llama {SMALL} --rounds=1 --prompt=3 --tokens=5 --batches 1 2 --length=6 --vocabulary=40" + AGAINST,
    f"marian {SMALL} --rounds=1 --source=4 --tokens=5 --again=6 --vocabulary=40" + AGAINST,
    "profile_step --steps=1",
    "replicas --configs configs/vit_digits.py --replicas=2 --rounds=1 --steps=0",
    "startup --rounds=1",
)


@pytest.mark.long
@pytest.mark.parametrize("command", SHORTEST)
def test_it_measures_and_ends_with_a_table(command, run_python):
    name, *flags = command.split()
    assert run_python("-m", f"benchmarks.{name}", *flags).stdout.splitlines()[-1].startswith("| ")
