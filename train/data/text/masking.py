"""BERT's corruption for masked language models (Devlin et al. 2019, §3.1)."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Int32

from attention.errors import UsageError
from train.data.tokenisers import Tokeniser

_MASKED, _RANDOM = 0.8, 0.1  # of the chosen tokens; the rest stay as they are


@dataclasses.dataclass(frozen=True)
class Masking:
    """Chooses tokens and replaces 80 % of them by the mask, 10 % by any ordinary token; 10 % stay.

    Attributes:
      rate: The probability that a token is chosen. In a window where none was, one is.
      size: Ids are 0 … size - 1.
      special: Ids that are never chosen, and that never replace a token at random.
      mask: The id of the mask.
    """

    rate: float
    size: int
    special: tuple[int, ...]
    mask: int

    @classmethod
    def of(cls, tokeniser: Tokeniser, rate: float) -> "Masking":
        """Returns the masking for a tokeniser's ids.

        Raises:
          UsageError: the tokeniser has no mask token.
        """
        if "mask" not in tokeniser.special:
            raise UsageError(
                "A masked language model needs a tokeniser with a mask token, but data.tokeniser has only "
                f"{', '.join(tokeniser.special) or 'ordinary ones'}; for words, write words(marks=True)."
            )
        return cls(rate, tokeniser.size, tuple(sorted(tokeniser.special.values())), tokeniser.special["mask"])

    def __call__(
        self, ids: Int32[np.ndarray, " n"], rng: np.random.Generator
    ) -> tuple[Int32[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
        """Returns the corrupted ids, and which were chosen."""
        may = ~np.isin(ids, self.special)
        chosen = (rng.random(len(ids)) < self.rate) & may
        candidates = np.flatnonzero(may)
        if len(candidates) and not chosen.any():
            chosen[rng.choice(candidates)] = True
        fate = rng.random(len(ids))
        out = np.where(chosen & (fate < _MASKED), np.int32(self.mask), ids)
        randomised = chosen & (fate >= _MASKED) & (fate < _MASKED + _RANDOM)
        out[randomised] = self._ordinary(rng, int(randomised.sum()))
        return out, chosen

    def _ordinary(self, rng: np.random.Generator, count: int) -> Int32[np.ndarray, " count"]:
        """Draws ids uniformly from all but the special ones."""
        drawn = rng.integers(self.size - len(self.special), size=count, dtype=np.int32)
        for special in self.special:  # ascending, so that each shift lands where the ones before left room
            drawn += drawn >= special
        return drawn
