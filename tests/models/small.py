"""Small Transformers for tests: one set of fields, of which a test says what is its own."""

from typing import TypeVar

from models.transformer import TransformerConfig

Config = TypeVar("Config", bound=TransformerConfig)
FIELDS = {
    "attention": "dot_product",
    "implementation": "auto",
    "depth": 2,
    "width": 16,
    "heads": 2,
    "mlp": 32,
    "norm": "pre",
    "norm_epsilon": 1e-5,
    "positions": "learned",
    "activation": "gelu",
    "embedding_dropout": 0.0,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "attention_bias": True,
    "scan": False,
    "remat": "none",
}


def small(config: type[Config], **own: object) -> Config:
    """A config without dropout, with a test's own fields."""
    return config(**FIELDS | own)
