"""Hosseini Table 9: stars of reviews, three layers.

    python -m train.main --config=configs/classify_amazon.py:super

The argument is an attention mechanism, `dot_product` by default. From the paper: 3 layers, width 64, 4 heads, 64
tokens, 5 classes; its 3.65 million reviews are those of the "Amazon Review Full" set (Zhang et al. 2015). Ours: the
copy on the hub, the last tokens of a review, the last 1 % of the training reviews to choose the epoch, MLP 64, and a
reasonable length; the rest is as in `classify_imdb`.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """An encoder of 3 blocks, width 64, on 64 words."""
    config = defaults.text_classification()
    config.model.update(attention=attention, depth=3, width=64, mlp=64)
    config.data.update(
        source="hf:yassiracharki/Amazon_Reviews_for_Sentiment_Analysis_fine_grained_5_classes",
        text_column="review_text",
        label_column="class_index",
        train_split="train[:99%]",
        validation_split="train[99%:]",
        context=64,
        classes=5,
        batch_size=256,
        eval_batch_size=1000,
    )
    config.train.update(length="5 epochs", log_every="1000 steps", checkpoint_every="5000 steps")
    return config
