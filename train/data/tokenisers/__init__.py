"""Tokenisers: text to ids and back; spec strings name them, see `tokeniser`."""

from train.data.tokenisers.tokeniser import Tokeniser, check, loads, make, needs_fitting, stated_size

__all__ = ["Tokeniser", "check", "loads", "make", "needs_fitting", "stated_size"]
