"""Finished runs for the tests of studies."""

from tests.analysis.conftest import config, write_run

__all__ = ["config", "write_run"]
