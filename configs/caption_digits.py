"""Image to text on scanned digits; offline, minutes.

    python -m train.main --config=configs/caption_digits.py

Images have one to four scans of scikit-learn's digits side by side at varying heights; captions are their English
words. The scans of the test are in no training image. The argument is the attention mechanism of both self-attentions
and of cross-attention, `dot_product` by default. All settings are ours.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """A network of convolutions and an encoder-decoder of 1 + 1 blocks, width 64, on images of 16x40 pixels."""
    config = defaults.captioning(attention)
    config.model.update(
        encoder="cnn(stages=3, width=16)",
        depth=1,
        decoder_depth=1,
        positions="learned",
        embedding_dropout=0.0,
        dropout=0.0,
        attention_dropout=0.0,
    )
    config.data.update(train_transforms="rotate(degrees=6)|zoom(factor=0.1)", translations=200, target_vocabulary=15)
    config.optimizer.update(learning_rate=2e-3, warmup="100 steps")
    config.train.update(length="16 epochs", log_every="100 steps", eval_every="2 epochs", checkpoint_every="4 epochs")
    return config
