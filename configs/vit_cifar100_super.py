"""`vit_cifar100` with Super Attention."""

from configs.vit_cifar100 import get_config as _get_config


def get_config():
    """See `configs.vit_cifar100`."""
    return _get_config("super")
