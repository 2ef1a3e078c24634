"""The data of studies, with models that suit them, as fields of a config; `{data}` is the folder of data sets.

    python -m studies.data --data=data

makes `mnist.npz` and `cifar100.npz`, which studies for a GPU read, of the sets in `data/tfds`.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from train import cli

RARELY = "train.checkpoint_every=0 steps"  # saves only the best and the last checkpoint, and when a run is stopped
OF_MNIST = ("data.train_split=train[:54000]", "data.eval_batch_size=500", RARELY)
BY_EPOCH = ("data.validation_split=train[54000:]", "train.eval_every=1 epoch", "train.log_every=200 steps")
MNIST = ("data.data_dir={data}/tfds", *OF_MNIST)
IMDB = ("data.source=file:{data}/imdb", "data.text_column=review", "data.label_column=label", RARELY)
CIFAR = (
    "data.data_dir={data}/tfds",
    "data.batch_size=64",
    "data.eval_batch_size=500",
    "model.depth=4",
    "model.width=64",
    "model.heads=4",
    "model.mlp=128",
    "model.patch=4",
    RARELY,
)
ANKI = (
    "data.source=file:{data}/spa_eng/spa.txt.xz",
    "data.source_tokeniser=words(size=6000, marks=True)",
    "data.target_tokeniser=words(size=6000, marks=True)",
    "data.source_vocabulary=6000",
    "data.target_vocabulary=6000",
    "model.width=128",
    "model.mlp=512",
    RARELY,
)
PAIRS = (
    "data.source_column=de",
    "data.target_column=en",
    "data.source_tokeniser=bpe(size=6000)",
    "data.target_tokeniser=",
    "data.source_length=48",
    "data.target_length=48",
    "data.buckets=16,24,32",
    "data.batch_size=64",
    "data.eval_batch_size=128",
    "optimizer.schedule=cosine",
    "optimizer.beta2=0.98",
    "train.label_smoothing=0.1",
)
MULTI30K = (
    *PAIRS,
    "data.source=file:{data}/multi30k",
    "data.source_vocabulary=6000",
    "data.target_vocabulary=6000",
    "data.beams=1",
    "optimizer.warmup=200 steps",
    "train.log_every=100 steps",
    RARELY,
)
TRANSLATOR = (
    "model.pretrained=",
    "model.depth=2",
    "model.decoder_depth=2",
    "model.width=128",
    "model.heads=4",
    "model.mlp=512",
)
WINDOWS = ("data.context=256", "data.eval_stride=128", "data.batch_size=8")


def gaussians(own: str, cross: str) -> str:
    """Writes a translator's three attentions as a setting beside the grid."""
    sides = ("attention", "decoder_attention", "cross_attention")
    specs = (f"gaussian({own})", f"gaussian({own})", f"gaussian({cross})")
    return ",".join(f"model.{side}={spec}" for side, spec in zip(sides, specs, strict=True))


@cli.program(__doc__, cli.flag("--data", type=Path, default=Path("data"), help="the folder of data sets"))
def main(flags: argparse.Namespace) -> None:
    """Writes the images and labels of MNIST and CIFAR-100 as arrays, in the order of TFDS."""
    import tensorflow_datasets as tfds  # slow, so not before --help

    for name in ("mnist", "cifar100"):
        rows = tfds.builder(name, data_dir=flags.data / "tfds").as_data_source()
        arrays = {
            f"{split}_{key}": np.stack([row[key] for row in rows[split]])
            for split in ("train", "test")
            for key in ("image", "label")
        }
        np.savez(flags.data / f"{name}.npz", **arrays)
        print(f"Written: {flags.data / name}.npz")


if __name__ == "__main__":
    sys.exit(main())
