"""Sanger §3: Spanish to English in ten words, a Transformer.

    python -m train.main --config=configs/translate_anki.py:gaussian --config.data.source=file:spa-eng/spa.txt

The argument is a mechanism, `dot_product` by default; `gaussian` is the paper's, with σ = 0.01 in both self-attentions
and 0.05 in cross-attention. The pairs are lines of English, a tab and Spanish: www.manythings.org/anki, spa-eng.zip.
The other direction is `--config.data.source_column=1 --config.data.target_column=2`.

From the paper: 8 heads, 15,000 words, ten of a sentence, 70/15/15 % of the pairs, 10 epochs. From the Keras example
behind it: width 256, MLP 2048, one block on each side, lower case, no punctuation, batch 64. Ours: longer pairs are
left out, not cut; padding is masked and left out of the loss; pairs of one source sentence are in one split.
"""

from configs import defaults

SIGMAS = {"gaussian": ("gaussian(sigma=0.01)", "gaussian(sigma=0.05)")}


def get_config(attention: str = "dot_product"):
    """An encoder-decoder of 1 + 1 blocks, width 256, on ten words."""
    within, cross = SIGMAS.get(attention, (attention, attention))
    config = defaults.translation(within)
    config.model.update(
        cross_attention=cross,
        depth=1,
        decoder_depth=1,
        width=256,
        heads=8,
        mlp=2048,
        shared_embeddings=False,
    )
    words = "words(size=15000, marks=True)"
    config.data.update(
        source="file:spa-eng/spa.txt",
        source_column="2",
        target_column="1",
        train_split="train[:70%]",
        validation_split="train[70%:85%]",
        test_split="train[85%:]",
        source_tokeniser=words,
        target_tokeniser=words,
        source_length=11,
        target_length=10,
        eval_batch_size=512,
        translations=500,
    )
    config.optimizer.update(name="adam", schedule="rsqrt", warmup="1000 steps", clip=0.0)
    config.train.update(length="10 epochs", log_every="100 steps", eval_every="1 epoch", checkpoint_every="1 epoch")
    return config
