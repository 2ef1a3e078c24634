"""The bench's language models in EleutherAI's harness `lm-eval`, which holds the public tests of such models.

    import lm_eval
    from train.decode.harness import HarnessModel

    results = lm_eval.simple_evaluate(model=HarnessModel("runs/gpt"), tasks=["lambada_openai"])

The package is in `requirements-harness.txt`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from attention.errors import UsageError
from train.data.tokenisers.base import Ids
from train.decode.continuations import Texts
from train.decode.language_models import LanguageModel
from train.generation.decoding import generate
from train.generation.sampling import Sampling

try:
    from lm_eval.api.model import LM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    raise UsageError(
        f"The harness needs the package lm_eval ({error}): pip install -r requirements-harness.txt."
    ) from error

MOST = 256  # the most tokens of an answer where the task does not say


class HarnessModel(LM):
    """A run's or a published model, with the interface of the harness."""

    def __init__(self, place: str):
        """Loads the best step of a work directory, or a published model from a folder or the hub."""
        super().__init__()
        self._language = LanguageModel.of(place)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Measures the log-probability of each continuation of a context, and tells whether it is the greedy one."""
        rows = [self._pair(*request.args) for request in requests]
        found = self._language.scores(rows)
        for request, result in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, result)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Measures the log-probability of each text, in windows as long as the context, counting each token once."""
        language, found = self._language, []
        for request in requests:
            tokens = language.tokeniser.encode(*request.args).tolist()
            windows = get_rolling_token_windows(tokens, language.first, max_seq_len=language.context, context_len=1)
            pairs = map(make_disjoint_window, windows)
            rows = [(np.int32([*before, *last]), len(last)) for before, last in pairs]
            found.append(sum(score for score, _ in language.scores(rows)))
        return found

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Continues each context, up to a stop string."""
        return [self._continued(*request.args) for request in requests]

    def _pair(self, context: str, continuation: str) -> tuple[Ids, int]:
        """Encodes a context and its continuation, cut at the front to fit, and counts the continuation's tokens.

        As in the harness, white space at the end of a context belongs to the continuation.
        """
        encode = self._language.tokeniser.encode
        bare = context.rstrip()
        whole, before = encode(context + continuation), encode(bare)
        count = len(whole) - len(before)
        if not len(before):
            whole = np.concatenate([np.int32([self._language.first]), whole])
        whole = whole[-(self._language.context + 1) :]
        return whole, min(count, len(whole) - 1)

    def _continued(self, context: str, options: dict[str, Any]) -> str:
        language, tokens = self._language, int(options.get("max_gen_toks", MOST))
        until = options.get("until") or []
        stop = [until] if isinstance(until, str) else list(until)
        temperature = float(options.get("temperature", 1.0)) if options.get("do_sample") else 0.0
        room = max(language.context - tokens, 1)
        prompt = language.tokeniser.encode(context)[-room:]
        prompt = prompt if len(prompt) else np.int32([language.first])
        watch = Texts(language.tokeniser, [prompt], stop, answers=True)
        sampling = Sampling(temperature, top_p=float(options.get("top_p", 1.0)))
        generate(language.model, language.params, [prompt], tokens, sampling, jax.random.key(0), language.end, watch)
        return watch.texts[0]
