"""Continuations of prompts by a language model, which can be shown as they grow."""

import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from attention.errors import UsageError
from train.cli.terminal import counted
from train.data.tokenisers import Tokeniser
from train.data.tokenisers.base import Ids
from train.decode import chats, trained
from train.decode.language_models import LanguageModel
from train.generation.decoding import WATCHED, Sampling, folded, generate

TOGETHER = 32  # prompts whose caches are in memory at once
Show = Callable[[int, str], None]  # called with the number of a prompt and its text so far


def unseen(place: int, text: str) -> None:
    """Shows nothing."""


def tell(remark: str) -> None:
    """Prints a remark to stderr, apart from the texts."""
    print(remark, file=sys.stderr)


def continuations(
    language: LanguageModel,
    prompts: Sequence[str],
    tokens: int,
    sampling: Sampling,
    seed: int = 0,
    stop: Sequence[str] = (),
    show: Show = unseen,
    chat: bool = False,
    say: Callable[[str], None] = tell,
) -> list[str]:
    """Continues each prompt, up to a stop string where one comes.

    Args:
      tokens: The most tokens to add.
      show: Called whenever a text grows.
      chat: Whether prompts are turns of a user, to be written by the published model's chat template. The answers are
        then returned without the prompts.
      say: Called at the end with remarks about the texts.
    """
    if not prompts:
        raise UsageError("There is no prompt; give at least one, and --samples of at least 1.")
    if "" in stop:
        raise UsageError("A stop string is empty, and every text contains that; give at least one character.")
    tokeniser, context, end = language.tokeniser, language.context, language.end
    if chat:
        if not language.published:
            raise UsageError("The run started from no published model, so it has no chat template; leave out --chat.")
        turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
        written = [chats.conversation(language.published, turn) for turn in turns]
        prompts, stop = [text for text, _ in written], [*stop, *filter(None, [written[0][1]])]
        end = tokeniser.special.get("end", end)
    encoded = _encoded(prompts, tokeniser, context, chat)
    texts, spent = [], np.zeros(2)
    for first in range(0, len(encoded), TOGETHER):
        batch = encoded[first : first + TOGETHER]
        keys = folded(trained.key_of(seed), range(first, first + len(batch)))
        watch = Texts(tokeniser, batch, stop, lambda place, text, first=first: show(first + place, text), chat)
        generate(language.model, language.params, batch, tokens, sampling, keys, end, watch)
        texts += watch.texts
        spent += watch.spent()
    if spent[1]:
        say(f"{counted(round(spent[1] / spent[0]), 'token')} a second, after the first {WATCHED}.")
    longest = max(map(len, encoded)) + tokens
    if longest > context:
        say(f"{longest} tokens are more than the {context} of training: expect less.")
    return texts


class Texts:
    """The texts of sequences that are being drawn; with `answers`, without their prompts."""

    def __init__(
        self, tokeniser: Tokeniser, prompts: list[Ids], stop: Sequence[str], show: Show = unseen, answers: bool = False
    ):
        texts = [tokeniser.decode(prompt) for prompt in prompts]
        self._starts = [len(text) for text in texts]
        self._shown = self._starts if answers else [0] * len(texts)
        self.texts = [text[first:] for text, first in zip(texts, self._shown, strict=True)]
        self._tokeniser, self._stop, self._show = tokeniser, stop, show
        self._stopped = [False] * len(prompts)
        self._times: list[tuple[float, int]] = []

    def __call__(self, rows: list[np.ndarray]) -> list[bool]:
        """Takes all sequences so far, and tells which of them have met a stop string."""
        self._times.append((time.perf_counter(), sum(map(len, rows))))
        for place, row in enumerate(rows):
            if not self._stopped[place]:
                text = self._tokeniser.decode(row)
                ends = [text.find(string, self._starts[place]) for string in self._stop]
                first = min((end for end in ends if end >= 0), default=None)
                self._stopped[place] = first is not None
                self.texts[place] = text[self._shown[place] : first]
                self._show(place, self.texts[place])
        return self._stopped

    def spent(self) -> np.ndarray:
        """Counts the seconds and tokens since the first call, before which programs are compiled."""
        return np.subtract(self._times[-1], self._times[0])


def _encoded(prompts: Sequence[str], tokeniser: Tokeniser, context: int, marked: bool = False) -> list[np.ndarray]:
    try:
        texts = [prompt.encode().decode() for prompt in prompts]
        encoded = [tokeniser.encode_marked(text) for text in texts] if marked else tokeniser.encode_batch(texts)
    except UnicodeEncodeError as error:  # a shell passes bytes of other encodings on as surrogates
        raise UsageError(f"The prompt {error.object[:30]!r} is no text in UTF-8; type it in that encoding.") from error
    for prompt, ids in zip(prompts, encoded, strict=True):
        if not len(ids):
            raise UsageError(f"The prompt {prompt!r} has no token; give some text to continue.")
        if len(ids) > context:
            long = f"The prompt {prompt[:30]!r}... has {len(ids)} tokens"
            raise UsageError(f"{long}, but the model was trained on {context} at a time; shorten it.")
    return encoded
