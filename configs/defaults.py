"""What every config starts from: all fields of a task, with the values most experiments share.

`docs/configs.md` says what each field means.
"""

from typing import Any

from ml_collections import ConfigDict


def image_classification() -> ConfigDict:
    """A Vision Transformer on the digits; experiments override what differs."""
    config = _experiment(
        "image_classification",
        _transformer("vit", patch=2, pool="mean"),
        {
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
            "classes": 10,
            "image_shape": "8x8x1",
        },
    )
    config.optimizer.update(warmup="2 epochs", beta2=0.999, weight_decay=1e-4)
    config.train.update(length="60 epochs", log_every="1 epoch", eval_every="1 epoch", checkpoint_every="10 epochs")
    return config


def convolutional() -> ConfigDict:
    """A residual network of convolutions on the digits; experiments override what differs."""
    config = image_classification()
    config.model = {
        "name": "cnn",
        "attention": "none",
        "stages": 3,
        "depth": 1,
        "width": 16,
        "groups": 4,
        "norm_epsilon": 1e-6,
        "dropout": 0.1,
    }
    return config


def language_modelling() -> ConfigDict:
    """A GPT of bytes on the Python manual; experiments override what differs."""
    model = _transformer("gpt", tied_output=True, scale_embeddings=False)
    model.update(positions="rotary", norm_epsilon=1e-5, attention_dropout=0.0, attention_bias=False)
    return _experiment("language_modelling", model, _text(end_token=False, eval_stride=0))


def masked_language_modelling() -> ConfigDict:
    """RoBERTa's architecture, small, on the Python manual; experiments override what differs."""
    model = _transformer("masked_lm", padding_token=1, token_types=1, pretrained="")
    model.update(norm="post", norm_epsilon=1e-5, embedding_dropout=0.1)
    data = _text(end_token=False, mask_rate=0.15)
    data.update(tokeniser="bpe(size=2048)")  # which pads with token 1, as RoBERTa's does
    return _experiment("masked_language_modelling", model, data)


def text_classification() -> ConfigDict:
    """A small encoder of words, which needs labelled text; experiments say which."""
    model = _transformer("text_classifier", pool="mean", head_hidden=20)
    model.update(norm="post", activation="relu", attention_dropout=0.0)
    data = _text(label_column="label", keep="last", classes=0)
    data.update(tokeniser="words(size=20000)")
    config = _experiment("text_classification", model, data)
    config.optimizer.update(name="adam", schedule="constant", warmup="0 steps", weight_decay=0.0, clip=0.0, beta2=0.999)
    config.train.update(log_every="1 epoch", eval_every="1 epoch", checkpoint_every="1 epoch")
    return config


def translation() -> ConfigDict:
    """Vaswani's encoder-decoder, small, on dates; experiments override what differs."""
    return _translation(
        _transformer(
            "encoder_decoder",
            decoder_attention="dot_product",
            cross_attention="dot_product",
            decoder_depth=2,
            shared_embeddings=True,
            scale_embeddings=True,
            tied_output=True,
            output_bias=False,
            pretrained="",
            depth=2,
            norm="post",
            positions="sinusoidal",
            activation="relu",
            embedding_dropout=0.1,
        )
    )


def recurrent_translation() -> ConfigDict:
    """The recurrent encoder-decoder of Wikipedia's article on dates; experiments override what differs."""
    model = {
        "name": "seq2seq",
        "attention": "additive",
        "cell": "gru",
        "embedding": 300,
        "hidden": 500,
        "dropout": 0.1,
        "teacher_forcing": 1.0,
    }
    return _translation(model)


def _translation(model: dict[str, Any]) -> ConfigDict:
    data = {
        "source": "dates()",
        "revision": "",
        "streaming": False,
        "data_dir": "",
        "cache_dir": "",
        "source_column": "source",
        "target_column": "target",
        "train_split": "train",
        "validation_split": "validation",
        "test_split": "test",
        "source_tokeniser": "bytes",
        "target_tokeniser": "",
        "source_vocabulary": 0,
        "target_vocabulary": 0,
        "source_length": 64,
        "target_length": 64,
        "buckets": "",
        "batch_size": 64,
        "eval_batch_size": 128,
        "workers": 0,
        "translations": 0,
        "by_length": "",
        "beams": 1,
        "length_penalty": 1.0,
    }
    config = _experiment("translation", model, data)
    config.optimizer.update(weight_decay=0.0, beta2=0.98)
    return config


def _experiment(task: str, model: dict[str, Any], data: dict[str, Any]) -> ConfigDict:
    optimizer = {
        "name": "adamw",
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "warmup": "100 steps",
        "end": 0.0,
        "weight_decay": 0.1,
        "clip": 1.0,
        "beta1": 0.9,
        "beta2": 0.99,
        "epsilon": 1e-8,
    }
    train = {
        "length": "1000 steps",
        "log_every": "100 steps",
        "eval_every": "250 steps",
        "checkpoint_every": "250 steps",
        "keep": 2,
        "replicas": 1,
        "accumulate": 1,
        "loss_chunk": 0,
        "precision": "float32",
        "ema": 0.0,
        "label_smoothing": 0.0,
    }
    mesh = {"data": -1, "fsdp": 1, "tensor": 1}
    parts = {"task": task, "seed": 0, "model": model, "data": data, "optimizer": optimizer, "train": train}
    return ConfigDict(parts | {"mesh": mesh})


def _transformer(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "attention": "dot_product",
        "implementation": "auto",
        "depth": 4,
        "width": 64,
        "heads": 4,
        "mlp": 128,
        "norm": "pre",
        "norm_epsilon": 1e-6,
        "positions": "learned",
        "activation": "gelu",
        "embedding_dropout": 0.0,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "attention_bias": True,
        "scan": False,
        "remat": "none",
    } | more


def _text(**more: Any) -> dict[str, Any]:
    return {
        "source": "pydoc",
        "revision": "",
        "streaming": False,
        "data_dir": "",
        "cache_dir": "",
        "text_column": "text",
        "train_split": "train",
        "validation_split": "validation",
        "test_split": "test",
        "tokeniser": "bytes",
        "context": 128,
        "vocabulary": 0,
        "batch_size": 16,
        "eval_batch_size": 16,
        "workers": 0,
        **more,
    }
