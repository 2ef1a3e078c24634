"""Studies that were declared before anything was trained: sizes and lengths are here, questions in a JSON file each.

The studies run from a clone at `COMMIT`, and the surgeries, which exchange layers of trained models as Zhang does, at
`OF_SURGERIES`, whatever the code becomes. Those of `studies.full` are for a GPU, and run from any commit that has them.
Sizes were chosen to fit about 44 core-hours, judging by earlier studies. The most telling studies come first; the
surgeries, four hours more, come last. Every run is kept when it ends, and the first seeds of all settings are trained
before the second ones. Learning rates are tuned at the whole length with one seed, and the trial of the chosen rate is
that seed's run; surgeries, and studies for a GPU, choose rates with seeds that are not tested. Each seed of a surgery
starts from a model of its own, which `studies.pretraining` trains on one part of the data, and fine-tuning uses
another. In an earlier form all had one model, from whose key the fresh layers of seed 0 were drawn again; when its runs
were in, the surgeries were declared anew, and nothing of it is kept.
"""

import dataclasses

from analysis.metrics import METRICS
from analysis.tables import plain_markdown
from studies import data, pretraining
from studies.definitions import DECLARATIONS, OF_HOSSEINI, RATE, STUDIES, WHOLE, Study, surgery
from studies.full import FULL
from train.grids import declaration
from train.loading import load

COMMIT = "59d67b8a85c04412d34ab00121c1293e8fba843f"  # trains all but gpt_tuned, the surgeries and those for a GPU
OF_SURGERIES = "3d1f315aceba00fc84185c3d47456cc286b0cc45"  # trains the surgeries
GPT = (
    "data.context=128",
    "data.eval_stride=64",
    "data.batch_size=16",
    "data.source=file:{data}/wikitext2",
    "data.tokeniser=wordpiece(size=2048)",
    "data.vocabulary=2048",
    "data.validation_split=validation[:50%]",
    "model.depth=4",
    "model.width=128",
    "model.heads=4",
    "model.mlp=256",
    "optimizer.schedule=cosine",
    "optimizer.warmup=200 steps",
    "train.length=3 epochs",
    "train.eval_every=0.25 epochs",
    "train.log_every=200 steps",
    data.RARELY,
)
MNIST = (*data.MNIST, *data.BY_EPOCH, "train.length=10 epochs")
ANKI = (
    *data.ANKI,
    "train.length=4 epochs",
    "train.eval_every=0.5 epochs",
    "train.log_every=500 steps",
    "data.translations=0",
)
PAIRS = (*data.MULTI30K, "data.translations=0", "train.eval_every=0.25 epochs")
MULTI30K = (*PAIRS, *data.TRANSLATOR, "train.length=3 epochs")
RECURRENT = (
    *PAIRS,
    "data.validation_split=validation",
    "data.test_split=test",
    "data.by_length=10,14,18",
    "model.embedding=128",
    "model.hidden=256",
    "train.length=4 epochs",
)
CIFAR = (
    *data.CIFAR,
    "data.validation_split=train[90%:]",
    "train.length=8 epochs",
    "train.eval_every=1 epoch",
    "train.log_every=200 steps",
)
IN_A_LAYER = (
    "dot_product",
    "neural(dim=2)|dot_product",
    "neural(dim=16)|dot_product",
    "dot_product(dim=26)|dot_product",
    "neural(dim=2)",
    "dot_product|dot_product|dot_product|neural(dim=2)",
    "neural(dim=None)|dot_product",
)


TUNED = {
    "gpt_tuned": Study(
        "configs/gpt_wikitext103.py",
        (f"model.attention={','.join(IN_A_LAYER)}",),
        GPT,
        ("loss", "perplexity", "bits_per_byte"),
        seeds=4,
        tune=f"{RATE}3e-3,9e-3",
        tuning=(*WHOLE, "--tune-beyond=0"),
        amended="after four and after nine of the first 24 runs",
        hours=11.5,
        kind="reduced, other data",
    ),
    "mnist_tuned": Study(
        "configs/vit_mnist.py",
        (OF_HOSSEINI,),
        MNIST,
        ("accuracy", "loss"),
        beside=("model.attention=dot_product,model.heads=1", "model.attention=super,model.heads=1"),
        seeds=5,
        tune=f"{RATE}7e-4,2e-3,6e-3",
        tuning=WHOLE,
        hours=18,
        kind="full size",
    ),
    "anki_tuned": Study(
        "configs/translate_anki.py",
        ("argument=dot_product,gaussian,gaussian(sigma=0.3),gaussian(sigma=0.3, learn_sigma=True)",),
        ANKI,
        ("accuracy", "bleu", "loss"),
        # The paper's numbers taken as σ², and its equation 3 as printed.
        beside=(
            data.gaussians("sigma=0.1", "sigma=0.2236"),
            data.gaussians("sigma=0.01, squared=False", "sigma=0.05, squared=False"),
        ),
        seeds=4,
        tune=f"{RATE}3e-4,1e-3,3e-3",
        tuning=WHOLE,
        hours=3.6,
    ),
    "multi30k_tuned": Study(
        "configs/translate_iwslt.py",
        ("argument=dot_product,mlp_kv,dual_linear,mlp_marian",),
        MULTI30K,
        ("bleu", "chrf", "loss"),
        beside=("argument=dot_product,model.mlp=1095",),  # has the parameters of mlp_kv, within 0.02 %
        seeds=4,
        tune=f"{RATE}7e-4,2e-3,6e-3",
        tuning=WHOLE,
        hours=5.4,
        kind="another question",
    ),
    "cifar100_tuned": Study(
        "configs/vit_cifar100.py",
        ("model.attention=dot_product,super",),
        CIFAR,
        ("accuracy", "top5", "loss"),
        seeds=4,
        tune=f"{RATE}1e-3,3e-3,9e-3",
        tuning=WHOLE,
        hours=3,
    ),
    "recurrent_tuned": Study(
        "configs/seq2seq_dates.py",
        ("argument=additive,fixed",),
        RECURRENT,
        ("bleu_to_48", "bleu_to_10", "bleu", "loss"),
        seeds=4,
        tune=f"{RATE}1e-3,3e-3,9e-3",
        tuning=WHOLE,
        hours=2.4,
    ),
}
ANEW = "when the runs of an earlier form with one model were in, before any of these"
FINE_TUNED = (
    "data.train_split=train[50%:]",
    "train.length=0.5 epochs",
    "train.eval_every=0.25 epochs",
    "optimizer.warmup=20 steps",
)
SURGERIES = {
    "surgery_multi30k": surgery(
        "configs/translate_iwslt.py",
        "argument=dot_product,mlp_kv,dual_linear",
        (
            *pretraining.TRANSLATOR,
            *FINE_TUNED,
            "data.source_tokeniser=file:{start}/0/source_tokeniser.json",
            "data.source_length=36",
            "data.target_length=36",
            "data.buckets=",
        ),
        ("bleu", "chrf", "loss"),
        tune=f"{RATE}5e-4,2e-3,8e-3",
        hours=2.2,
        start="translator",
        amended=ANEW,
        kind="another question",
    ),
    "surgery_wikitext2": surgery(
        "configs/gpt_wikitext103.py",
        "argument=dot_product,mlp_kv",
        (*pretraining.WRITER, *FINE_TUNED, "data.tokeniser=file:{start}/0/tokeniser.json"),
        ("loss", "perplexity", "bits_per_byte"),
        tune=f"{RATE}5e-4,2e-3,8e-3",
        hours=1.6,
        start="writer",
        amended=ANEW,
        kind="another question",
    ),
}
DECLARED = {
    name: dataclasses.replace(study, fields=(*study.fields, "train.keep=1"), declared=name)
    for name, study in (TUNED | SURGERIES | FULL).items()
}
ALL = {**DECLARED, **STUDIES}


def table(full: bool) -> str:
    """Writes the costs of each study and the difference that it can find, for those of `studies.full` or the others."""
    hours = "GPU-hours" if full else "core-hours"
    titles = ("study", "settings × seeds", "length", hours, "metric", "equal within", "finds")
    return plain_markdown(titles, [_row(name, study) for name, study in DECLARED.items() if (name in FULL) == full])


def _row(name: str, study: Study) -> tuple[str, ...]:
    made = declaration.read(DECLARATIONS / f"{study.declared}.json")
    metric = METRICS[made.metric]
    size = f"{study.runs // study.seeds} × {study.seeds}"
    least = (metric.text(made.margin), metric.text(made.detects))
    return (f"[{name}](studies/{name}.md)", size, _length(study), f"{study.hours:g}", metric.title, *least)


def _length(study: Study) -> str:
    said = [text.partition("=")[2] for text in study.fields if text.startswith("train.length=")]
    return said[0] if said else load(study.config).train.length
