"""Zhang §4.3: a Marian, fine-tuned from German to English.

    python -m train.main --config=configs/translate_iwslt.py:mlp_marian

The argument is a mechanism, `dot_product` by default; the paper's is `mlp_qkv`, its code's `mlp_marian`, its
ablation's `mlp_kv` and `dual_linear`. Projections that the published weights lack, such as MLPs, start fresh. From
the paper: 6 + 6 blocks, width 512, 8 heads, MLP 2048, dropout 0.1, 58,101 tokens, 6 epochs of batches of 32, evaluation
every 1,000 steps, a line every 200. From the `run_translation.py` that it ran: AdamW at 5e-5 without decay, falling
linearly, 128 tokens. From scratch and smaller, on files aligned line by line (train.de, train.en, val.de, ...):

    python -m train.main --config=configs/translate_iwslt.py --config.data.source=file:FOLDER \\
        --config.data.source_column=de --config.data.target_column=en --config.model.pretrained='' \\
        --config.data.source_tokeniser='bpe(size=8000)' --config.data.target_tokeniser='' --config.model.width=256
"""

from configs import defaults

PUBLISHED = "Helsinki-NLP/opus-mt-de-en"


def get_config(attention: str = "dot_product"):
    """A Marian of 6 + 6 blocks, width 512, on 128 of 58,101 pieces."""
    config = defaults.translation(attention)
    config.model.update(
        depth=6,
        decoder_depth=6,
        width=512,
        heads=8,
        mlp=2048,
        norm_epsilon=1e-5,
        positions="sinusoidal_halves",
        activation="swish",
        attention_dropout=0.0,
        output_bias=True,
        pretrained=PUBLISHED,
    )
    config.data.update(
        source="hf:IWSLT/iwslt2017:iwslt2017-de-en",
        revision="refs/convert/parquet",
        source_column="translation.de",
        target_column="translation.en",
        source_tokeniser=f"marian:{PUBLISHED}/source.spm",
        target_tokeniser=f"marian:{PUBLISHED}/target.spm",
        source_vocabulary=58101,
        target_vocabulary=58101,
        source_length=128,
        target_length=128,
        buckets="32,64",
        batch_size=32,
        eval_batch_size=32,
        translations=500,
        beams=4,
    )
    config.optimizer.update(learning_rate=5e-5, schedule="linear", warmup="0 steps", beta2=0.999)
    config.train.update(
        length="6 epochs", log_every="200 steps", eval_every="1000 steps", checkpoint_every="1000 steps"
    )
    return config
