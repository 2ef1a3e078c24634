"""Configs: their dataclasses, and how a command line becomes a validated config."""
