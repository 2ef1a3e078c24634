r"""Generate text with a trained model: a language model continues prompts, and a captioner describes images.

python -m train.generate --workdir=runs/gpt --prompt="The return statement" --tokens=100 --temperature=0.8 --top-p=0.95
python -m train.generate --workdir=runs/gpt --prompts=questions.txt --stop=$'\n' --min-p=0.05 --repetition-penalty=1.2
python -m train.generate --workdir=runs/captions --image=seven.png
python -m train.generate --published=Qwen/Qwen3-0.6B --prompt="What does the return statement do?" --chat
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from attention.errors import UsageError
from train import cli
from train.data.sources import lines
from train.generation.sampling import Sampling
from train.generation.search import Search


class Stream:
    """Prints a text as it grows, except what may still change: half a character, or the start of a stop string."""

    def __init__(self, stop: Sequence[str] = ()):
        self._written, self._held = 0, max((len(string) - 1 for string in stop), default=0)

    def __call__(self, place: int, text: str) -> None:
        """Prints the part of the text that is settled."""
        settled = text.rstrip("\N{REPLACEMENT CHARACTER}")
        self.finish(settled[: max(len(settled) - self._held, 0)])

    def finish(self, text: str, end: str = "") -> None:
        """Prints the rest of the text."""
        print(text[self._written :], end=end, flush=True)
        self._written = max(self._written, len(text))


def _sampling(flags: argparse.Namespace, temperature: float) -> Sampling:
    """Reads how tokens are chosen; raises a UsageError where draws are restricted but none is made."""
    sampling = Sampling(temperature, flags.top_k, flags.top_p, flags.min_p, flags.repetition_penalty)
    if not temperature and (flags.top_k or flags.top_p < 1 or flags.min_p):
        raise UsageError("--top-k, --top-p and --min-p restrict draws, and none is made; add --temperature=1.")
    return sampling


def _captions(flags: argparse.Namespace) -> list[str]:
    from train.decode import captions

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
    cli.flag("--prompt", action="append", default=[], help="text to continue; may be repeated"),
    cli.flag("--prompts", metavar="FILE", type=Path, help="text file with a prompt on each line"),
    cli.flag("--image", action="append", default=[], type=Path, help="image to describe; may be repeated"),
    cli.flag("--tokens", type=int, help="the most tokens to add, default 100; for captions the run's"),
    cli.flag("--temperature", type=float, help="default 1, for captions 0, which takes the most probable token"),
    cli.flag("--top-k", type=int, default=0, help="draw from the N most probable tokens; 0 means all"),
    cli.flag("--top-p", type=float, default=1.0, help="draw from the most probable tokens of this total probability"),
    cli.flag("--min-p", type=float, default=0.0, help="draw only tokens with this share of the highest probability"),
    cli.flag("--repetition-penalty", type=float, default=1.0, help="divide the logits of tokens that have occurred"),
    cli.flag("--stop", action="append", default=[], help="text before which to end; may be repeated"),
    cli.flag("--chat", action="store_true", help="write prompts as a user's turns, in the model's chat template"),
    cli.flag("--samples", type=int, default=1, help="number of continuations for each prompt"),
    *cli.WRITING,
    verbatim=True,
)
def main(flags: argparse.Namespace) -> None:
    """Prints continuations, a single one as it grows, or captions, one on each line."""
    from train.decode.continuations import continuations, tell, unseen  # only here, so that --help answers at once
    from train.decode.language_models import LanguageModel
    from train.mesh import compilation

    compilation.keep_programs()
    if flags.image:
        print("\n".join(_captions(flags)))
        return
    given = flags.prompt + [line for line in (lines.read(flags.prompts) if flags.prompts else ()) if line.strip()]
    prompts = [prompt for prompt in given for _ in range(flags.samples)]
    sampling = _sampling(flags, 1.0 if flags.temperature is None else flags.temperature)
    stream = Stream(flags.stop)
    tokens, show = 100 if flags.tokens is None else flags.tokens, stream if len(prompts) == 1 else unseen
    remarks: list[str] = []
    if bool(flags.workdir) == bool(flags.published):
        raise UsageError("Which model writes? Give the --workdir of a run, or a --published model.")
    if flags.published and (flags.step != "best" or flags.replica):
        raise UsageError("--published is one model, without steps and replicas; leave out --step and --replica.")
    if flags.workdir:
        language = LanguageModel.of_run(flags.workdir, flags.step, flags.replica, "generate text")
    else:
        language = LanguageModel.of_published(flags.published)
    texts = continuations(language, prompts, tokens, sampling, flags.seed, flags.stop, show, flags.chat, remarks.append)
    if len(texts) == 1:
        stream.finish(texts[0], end="\n")
    else:
        print("\n\n".join(texts))
    for remark in remarks:
        tell(remark)


if __name__ == "__main__":
    sys.exit(main())
