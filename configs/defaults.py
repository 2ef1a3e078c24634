"""The configs that each task's experiments start from.

`docs/configs.md` and `docs/fields/` say what each field means.
"""

import dataclasses
from collections.abc import Mapping

from ml_collections import ConfigDict

from attention.errors import check_known
from train.config.schema import Config
from train.data.trials.sizes import TrialSize
from train.tasks import TASKS


def image_classification(model: str = "vit") -> ConfigDict:
    """A Vision Transformer, or a residual network of convolutions, on the digits."""
    config = _defaults("image_classification", model)
    config.optimizer.update(warmup="2 epochs", beta2=0.999, weight_decay=1e-4)
    config.train.update(length="60 epochs", log_every="1 epoch", eval_every="1 epoch", checkpoint_every="10 epochs")
    return config


def language_modelling() -> ConfigDict:
    """A GPT of bytes on Python's manual."""
    return _defaults("language_modelling", "gpt")


def masked_language_modelling() -> ConfigDict:
    """A small RoBERTa on Python's manual."""
    return _defaults("masked_language_modelling", "masked_lm")


def text_classification() -> ConfigDict:
    """A small encoder of words; experiments add the labelled texts."""
    config = _defaults("text_classification", "text_classifier")
    config.optimizer.update(name="adam", schedule="constant", warmup="0 steps", weight_decay=0.0, clip=0.0, beta2=0.999)
    config.train.update(log_every="1 epoch", eval_every="1 epoch", checkpoint_every="1 epoch")
    return config


def translation(attention: str, model: str = "encoder_decoder") -> ConfigDict:
    """Vaswani's encoder-decoder, small, or the recurrent one of Wikipedia's article, with one mechanism, on dates."""
    config = _with_attention("translation", model, attention)
    config.optimizer.update(weight_decay=0.0, beta2=0.98)
    return config


def captioning(attention: str) -> ConfigDict:
    """A small encoder of images and decoder of text, with one mechanism, on digits."""
    return _with_attention("captioning", "captioner", attention)


def trial(name: str, sizes: Mapping[str, TrialSize]) -> ConfigDict:
    """A trial in the frame of all trials."""
    check_known("trial", name, sizes)
    config = _defaults("trial", "frame")
    config.data.update(source=sizes[name].source, train_examples=sizes[name].examples)
    config.data.update(batch_size=32, eval_examples=500)
    config.model.update({"width": 32} | sizes[name].model)
    config.optimizer.update(learning_rate=3e-3, warmup="100 steps", weight_decay=0.0, beta2=0.95)
    config.train.update(length="1500 steps", log_every="250 steps", eval_every="250 steps", checkpoint_every="0 steps")
    return config


def _with_attention(task: str, model: str, attention: str) -> ConfigDict:
    config = _defaults(task, model)
    fields = ("attention", "decoder_attention", "cross_attention")
    config.model.update({name: attention for name in fields if name in config.model})
    return config


def _defaults(task: str, model: str) -> ConfigDict:
    kind = TASKS[task]
    return ConfigDict(dataclasses.asdict(Config(task, model=kind.model_types[model](), data=kind.data_type())))
