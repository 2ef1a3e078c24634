r"""Generate text with a trained model: a language model continues prompts, and a captioner describes images.

python -m train.generate --workdir=runs/gpt --prompt="The return statement" --tokens=100 --temperature=0.8 --top-p=0.95
python -m train.generate --workdir=runs/gpt --prompts=questions.txt --stop=$'\n' --min-p=0.05 --repetition-penalty=1.2
python -m train.generate --workdir=runs/captions --image=seven.png
python -m train.generate --published=Qwen/Qwen3-0.6B --prompt="What does the return statement do?" --chat
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
from train.data.sources import lines
from train.data.tokenisers import Tokeniser
from train.decode import captions, chats, trained
from train.decode.decoding import WATCHED, Sampling, folded, generate
from train.decode.language_models import LanguageModel
from train.decode.search import Search
from train.devices import compilation

TOGETHER = 32  # prompts whose caches are in memory at once
Show = Callable[[int, str], None]


def continuations(
    language: LanguageModel,
    prompts: Sequence[str],
    tokens: int,
    sampling: Sampling,
    seed: int = 0,
    stop: Sequence[str] = (),
    show: Show = lambda place, text: None,
    chat: bool = False,
) -> list[str]:
    """Returns each prompt as a model continues it, or its answers alone.

    Args:
      language: The model, of a run or a published one.
      prompts: Texts of at least a token each; 32 at a time are continued together.
      tokens: How many tokens to add.
      sampling: How tokens are chosen.
      seed: The seed of the draws.
      stop: Strings before which a continuation ends.
      show: Is given the place of a prompt and its text so far, whenever there is more of it.
      chat: Whether prompts are turns of a user, written by the chat template of the published model, or of the one that
        the run started from.

    Raises:
      UsageError: a prompt is empty or longer than the context, or there is no chat template.
    """
    if not prompts:
        raise UsageError("There is no prompt; give at least one, and --samples of at least 1.")
    if "" in stop:
        raise UsageError("A stop string is empty; every text contains that, so give at least a character.")
    tokeniser, context, end = language.tokeniser, language.context, language.end
    if chat:
        prompts, ending = _conversations(language, prompts)
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


def _conversations(language: LanguageModel, prompts: Sequence[str]) -> tuple[list[str], str]:
    """Returns the text of a conversation with each prompt, and what ends an answer."""
    if not language.published:
        raise UsageError("The run started from no published model, so it has no chat template; leave out --chat.")
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


def _language(flags: argparse.Namespace) -> LanguageModel:
    if bool(flags.workdir) == bool(flags.published):
        raise UsageError("Which model writes? Give the --workdir of a run, or a --published model.")
    if flags.workdir:
        return LanguageModel.of_run(flags.workdir, flags.step, flags.replica, "generate text")
    if flags.step != "best" or flags.replica:
        raise UsageError("--published is one model, without steps and replicas; leave out --step and --replica.")
    return LanguageModel.of_published(flags.published)


def _sampling(flags: argparse.Namespace, temperature: float) -> Sampling:
    """Returns how tokens are drawn; raises UsageError where none is drawn but draws are restricted."""
    sampling = Sampling(temperature, flags.top_k, flags.top_p, flags.min_p, flags.repetition_penalty)
    if not temperature and (flags.top_k or flags.top_p < 1 or flags.min_p):
        raise UsageError("--top-k, --top-p and --min-p restrict draws, and none is made; add --temperature=1.")
    return sampling


def _captions(flags: argparse.Namespace) -> list[str]:
    if flags.prompt or flags.prompts or flags.chat or flags.published:
        raise UsageError("--image is for runs of captioning, which continue no prompts; give one of both.")
    if flags.stop or flags.samples != 1 or flags.repetition_penalty != 1.0:
        raise UsageError("--image takes no --stop, --samples or --repetition-penalty; leave them out.")
    if not flags.workdir:
        raise UsageError("Which model describes images? Give the --workdir of a run.")
    sampling = _sampling(flags, flags.temperature or 0.0)
    writer = captions.CaptionWriter.load(flags.workdir, flags.step, flags.replica)
    search = Search.configured(writer.config.data)
    beams = 1 if sampling.temperature else search.beams
    length = search.max_length if flags.tokens is None else min(flags.tokens, search.max_length)
    search = dataclasses.replace(search, sampling=sampling, beams=beams, max_length=length)
    return writer.captions(flags.image, search, flags.seed)


@cli.program(
    __doc__,
    cli.flag("--workdir", type=Path, help="the run's folder"),
    cli.flag("--published", metavar="DIR|NAME", help="folder of a published model, or its name on the hub"),
    cli.flag("--prompt", action="append", default=[], help="text to continue; may be given again"),
    cli.flag("--prompts", metavar="FILE", type=Path, help="text file with a prompt a line"),
    cli.flag("--image", action="append", default=[], type=Path, help="image to describe; may be given again"),
    cli.flag("--tokens", type=int, help="number of tokens to add, default 100; the most tokens of a caption"),
    cli.flag(
        "--temperature",
        type=float,
        help="temperature of the draws, default 1; 0 takes the most probable token, as captions do",
    ),
    cli.flag("--top-k", type=int, default=0, help="draw from the N most probable tokens; 0 means all"),
    cli.flag("--top-p", type=float, default=1.0, help="draw from the most probable tokens of this total probability"),
    cli.flag("--min-p", type=float, default=0.0, help="draw only tokens of this share of the highest probability"),
    cli.flag("--repetition-penalty", type=float, default=1.0, help="divides the logits of tokens that have occurred"),
    cli.flag("--stop", action="append", default=[], help="text before which to end; may be given again"),
    cli.flag("--chat", action="store_true", help="prompts are turns of a user, in the model's chat template"),
    cli.flag("--samples", type=int, default=1, help="number of continuations of each prompt"),
    *trained.FLAGS,
    verbatim=True,
)
def main(flags: argparse.Namespace) -> None:
    """Prints the continuations, a single one as it grows; or the captions of images, a line each."""
    compilation.keep_programs()
    if flags.image:
        print("\n".join(_captions(flags)))
        return
    given = flags.prompt + [line for line in (lines.read(flags.prompts) if flags.prompts else ()) if line.strip()]
    prompts = [prompt for prompt in given for _ in range(flags.samples)]
    sampling = _sampling(flags, 1.0 if flags.temperature is None else flags.temperature)
    stream = Stream(flags.stop)
    texts = continuations(
        _language(flags),
        prompts,
        100 if flags.tokens is None else flags.tokens,
        sampling,
        flags.seed,
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
