"""Hosseini Table 6: a ViT of eight layers on CIFAR-100.

    python -m train.main --config=configs/vit_cifar100.py:efficient --config.data.data_dir=DIR

The argument is an attention mechanism, `dot_product` by default. From the paper: 8 layers, width 256, 8 heads,
256 patches. Ours: class token, MLP 512, dropout, augmentation, AdamW settings, length and split.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """ViT of 8 blocks, width 256, on 256 patches of 2x2 pixels and a class token (ℓ = 257)."""
    config = defaults.image_classification()
    config.model.update(attention=attention, depth=8, width=256, heads=8, mlp=512, pool="class_token")
    config.data.update(
        source="tfds:cifar100",
        classes=100,
        image_shape="32x32x3",
        train_split="train[:90%]",
        validation_split="train[90%:]",
        batch_size=32,
        train_transforms="pad_crop(padding=4)|flip|normalise(mean=(0.507, 0.487, 0.441), std=(0.267, 0.256, 0.276))",
        eval_transforms="normalise(mean=(0.507, 0.487, 0.441), std=(0.267, 0.256, 0.276))",
    )
    config.train.update(length="50 epochs", checkpoint_every="500 steps")
    config.optimizer.warmup = "1000 steps"
    return config
