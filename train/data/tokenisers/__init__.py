"""Tokenisers: text to ids and back; spec strings name them, see `by_name`."""

from train.data.tokenisers.by_name import check, loads, make, needs_fitting, stated_size
from train.data.tokenisers.plain import Tokeniser, marks

__all__ = ["Tokeniser", "check", "loads", "make", "marks", "needs_fitting", "stated_size"]
