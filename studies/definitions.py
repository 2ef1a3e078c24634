"""The studies of docs/studies.md: what each trains, in the terms of `train.sweep`."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

from studies import data, pretraining
from train.grids import grid

DECLARATIONS = Path(__file__).parent / "declarations"

FOUR = "model.attention=dot_product,optimised,efficient,super"
OF_HOSSEINI = f"{FOUR},dot_product(align=True),positional"
RATE = "optimizer.learning_rate="
WHOLE = ("--tune-length=1",)
APART = (*WHOLE, "--tune-apart")  # rates are chosen with seeds that are not tested


@dataclasses.dataclass(frozen=True)
class Study:
    """A sweep, and facts about it.

    Attributes:
      config: The config file of all runs, perhaps with an argument.
      over: The grid: `FIELD=VALUE,VALUE` of `train.sweep --over`.
      fields: `FIELD=VALUE` for all runs; `{data}` is the folder of data sets, `{start}` that of the pretrained model.
      metrics: The compared metrics; the picture shows the first.
      seeds: The number of seeds per setting.
      equal: The quantity to match with the baseline; '' for none.
      beside: Settings beside the grid: `FIELD=VALUE,FIELD=VALUE` of `train.sweep --also`.
      tune: `FIELD=VALUE,VALUE` of `train.sweep --tune`; '' for none.
      tuning: Further flags for tuning.
      declared: Name of the declaration in `studies/declarations`, if it was written before the runs.
      amended: When the declaration was changed.
      hours: Hours of one core, or of one GPU in `studies.full`, as estimated before anything was trained.
      kind: How close the study is to the paper: one of `studies.ledger.CLASSES`.
      start: The model of `studies.pretraining` from which all runs start; '' for none.
    """

    config: str
    over: tuple[str, ...]
    fields: tuple[str, ...]
    metrics: tuple[str, ...]
    seeds: int = 3
    equal: str = ""
    beside: tuple[str, ...] = ()
    tune: str = ""
    tuning: tuple[str, ...] = ()
    declared: str = ""
    amended: str = ""
    hours: float = 0
    kind: str = "reduced"
    start: str = ""

    @property
    def runs(self) -> int:
        """The number of runs, one for each setting and seed."""
        values = [grid.split(text.partition("=")[2]) for text in self.over]
        return (math.prod(map(len, values)) + len(self.beside)) * self.seeds

    @property
    def chosen(self) -> str:
        """When the comparisons were chosen, in words."""
        if not self.declared:
            return "**chosen afterwards**, when the runs were in"
        return "declared before anything was trained" + f", and amended {self.amended}" * bool(self.amended)

    def flags(self, sets: Path, folder: Path) -> list[str]:
        """Writes the flags of `train.sweep`."""
        start = pretraining.folder(self.start, folder.parent)
        fields = [f"--config.{field.format(data=sets, start=start)}" for field in self.fields]
        over = [part for text in self.over for part in ("--over", text)]
        more = [f"--also={text}" for text in self.beside]
        more += [f"--equal={self.equal}"] if self.equal else []
        more += [f"--tune={self.tune}", *self.tuning] if self.tune else []
        more += [f"--declare={os.path.relpath(DECLARATIONS / f'{self.declared}.json')}"] if self.declared else []
        where = f"--workdir={folder}"
        return [f"--config={self.config}", *fields, *over, f"--seeds={self.seeds}", *more, where]


def surgery(config: str, over: str, fields: tuple[str, ...], metrics: tuple[str, ...], **more: Any) -> Study:
    """Defines a study that fine-tunes, with exchanged layers, a trained model of its own for each seed.

    Besides the mechanisms it has a control with fresh linear projections, and MLPs that start equal to the trained
    ones.
    """
    beside = ("argument=dot_product,train.fresh=/(key|value)/", "argument=mlp_kv,train.exchanged=like")
    start = "train.init_from={start}/{{seed}}"
    return Study(config, (over,), (*fields, start), metrics, seeds=5, beside=beside, tuning=APART, **more)


MNIST = (
    *data.MNIST,
    "data.validation_split=train[54000:57000]",
    "optimizer.warmup=50 steps",
    "train.length=300 steps",
    "train.eval_every=150 steps",
    "train.log_every=50 steps",
)
CIFAR = (
    *data.CIFAR,
    "data.validation_split=train[90%:95%]",
    "optimizer.warmup=200 steps",
    "train.length=1000 steps",
    "train.eval_every=500 steps",
    "train.log_every=100 steps",
)
WIKITEXT = (
    "data.source=file:{data}/wikitext2",
    "data.tokeniser=wordpiece(size=8192)",
    "data.vocabulary=8192",
    "model.depth=2",
    "model.width=128",
    "model.heads=4",
    "model.mlp=256",
    "train.log_every=50 steps",
    "train.eval_every=250 steps",
    data.RARELY,
)
ANKI = (*data.ANKI, "train.log_every=200 steps", "train.eval_every=0.5 epochs")
MULTI30K = (
    *data.MULTI30K,
    *data.TRANSLATOR,
    "data.translations=1000",
    "optimizer.learning_rate=2e-3",
    "train.length=2 epochs",
    "train.eval_every=1 epoch",
)
GPT = (*WIKITEXT, *data.WINDOWS, "train.length=500 steps")
MLM = (
    *WIKITEXT,
    "data.context=128",
    "data.batch_size=16",
    "model.pretrained=",
    "model.padding_token=0",
    "optimizer.learning_rate=1e-3",
    "optimizer.warmup=200 steps",
    "train.length=1000 steps",
)
NEURAL = "model.attention=dot_product,neural(dim=2)|dot_product,neural(dim=16)|dot_product,neural(dim=None)|dot_product"
STUDIES = {
    "mnist": Study("configs/vit_mnist.py", (FOUR, "model.heads=1,2,4"), MNIST, ("accuracy", "loss")),
    "imdb": Study(
        "configs/classify_imdb.py",
        (FOUR, "model.heads=1,2,4"),
        data.IMDB,
        ("accuracy", "loss"),
        seeds=5,
        kind="full size",
    ),
    "matched": Study(
        "configs/vit_mnist.py",
        (FOUR,),
        MNIST,
        ("accuracy", "loss"),
        equal="parameters",
        kind="another question",
    ),
    "cifar100": Study("configs/vit_cifar100.py", (FOUR,), CIFAR, ("accuracy", "top5")),
    "cifar100_neural": Study(
        "configs/vit_cifar100.py",
        ("model.attention=dot_product,neural(dim=2)|dot_product",),
        CIFAR,
        ("accuracy", "top5"),
    ),
    "wikitext2_gpt": Study(
        "configs/gpt_wikitext103.py",
        (NEURAL,),
        GPT,
        ("perplexity", "window_perplexity"),
        kind="reduced, other data",
    ),
    "wikitext2_mlm": Study(
        "configs/mlm_wikitext103.py",
        ("model.attention=dot_product,mlp_roberta",),
        MLM,
        ("perplexity", "accuracy"),
        kind="another question",
    ),
    "anki_gaussian": Study(
        "configs/translate_anki.py",
        ("argument=dot_product,gaussian",),
        (*ANKI, "train.length=3 epochs"),
        ("accuracy", "bleu", "accuracy_with_padding", "loss"),
    ),
    "anki_heads": Study(
        "configs/translate_anki.py",
        ("argument=dot_product,optimised,efficient", "model.heads=1,2,4"),
        (*ANKI, "train.length=2 epochs"),
        ("accuracy", "bleu", "loss"),
        kind="reduced, other data",
    ),
    "multi30k": Study(
        "configs/translate_iwslt.py",
        ("argument=dot_product,mlp_marian,mlp_kv,dual_linear",),
        MULTI30K,
        ("bleu", "chrf", "loss"),
        kind="another question",
    ),
}
