"""Train the small models from which some studies start, in place of published models.

    python -m studies.pretraining --data=data --runs=runs/replication --only translator writer

The models are Marians of 2 + 2 blocks on the first half of Multi30k's captions, GPTs of 4 blocks on the first half of
WikiText-2's articles, and, for a GPU, Marians of the paper's 6 + 6 blocks on the first 35 % of Anki's sentences. There
is one for each seed of a study, so that intervals are over models, and one for the trials that choose learning rates.
Only missing models are trained. The weights stay in `RUNS/pretrained/NAME/SEED`, outside git; the results are kept in
`docs/replication/pretrained/NAME.json`. `python -m studies.replication` trains the models that a study needs in the
same way. Another machine rounds differently, so there the same training gives other models, of the same quality.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

from analysis import archive
from attention.errors import UsageError, check_known
from studies import data, kept, runs
from train import cli
from train.grids import pool, tuning

FOLDER = "pretrained"  # name of the runs' folder, and of the archives'
SEEDS = (*range(5), tuning.APART)  # of the runs that start from a model; the last is that of the trials
OFFSET = 1000  # added for a model's own seed, so that its initial values are not drawn again as fresh ones


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A model, and how it is trained.

    Attributes:
      config: The config file.
      fields: `FIELD=VALUE` of its run; `{data}` is the folder of data sets.
      metric: The metric that is printed.
    """

    config: str
    fields: tuple[str, ...]
    metric: str


# Layers begin with a norm: an MLP after a norm can equal the linear projection that it replaces.
WITH_NORMS = ("model.norm=pre", "optimizer.schedule=cosine", "train.log_every=100 steps", data.RARELY)
FROM_SCRATCH = (
    *WITH_NORMS,
    "data.target_tokeniser=",
    "data.beams=1",
    "data.translations=0",
    "model.pretrained=",
    "optimizer.beta2=0.98",
    "train.label_smoothing=0.1",
)
TRANSLATOR = (
    *FROM_SCRATCH,
    "data.source=file:{data}/multi30k",
    "data.source_column=de",
    "data.target_column=en",
    "data.source_vocabulary=2000",
    "data.target_vocabulary=2000",
    "data.batch_size=32",
    "data.eval_batch_size=128",
    "model.depth=2",
    "model.decoder_depth=2",
    "model.width=96",
    "model.heads=4",
    "model.mlp=384",
)
WRITER = (
    *WITH_NORMS,
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
)
MARIAN = (
    *FROM_SCRATCH,
    "data.source=file:{data}/spa_eng/spa.txt.xz",
    "data.source_column=2",
    "data.target_column=1",
    "data.validation_split=train[70%:72%]",
    "data.test_split=train[85%:90%]",
    "data.source_vocabulary=8000",
    "data.target_vocabulary=8000",
    "data.source_length=32",
    "data.target_length=32",
    "data.buckets=",
    "data.batch_size=128",
    "data.eval_batch_size=512",
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
    "marian": Pretrained(
        "configs/translate_iwslt.py",
        (
            *MARIAN,
            "data.source_tokeniser=bpe(size=8000)",
            "data.train_split=train[:35%]",
            "optimizer.warmup=500 steps",
            "optimizer.learning_rate=5e-4",
            "train.length=20 epochs",
            "train.eval_every=2 epochs",
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
    cli.flag("--runs", type=Path, default=Path("runs/replication"), help="folder of the sweeps"),
    cli.flag("--only", nargs="*", default=[*MODELS], metavar="NAME", help=f"the models: {', '.join(MODELS)}"),
    lasting=True,
)
def main(flags: argparse.Namespace) -> None:
    """Trains the models.

    Raises:
      UsageError: A model is unknown, or its training failed.
    """
    for name in flags.only:
        check_known("model", name, MODELS)
    for name in flags.only:
        train(name, flags.data, flags.runs)


def folder(name: str, above: Path) -> Path:
    """Names the folder of a model's work directories, one for each seed, in the folder of all runs."""
    return above / FOLDER / name


def train(name: str, sets: Path, above: Path) -> None:
    """Trains the models of a name that do not exist yet, and keeps their results.

    Raises:
      UsageError: A training failed, or the kept results are those of other models.
      KeyboardInterrupt: The training was stopped.
    """
    model, places = MODELS[name], {seed: folder(name, above) / str(seed) for seed in SEEDS}
    flags = [f"--config={model.config}", *(f"--config.{field.format(data=sets)}" for field in model.fields)]
    todo = {
        place: [*flags, f"--config.seed={OFFSET + seed}"]
        for seed, place in places.items()
        if not pool.is_finished(place)
    }
    outcomes = runs.train_all(todo, lambda result: f"{result['best']['test'][model.metric]:.2f} {model.metric}")
    if pool.STOPPED in outcomes.values():
        raise KeyboardInterrupt
    for place in places.values():
        if not pool.is_finished(place):
            raise UsageError(f"{name} has not been pretrained; see {pool.log_of(place)}. The same command continues.")
    out, there = kept.KEPT / FOLDER / f"{name}.json", archive.find([*places.values()])
    if out.is_file() and [run.results for run in archive.find([out]).entries] != [run.results for run in there.entries]:
        raise UsageError(
            f"{name} has other results in {folder(name, above)} than in {out}, but all settings of a study start from "
            "the same models; copy that folder from where they were trained, or move the archives of the study and of "
            "the models away."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    archive.write(there, out, above)


if __name__ == "__main__":
    sys.exit(main())
