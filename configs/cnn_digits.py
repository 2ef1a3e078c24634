"""A small CNN with channel attention on digits; offline.

    python -m train.main --config=configs/cnn_digits.py:"cbam(ratio=4)"

The digits are scikit-learn's scans of 8x8 pixels, in the package; the network is residual. The argument is `none`,
`squeeze_excitation`, `spatial` or `cbam`, with options; `squeeze_excitation(ratio=4)` by default. All settings are
ours.
"""

from configs import defaults


def get_config(attention: str = "squeeze_excitation(ratio=4)"):
    """Stages of 16, 32 and 64 channels, on maps of 8x8, 4x4 and 2x2."""
    config = defaults.image_classification("cnn")
    config.model.attention = attention
    config.data.update(batch_size=32, train_transforms="pad_crop(padding=1)")
    config.optimizer.update(learning_rate=3e-3, weight_decay=0.05)
    config.train.update(length="30 epochs", log_every="2 epochs", eval_every="2 epochs", label_smoothing=0.1)
    return config
