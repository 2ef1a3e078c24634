"""Studies at the papers' sizes, for one GPU: declared in `declarations` before anything was trained.

`hours` are those of a GPU such as an H100, predicted from the operations of a step and the number of seeds in one
program. `python -m studies.replication --only mnist_full --seconds=540` trains a part of a study at a time. Images are
read from arrays, `mnist.npz` and `cifar100.npz`, which need no further package and fit on the device.
"""

from studies import data, pretraining
from studies.definitions import APART, FOUR, OF_HOSSEINI, RATE, Study, surgery

OTHER_HEADS = tuple(
    f"model.attention={mechanism},model.heads={heads}" for mechanism in ("dot_product", "super") for heads in (1, 2)
)

FULL = {
    "imdb_full": Study(
        "configs/classify_imdb.py",
        (FOUR, "model.heads=1,2,4"),
        data.IMDB,
        ("accuracy", "loss"),
        seeds=64,
        tune=f"{RATE}3e-4,1e-3,3e-3",
        tuning=APART,
        hours=0.5,
        kind="full size",
    ),
    "anki_full": Study(
        "configs/translate_anki.py",
        ("argument=dot_product,gaussian,gaussian(sigma=0.3, learn_sigma=True)",),
        (
            "data.source=file:{data}/spa_eng/spa.txt.xz",
            "data.translations=0",
            "train.eval_every=0.5 epochs",
            "train.log_every=500 steps",
            data.RARELY,
        ),
        ("accuracy", "bleu", "loss"),
        beside=(data.gaussians("sigma=0.1", "sigma=0.2236"),),
        seeds=8,
        tune=f"{RATE}3e-4,1e-3,3e-3",
        tuning=APART,
        hours=1.5,
        kind="full size",
    ),
    "mnist_full": Study(
        "configs/vit_mnist.py",
        (OF_HOSSEINI,),
        ("data.source=numpy:{data}/mnist.npz", *data.OF_MNIST, *data.BY_EPOCH, "train.length=20 epochs"),
        ("accuracy", "loss"),
        beside=OTHER_HEADS,
        seeds=20,
        tune=f"{RATE}2.5e-4,7e-4,2e-3,6e-3",
        tuning=(*APART, "--tune-seeds=3"),
        hours=1.5,
        kind="full size",
    ),
    "gpt_full": Study(
        "configs/gpt_wikitext103.py",
        ("model.attention=dot_product,neural(dim=2)|dot_product,neural(dim=16)|dot_product",),
        (
            "data.source=file:{data}/wikitext2",
            "data.tokeniser=wordpiece(size=28996)",
            "optimizer.schedule=cosine",
            "optimizer.warmup=200 steps",
            "train.length=15 epochs",
            "train.eval_every=0.5 epochs",
            data.RARELY,
        ),
        ("loss", "perplexity", "window_perplexity"),
        seeds=5,
        tune=f"{RATE}1e-4,3e-4,1e-3",
        tuning=APART,
        hours=2,
        kind="other data",
    ),
    "cifar100_full": Study(
        "configs/vit_cifar100.py",
        ("model.attention=dot_product,super",),
        (
            "data.source=numpy:{data}/cifar100.npz",
            "data.batch_size=128",
            "data.eval_batch_size=500",
            "train.length=30 epochs",
            "train.eval_every=1 epoch",
            "train.log_every=200 steps",
            data.RARELY,
        ),
        ("accuracy", "top5", "loss"),
        seeds=10,
        tune=f"{RATE}3e-4,1e-3,3e-3",
        tuning=APART,
        hours=3,
        kind="full size",
    ),
    "surgery_anki": surgery(
        "configs/translate_iwslt.py",
        "argument=dot_product,mlp_kv,dual_linear",
        (
            *pretraining.MARIAN,
            "data.source_tokeniser=file:{start}/0/source_tokeniser.json",
            "data.train_split=train[35%:70%]",
            "optimizer.warmup=100 steps",
            "train.length=6 epochs",
            "train.eval_every=1 epoch",
        ),
        ("bleu", "chrf", "loss"),
        tune=f"{RATE}1e-4,3e-4,1e-3",
        hours=1,
        start="marian",
        kind="reduced, other data",
    ),
}
