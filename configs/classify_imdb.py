"""Hosseini Table 8: sentiment of film reviews, one layer.

    python -m train.main --config=configs/classify_imdb.py:super --config.data.source=file:FOLDER

The argument is an attention mechanism, `dot_product` by default. From the paper: 1 layer, width 32, 4 heads, 32
tokens. From the Keras example behind it: 20,000 words, the last of a review, MLP 32, ReLU, post-norm, dropout 0.1, 20
units before the classes, Adam at 1e-3, batch 32. Ours: the last 10 % of the shuffled training reviews choose the
epoch, a reasonable length.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """An encoder of 1 block, width 32, on 32 words."""
    config = defaults.text_classification()
    config.model.update(attention=attention, depth=1, width=32, mlp=32)
    config.data.update(
        source="hf:stanfordnlp/imdb",
        train_split="train[:90%]",
        validation_split="train[90%:]",
        context=32,
        classes=2,
        batch_size=32,
        eval_batch_size=500,
    )
    config.train.length = "5 epochs"
    return config
