"""A published language model, on Python's manual.

    python -m train.main --config=configs/gpt_published.py

The argument is a folder, or a name on the Hugging Face hub such as `Qwen/Qwen3-0.6B-Base`, with a GPT-2, a BLOOM,
a Llama, a DiffLlama, a Mistral, a Qwen 2 or 3, a Gemma 1 to 3, a DeepSeek-V2 without experts, or a Mamba-2. The default
is SmolLM2, a Llama of 135 million parameters. `--config.model.attention` replaces its attention, and
`--config.data.source` its text. All settings are ours.
"""

from configs import defaults
from models.published import pretrained

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M"


def get_config(source: str = SMOLLM2):
    """SmolLM2, or another published decoder."""
    config = defaults.language_modelling()
    if source == SMOLLM2:
        sizes = {"depth": 30, "width": 576, "heads": 9, "mlp": 1536, "norm_epsilon": 1e-5}
        kinds = {"norm_type": "rms", "gated": True, "activation": "swish", "mlp_bias": False, "output_bias": False}
        spec = {"attention": "dot_product(kv_heads=3)", "positions": "rotary(base=100000.0)"}
        fields, vocabulary = sizes | kinds | spec, 49_152
    else:
        described = pretrained.describe(source)
        fields, vocabulary = described.fields, described.vocabulary
    config.model.update(pretrained=source, **fields)
    config.data.update(tokeniser=f"hf:{source}", vocabulary=vocabulary, context=512, batch_size=4, eval_batch_size=4)
    config.optimizer.update(learning_rate=5e-5, schedule="cosine", warmup="50 steps", weight_decay=0.01)
    config.train.update(length="500 steps", log_every="25 steps", eval_every="250 steps", checkpoint_every="250 steps")
    return config
