"""Studies that exchange layers of trained models, as Zhang does: each seed starts from a model of its own.

`studies.pretraining` trains the models on one half of the data, and fine-tuning uses the other. Both were declared anew
before anything was trained: an earlier form had one model, from whose key the fresh layers of seed 0 were drawn again.
"""

from studies import pretraining
from studies.definitions import WHOLE, Study

COMMIT = "3d1f315aceba00fc84185c3d47456cc286b0cc45"  # trains the surgeries
RATES = "optimizer.learning_rate=5e-4,2e-3,8e-3"
# Besides the mechanisms: a control with fresh linear projections, and MLPs that start equal to the trained ones.
BESIDE = ("argument=dot_product,train.fresh=/(key|value)/", "argument=mlp_kv,train.exchanged=like")
APART = (*WHOLE, "--tune-apart")
TUNED = (
    "train.init_from={start}/{{seed}}",
    "data.train_split=train[50%:]",
    "train.length=0.5 epochs",
    "train.eval_every=0.25 epochs",
    "optimizer.warmup=20 steps",
)

SURGERIES = {
    "surgery_multi30k": Study(
        "configs/translate_iwslt.py",
        ("argument=dot_product,mlp_kv,dual_linear",),
        (
            *pretraining.TRANSLATOR,
            *TUNED,
            "data.source_tokeniser=file:{start}/0/source_tokeniser.json",
            "data.source_length=36",
            "data.target_length=36",
            "data.buckets=",
        ),
        ("bleu", "chrf", "loss"),
        beside=BESIDE,
        seeds=5,
        tune=RATES,
        tuning=APART,
        hours=2.2,
        start="translator",
        kind="another question",
    ),
    "surgery_wikitext2": Study(
        "configs/gpt_wikitext103.py",
        ("argument=dot_product,mlp_kv",),
        (*pretraining.WRITER, *TUNED, "data.tokeniser=file:{start}/0/tokeniser.json"),
        ("loss", "perplexity", "bits_per_byte"),
        beside=BESIDE,
        seeds=5,
        tune=RATES,
        tuning=APART,
        hours=1.6,
        start="writer",
        kind="another question",
    ),
}
