"""Zhang §4.2: RoBERTa-base, fine-tuned on WikiText-103.

    python -m train.main --config=configs/mlm_wikitext103.py:mlp_roberta

The argument is an attention mechanism, `dot_product` by default; the paper's is `mlp_qkv`, its code's `mlp_roberta`.
Projections that the published weights lack, such as MLPs, start fresh. From the paper: roberta-base, 5 epochs,
batch 8, evaluation every 250 steps, a line every 50. From the `run_mlm.py` that it ran: 512 tokens, 15 % masked,
AdamW at 5e-5 without decay, falling linearly. Ours: masks of evaluation are fixed.
"""

from configs import defaults


def get_config(attention: str = "dot_product"):
    """RoBERTa of 12 blocks, width 768, on 512 of 50,265 subwords."""
    config = defaults.masked_language_modelling()
    config.model.update(
        attention=attention, depth=12, width=768, heads=12, mlp=3072, pretrained="FacebookAI/roberta-base"
    )
    config.data.update(
        source="hf:Salesforce/wikitext:wikitext-103-raw-v1",
        tokeniser="hf:FacebookAI/roberta-base",
        vocabulary=50265,
        context=512,
        batch_size=8,
        eval_batch_size=8,
    )
    config.optimizer.update(learning_rate=5e-5, schedule="linear", warmup="0 steps", weight_decay=0.0, beta2=0.999)
    config.train.update(length="5 epochs", log_every="50 steps", eval_every="250 steps", checkpoint_every="250 steps")
    return config
