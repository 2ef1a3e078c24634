"""Hosseini Table 10: English to Spanish, width 1024.

    python -m train.main --config=configs/translate_europarl.py:efficient

The argument is a mechanism, `dot_product` by default. From the paper: 1 encoder and 2 decoder blocks, width 1024, 4
heads (also 1 and 2), 6 epochs, 99.8/0.1/0.1 % of the pairs. From the Keras example behind it: MLP 2048, 15,000 words,
20 of a sentence, batch 64. The paper's pairs are Europarl's and Anki's together; here Europarl's, from the hub. For
both, put lines of text into a folder as `train-anki.en`, `train-anki.es`, `train-europarl.en` and `train-europarl.es`:

    --config.data.source=file:FOLDER --config.data.source_column=en --config.data.target_column=es

Ours: longer pairs are left out, not cut; padding is masked and left out of the loss.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """An encoder-decoder of 1 + 2 blocks, width 1024, on twenty words."""
    config = defaults.translation(attention)
    config.model.update(
        depth=1,
        decoder_depth=2,
        width=1024,
        heads=4,
        mlp=2048,
        shared_embeddings=False,
    )
    words = "words(size=15000, marks=True)"
    config.data.update(
        source="hf:Helsinki-NLP/europarl:en-es",
        source_column="translation.en",
        target_column="translation.es",
        train_split="train[:99.8%]",
        validation_split="train[99.8%:99.9%]",
        test_split="train[99.9%:]",
        source_tokeniser=words,
        target_tokeniser=words,
        source_length=21,
        target_length=20,
        eval_batch_size=256,
        translations=500,
    )
    config.optimizer.update(name="adam", learning_rate=3e-4, schedule="rsqrt", warmup="4000 steps", clip=1.0)
    config.train.update(length="6 epochs", log_every="100 steps", eval_every="1 epoch", checkpoint_every="2000 steps")
    return config
