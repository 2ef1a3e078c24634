"""DiGiugno §4.1: a GPT of eight layers on WikiText-103.

    python -m train.main --config="configs/gpt_wikitext103.py:neural(dim=2)|dot_product"

The argument is an attention mechanism, `dot_product` by default. From the paper and its code: 8 layers, width 512,
8 heads, MLP 1024, post-norm, ReLU, sinusoidal positions, no bias in attention, an untied output, context 1024, batch
16, bert-base-cased's pieces, AdamW at 3e-4 with decay 0.1, evaluation every 10,000 of 1,000,000 steps in windows 512
apart (`window_perplexity` is what the paper reports, `perplexity` counts each piece once). Ours: decay on embeddings
too, embeddings multiplied by √D alone. Smaller, from a folder of local files:

    python -m train.main --config=configs/gpt_wikitext103.py --config.data.source=file:FOLDER \\
        --config.data.tokeniser='wordpiece(size=8192)' --config.model.depth=2 --config.train.length='500 steps'
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """GPT of 8 blocks, width 512, on 1,024 of 28,996 word pieces."""
    config = defaults.language_modelling()
    config.model.update(
        attention=attention,
        depth=8,
        width=512,
        heads=8,
        mlp=1024,
        norm="post",
        positions="sinusoidal",
        activation="relu",
        embedding_dropout=0.1,
        tied_output=False,
        scale_embeddings=True,
    )
    config.data.update(
        source="hf:Salesforce/wikitext:wikitext-103-raw-v1",
        tokeniser="hf:google-bert/bert-base-cased",
        vocabulary=28996,
        context=1024,
        eval_stride=512,
    )
    config.optimizer.update(learning_rate=3e-4, schedule="constant", warmup="0 steps", beta2=0.95)
    config.train.update(
        length="1000000 steps", log_every="100 steps", eval_every="10000 steps", checkpoint_every="1000 steps"
    )
    return config
