r"""Let a trained model write: a language model continue prompts, or a captioning model say what images show.

python -m train.generate --workdir=runs/gpt --prompt="The return statement" --tokens=100 --temperature=0.8 --top-p=0.95
python -m train.generate --workdir=runs/gpt --prompts=questions.txt --stop=$'\n' --min-p=0.05 --repetition-penalty=1.2
python -m train.generate --workdir=runs/captions --image=seven.png
python -m train.generate --workdir=runs/qwen --prompt="What does the return statement do?" --chat
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from attention.errors import UsageError
from train import cli
from train.data.rows import files
from train.data.tokenisers import Tokeniser
from train.decode import captions, chats, trained
from train.decode.decoding import WATCHED, Sampling, folded, generate
from train.decode.language_models import LanguageModel
from train.decode.search import Search
from train.devices import compilation

TOGETHER = 32  # prompts whose caches are in memory at once
Show = Callable[[int, str], None]


def continuations(
    directory: Path,
    prompts: Sequence[str],
    tokens: int,
    sampling: Sampling,
    seed: int = 0,
    step: str = "best",
    replica: int = 0,
    stop: Sequence[str] = (),
    show: Show = lambda place, text: None,
    chat: bool = False,
) -> list[str]:
    """Returns each prompt as the model of a run continues it, or its answers alone.

    Args:
      directory: The work directory of a run of the task `language_modelling`.
      prompts: Texts of at least a token each; 32 at a time are continued together.
      tokens: How many tokens to add.
      sampling: How tokens are chosen.
      seed: The seed of the draws.
      step: `best` (needs a finished run), `last` or a step that has a checkpoint.
      replica: The number of the replica, where the run has several.
      stop: Strings before which a continuation ends.
      show: Is given the place of a prompt and its text so far, whenever there is more of it.
      chat: Whether prompts are turns of a user, written by the chat template of the published model that the run
        started from.

    Raises:
      UsageError: there is no such run, replica or checkpoint, the run has another task or a tokeniser of another size,
        a prompt is empty or longer than the context, or there is no chat template.
    """
    if not prompts:
        raise UsageError("There is no prompt; give at least one, and --samples of at least 1.")
    if "" in stop:
        raise UsageError("A stop string is empty; every text contains that, so give at least a character.")
    language = LanguageModel.of_run(directory, step, replica, "generate text")
    tokeniser, context, end = language.tokeniser, language.context, language.end
    if chat:
        prompts, ending = _conversations(directory, language, prompts)
        stop, end = [*stop, *filter(None, [ending])], tokeniser.special.get("end", end)
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
        print(f"{spent[1] / spent[0]:.0f} tokens a second, after the first {WATCHED}.", file=sys.stderr)
    longest = max(map(len, encoded)) + tokens
    if longest > context:
        print(f"{longest} tokens are more than the {context} of training: expect less.", file=sys.stderr)
    return texts


class Texts:
    """The texts of sequences while they are drawn, or with `answers` what follows the prompts.

    Called with the sequences, it says which have met a stop string.
    """

    def __init__(
        self, tokeniser: Tokeniser, prompts: list[np.ndarray], stop: Sequence[str], show: Show, answers: bool = False
    ):
        texts = [tokeniser.decode(prompt) for prompt in prompts]
        self._starts = [len(text) for text in texts]
        self._shown = self._starts if answers else [0] * len(texts)
        self.texts = [text[first:] for text, first in zip(texts, self._shown, strict=True)]
        self._tokeniser, self._stop, self._show = tokeniser, stop, show
        self._stopped = [False] * len(prompts)
        self._times: list[tuple[float, int]] = []

    def __call__(self, rows: list[np.ndarray]) -> list[bool]:
        """Takes all sequences; returns for each whether it has met a stop string."""
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
        """Returns seconds and tokens since the first call, which waits for compilation."""
        return np.subtract(self._times[-1], self._times[0])


class Stream:
    """Writes one text as it grows, but for what may change: half a character, or the beginning of a stop string."""

    def __init__(self, stop: Sequence[str] = ()):
        self._written, self._held = 0, max((len(string) - 1 for string in stop), default=0)

    def __call__(self, place: int, text: str) -> None:
        """Writes what is settled of the text so far."""
        settled = text.rstrip("\N{REPLACEMENT CHARACTER}")
        self.finish(settled[: max(len(settled) - self._held, 0)])

    def finish(self, text: str, end: str = "") -> None:
        """Writes the rest of the text."""
        print(text[self._written :], end=end, flush=True)
        self._written = max(self._written, len(text))


def _conversations(directory: Path, language: LanguageModel, prompts: Sequence[str]) -> tuple[list[str], str]:
    """Returns the text of a conversation with each prompt, and what ends an answer."""
    if not language.published:
        raise UsageError(f"{directory} started from no published model, so it has no chat template; leave out --chat.")
    written = [chats.conversation(language.published, [{"role": "user", "content": text}]) for text in prompts]
    return [text for text, _ in written], written[0][1]


def _encoded(prompts: Sequence[str], tokeniser: Tokeniser, context: int, marked: bool = False) -> list[np.ndarray]:
    try:
        texts = [prompt.encode().decode() for prompt in prompts]
        encoded = [tokeniser.encode_marked(text) for text in texts] if marked else tokeniser.encode_batch(texts)
    except UnicodeEncodeError as error:  # a shell passes on bytes of other encodings as surrogates
        raise UsageError(f"The prompt {error.object[:30]!r} is no text in UTF-8; type it in that encoding.") from error
    for prompt, ids in zip(prompts, encoded, strict=True):
        if not len(ids):
            raise UsageError(f"The prompt {prompt!r} has no token; say what is to be continued.")
        if len(ids) > context:
            raise UsageError(
                f"The prompt {prompt[:30]!r}... has {len(ids)} tokens, but the model was trained on {context} at a "
                "time; shorten it."
            )
    return encoded


def _captions(flags: argparse.Namespace) -> list[str]:
    if flags.prompt or flags.prompts or flags.chat:
        raise UsageError("--image is for runs of captioning, which continue no prompts; give one of both.")
    if flags.stop or flags.samples != 1 or flags.repetition_penalty != 1.0:
        raise UsageError("--image takes no --stop, --samples or --repetition-penalty; leave them out.")
    writer = captions.CaptionWriter.load(flags.workdir, flags.step, flags.replica)
    search = Search.configured(writer.config.data)
    if flags.temperature is not None:
        sampling = Sampling(flags.temperature, flags.top_k, flags.top_p, flags.min_p)
        search = dataclasses.replace(search, sampling=sampling, beams=1 if flags.temperature else search.beams)
    return writer.captions(flags.image, search, flags.seed)


@cli.program(
    __doc__,
    cli.flag("--workdir", type=Path, required=True, help="the run's folder"),
    cli.flag("--prompt", action="append", default=[], help="text to continue; may be given again"),
    cli.flag("--prompts", metavar="FILE", type=Path, help="text file with a prompt a line"),
    cli.flag("--image", action="append", default=[], type=Path, help="image to describe; may be given again"),
    cli.flag("--tokens", type=int, default=100, help="number of tokens to add"),
    cli.flag("--temperature", type=float, help="of the draws, 1 without it; 0 takes the most probable token"),
    cli.flag("--top-k", type=int, default=0, help="draw from the N most probable tokens; 0 is all"),
    cli.flag("--top-p", type=float, default=1.0, help="draw from the most probable tokens of this total probability"),
    cli.flag("--min-p", type=float, default=0.0, help="draw only tokens of this share of the highest probability"),
    cli.flag("--repetition-penalty", type=float, default=1.0, help="divides the logits of tokens already there"),
    cli.flag("--stop", action="append", default=[], help="text before which to end; may be given again"),
    cli.flag("--chat", action="store_true", help="prompts are turns of a user, in the published model's template"),
    cli.flag("--samples", type=int, default=1, help="number of continuations of each prompt"),
    cli.flag("--seed", type=int, default=0, help="seed of the draws"),
    cli.flag("--step", default="best", help="best, last or the number of a step with a checkpoint"),
    cli.flag("--replica", type=int, default=0, help="number of a replica"),
)
def main(flags: argparse.Namespace) -> None:
    """Prints the continuations, a single one as it grows; or the captions of images, a line each."""
    compilation.keep_programs()
    if flags.image:
        print("\n".join(_captions(flags)))
        return
    given = flags.prompt + [line for line in (files.lines(flags.prompts) if flags.prompts else ()) if line.strip()]
    prompts = [prompt for prompt in given for _ in range(flags.samples)]
    temperature = 1.0 if flags.temperature is None else flags.temperature
    sampling = Sampling(temperature, flags.top_k, flags.top_p, flags.min_p, flags.repetition_penalty)
    stream = Stream(flags.stop)
    texts = continuations(
        flags.workdir,
        prompts,
        flags.tokens,
        sampling,
        flags.seed,
        flags.step,
        flags.replica,
        flags.stop,
        stream if len(prompts) == 1 else lambda place, text: None,
        flags.chat,
    )
    if len(texts) == 1:
        stream.finish(texts[0], end="\n")
    else:
        print("\n\n".join(texts))


if __name__ == "__main__":
    sys.exit(main())
