"""Benchmarks as a user calls them."""

import json

import pytest


@pytest.fixture
def measured(tmp_path, capsys):
    """Runs a program with flags; returns what it wrote and what it printed."""

    def run(main, flags):
        assert main([*flags.split(), f"--out={tmp_path / 'out.json'}"]) == 0
        return json.loads((tmp_path / "out.json").read_text()), capsys.readouterr().out

    return run
