"""A small ViT on scanned digits; offline, a minute.

    python -m train.main --config=configs/vit_digits.py:efficient

The digits are scikit-learn's scans of 8x8 pixels, in the package. The argument is an attention mechanism, `super`
by default. All settings are ours.
"""

from configs import defaults


def get_config(attention: str = "super"):
    """ViT of 4 blocks, width 64, on 16 patches of 2x2 pixels."""
    config = defaults.image_classification()
    config.model.update(attention=attention, mlp=256, embedding_dropout=0.1, attention_dropout=0.0)
    config.data.update(batch_size=32, train_transforms="pad_crop(padding=1)")
    config.optimizer.update(learning_rate=3e-3, weight_decay=0.05)
    config.train.update(length="150 epochs", log_every="5 epochs", eval_every="5 epochs", ema=0.99, label_smoothing=0.1)
    return config
