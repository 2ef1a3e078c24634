"""What every image classification config starts from: all fields, with the values most of them share."""

from ml_collections import ConfigDict


def image_classification() -> ConfigDict:
    """A Vision Transformer on the digits; experiments change what differs.

    `train.config`, `train.optimizer`, `train.data.images` and `models.vit` say what each field means.
    """
    return ConfigDict(
        {
            "task": "image_classification",
            "seed": 0,
            "model": {
                "name": "vit",
                "attention": "dot_product",
                "implementation": "auto",
                "depth": 4,
                "width": 64,
                "heads": 4,
                "mlp": 128,
                "patch": 2,
                "pool": "mean",
                "norm": "pre",
                "norm_epsilon": 1e-6,
                "positions": "learned",
                "activation": "gelu",
                "embedding_dropout": 0.0,
                "dropout": 0.1,
                "attention_dropout": 0.1,
                "attention_bias": True,
                "remat": "none",
            },
            "data": {
                "source": "digits",
                "data_dir": "",
                "train_split": "train",
                "validation_split": "validation",
                "test_split": "test",
                "batch_size": 64,
                "eval_batch_size": 256,
                "image_key": "image",
                "label_key": "label",
                "train_transforms": "",
                "eval_transforms": "",
                "mixup": 0.0,
                "workers": 0,
            },
            "optimizer": {
                "name": "adamw",
                "learning_rate": 1e-3,
                "schedule": "cosine",
                "warmup": "2 epochs",
                "end": 0.0,
                "weight_decay": 1e-4,
                "clip": 1.0,
                "beta1": 0.9,
                "beta2": 0.999,
                "epsilon": 1e-8,
            },
            "train": {
                "length": "60 epochs",
                "log_every": "1 epoch",
                "eval_every": "1 epoch",
                "checkpoint_every": "10 epochs",
                "keep": 2,
                "accumulate": 1,
                "precision": "float32",
                "ema": 0.0,
                "label_smoothing": 0.0,
            },
            "mesh": {"data": -1, "fsdp": 1, "tensor": 1},
        }
    )
