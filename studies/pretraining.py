"""Train the small models from which studies start that need trained weights, in place of published models.

    python -m studies.pretraining --data=data --runs=runs/replication

The models are a Marian of 2 + 2 blocks on the first half of Multi30k's captions, and a GPT of 4 blocks on the first
half of WikiText-2's articles. Only missing models are trained. The weights stay in `RUNS/pretrained/NAME`, out of git;
the results of each model are kept in `docs/replication/pretrained/NAME.json`. `python -m studies.replication` trains
the model that a study needs in the same way. Another machine rounds differently, so the same training gives another
model there, of the same quality. A study that goes on there compares within each seed, for which all settings start
from one model.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

from analysis import archive
from attention.errors import UsageError, check_known
from studies import data, kept, runs
from train import cli
from train.grids import pool

FOLDER = "pretrained"  # of the runs, and of what is kept


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model, and how it is trained.

    Attributes:
      config: The file.
      fields: `FIELD=VALUE` of its run; `{data}` is the folder of data sets.
      metric: What is said of it.
    """

    config: str
    fields: tuple[str, ...]
    metric: str


# Of width 96, with norms before each layer: an MLP behind a norm can be the linear projection that it replaces.
TRANSLATOR = (
    "data.source=file:{data}/multi30k",
    "data.source_column=de",
    "data.target_column=en",
    "data.target_tokeniser=",
    "data.source_vocabulary=2000",
    "data.target_vocabulary=2000",
    "data.batch_size=32",
    "data.eval_batch_size=128",
    "data.beams=1",
    "data.translations=0",
    "model.pretrained=",
    "model.depth=2",
    "model.decoder_depth=2",
    "model.width=96",
    "model.heads=4",
    "model.mlp=384",
    "model.norm=pre",
    "optimizer.schedule=cosine",
    "optimizer.beta2=0.98",
    "train.label_smoothing=0.1",
    "train.log_every=100 steps",
    data.RARELY,
)
WRITER = (
    "data.source=file:{data}/wikitext2",
    "data.vocabulary=2048",
    "data.validation_split=validation[:50%]",
    "data.context=128",
    "data.eval_stride=64",
    "data.batch_size=16",
    "model.depth=4",
    "model.width=96",
    "model.heads=4",
    "model.mlp=384",
    "model.norm=pre",
    "optimizer.schedule=cosine",
    "train.log_every=100 steps",
    data.RARELY,
)
MODELS = {
    "translator": Pretrained(
        "configs/translate_iwslt.py",
        (
            *TRANSLATOR,
            "data.source_tokeniser=bpe(size=2000)",
            "data.source_length=48",
            "data.target_length=48",
            "data.buckets=24",
            "data.train_split=train[:50%]",
            "optimizer.warmup=200 steps",
            "optimizer.learning_rate=3e-3",
            "train.length=3 epochs",
            "train.eval_every=1 epoch",
            "train.keep=1",
        ),
        "bleu",
    ),
    "writer": Pretrained(
        "configs/gpt_wikitext103.py",
        (
            *WRITER,
            "data.tokeniser=wordpiece(size=2048)",
            "data.train_split=train[:50%]",
            "optimizer.warmup=100 steps",
            "optimizer.learning_rate=3e-3",
            "train.length=2 epochs",
            "train.eval_every=0.5 epochs",
            "train.keep=1",
        ),
        "perplexity",
    ),
}


@cli.program(
    __doc__,
    cli.flag("--data", type=Path, default=Path("data"), help="the folder of data sets"),
    cli.flag("--runs", type=Path, default=Path("runs/replication"), help="where the sweeps are"),
    cli.flag("--only", nargs="*", default=[*MODELS], metavar="NAME", help=f"of {', '.join(MODELS)}"),
    lasting=True,
)
def main(flags: argparse.Namespace) -> None:
    """Trains.

    Raises:
      UsageError: an unknown model, or one whose training failed.
    """
    for name in flags.only:
        check_known("model", name, MODELS)
    for name in flags.only:
        train(name, flags.data, flags.runs)


def folder(name: str, above: Path) -> Path:
    """Finds a model's work directory in the folder of all runs."""
    return above / FOLDER / name


def train(name: str, sets: Path, above: Path) -> None:
    """Trains a model that is not there yet, and keeps what it came to.

    Raises:
      UsageError: it failed, and the same command goes on; or another model is kept than is here.
      KeyboardInterrupt: it was stopped.
    """
    model, workdir = MODELS[name], folder(name, above)
    if not pool.is_finished(workdir):
        flags = [f"--config={model.config}", *(f"--config.{field.format(data=sets)}" for field in model.fields)]
        outcomes = runs.train_all(
            {workdir: flags}, lambda result: f"{result['best']['test'][model.metric]:.2f} {model.metric}"
        )
        if outcomes[workdir] == pool.STOPPED:
            raise KeyboardInterrupt
    if not pool.is_finished(workdir):
        raise UsageError(f"{name} has not been pretrained; see {pool.log_of(workdir)}. The same command goes on.")
    out, there = kept.KEPT / FOLDER / f"{name}.json", archive.find([workdir])
    if out.is_file() and [run.results for run in archive.find([out]).entries] != [run.results for run in there.entries]:
        raise UsageError(
            f"{name} came to other results in {workdir} than in {out}, and all runs of a study start from one model; "
            "copy its folder from where it was trained, or move what is kept of the study and of the model away."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    archive.write(there, out, above)


if __name__ == "__main__":
    sys.exit(main())
