"""Hosseini Table 5: a ViT of two layers on MNIST.

    python -m train.main --config=configs/vit_mnist.py:super --config.data.data_dir=DIR

The argument is an attention mechanism, `dot_product` by default. From the paper: 2 layers, width 128, 4 heads,
64 tokens. Ours: zero-padding to 32x32, mean pooling, MLP 256, Adam settings, length and split.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """ViT of 2 blocks, width 128, on 64 patches of 4x4 pixels."""
    config = defaults.image_classification()
    config.model.update(attention=attention, depth=2, width=128, heads=4, mlp=256, patch=4)
    config.data.update(
        source="tfds:mnist",
        classes=10,
        image_shape="28x28x1",
        train_split="train[:90%]",
        validation_split="train[90%:]",
        batch_size=128,
        train_transforms="pad(to=32)",
        eval_transforms="pad(to=32)",
    )
    config.train.update(length="10 epochs", checkpoint_every="1 epoch")
    config.optimizer.warmup = "500 steps"
    return config
