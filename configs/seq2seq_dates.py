"""A recurrent encoder-decoder on dates; offline, minutes.

    python -m train.main --config=configs/seq2seq_dates.py:qkv

Babel writes out dates in English and French. The argument is the attention: `additive` (the default), `luong_dot`,
`luong_general`, `luong_concat`, or a variant of Wikipedia's article on attention: `dot`, `qkv`, `encoder_dot`,
`encoder_qkv` or `location`. `fixed` has no attention, but the encoder's last state at every step. As in the article's
figure, embeddings are 300 wide and states 500. Sources and targets are pieces of words. No date of the test appears in
training, in any form.
"""

from configs import defaults


def get_config(attention: str = "additive"):
    """A GRU of 500 units that reads, another that writes, on at most 24 pieces."""
    config = defaults.translation(attention, "seq2seq")
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
