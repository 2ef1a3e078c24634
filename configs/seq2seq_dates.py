"""001's recurrent encoder-decoder on dates; offline, minutes.

    python -m train.main --config=configs/seq2seq_dates.py:qkv

Dates from English to French, written out by Babel. The argument is the attention: 001's `dot`, `qkv`, `encoder_dot`,
`encoder_qkv` and `location`, or `additive` (without an argument), `luong_dot`, `luong_general`, `luong_concat`.
Embeddings of 300 numbers and states of 500 are 001's drawing. Pieces of words in and out; no date of the test appears
in training, in whatever form.
"""

from configs import defaults


def get_config(attention: str = "additive"):
    """A GRU of 500 units that reads, another that writes, on at most 24 pieces."""
    config = defaults.recurrent_translation()
    config.model.attention = attention
    config.data.update(
        source="dates(sources=('en',), targets=('fr',))",
        validation_split="validation[:1000]",
        test_split="test[:2000]",
        source_tokeniser="bpe(size=400)",
        source_length=24,
        target_length=16,
        buckets="12",
        translations=200,
    )
    config.train.length = "800 steps"
    return config
