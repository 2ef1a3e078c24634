"""Dates from English to French, written out by Babel: 001's recurrent encoder-decoder, offline, in minutes.

    python -m train.main --config=configs/seq2seq_dates.py:qkv

The argument is the attention: 001's `dot`, `qkv`, `encoder_dot`, `encoder_qkv` and `location`, or `additive` (without
an argument), `luong_dot`, `luong_general`, `luong_concat`. Embeddings of 300 numbers and states of 500 are 001's
drawing. Bytes in and out; no date of the test appears in training, in whatever form.
"""

from configs import defaults


def get_config(attention: str = "additive"):
    """A GRU of 500 units that reads, another that writes, on at most 48 bytes."""
    config = defaults.recurrent_translation()
    config.model.attention = attention
    config.data.update(source="dates(sources=('en',), targets=('fr',))", buckets="32", translations=200)
    config.data.update(source_length=48, target_length=48)
    return config
