"""A Transformer on dates of four languages; offline, minutes.

    python -m train.main --config=configs/translate_dates.py

Babel writes out dates in English, French and Spanish, and their translations into German. The argument is the attention
mechanism of both self-attentions and of cross-attention, `dot_product` by default. Sources and targets are bytes. No
date of the test appears in training, in any language or form. All settings are ours.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """An encoder-decoder of 2 + 2 blocks, width 64, on at most 64 bytes."""
    config = defaults.translation(attention)
    config.model.update(norm="pre", embedding_dropout=0.0, dropout=0.0, attention_dropout=0.0)
    config.data.update(
        source="dates(sources=('en', 'fr', 'es'), targets=('de',))",
        validation_split="validation[:1000]",
        test_split="test[:2000]",
        buckets="32,48",
        translations=200,
    )
    config.optimizer.learning_rate = 3e-3
    config.train.length = "1500 steps"
    return config
