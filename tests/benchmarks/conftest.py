"""Benchmarks as a user calls them."""

import importlib.util
import json

import pytest

THERE = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
WITHOUT = pytest.mark.skipif(not THERE, reason="needs requirements-parity.txt")
AGAINST = pytest.mark.parametrize("against", ["", pytest.param("transformers", marks=WITHOUT)])


@pytest.fixture
def measured(tmp_path, capsys):
    """Runs a program with flags; returns what it wrote and what it printed."""

    def run(main, flags):
        assert main([*flags.split(), f"--out={tmp_path / 'out.json'}"]) == 0
        return json.loads((tmp_path / "out.json").read_text()), capsys.readouterr().out

    return run
