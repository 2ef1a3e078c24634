"""A small GPT with today's block on Python's manual; offline.

    python -m train.main --config=configs/gpt_modern_pydoc.py

This is `configs/gpt_pydoc.py` with the block of Llama: RMSNorm, SwiGLU, no biases, and fewer key and value heads. Its
MLPs have two thirds as many hidden units, so that both have about as many parameters. All settings are ours.
"""

from configs import gpt_pydoc


def get_config(attention: str = "dot_product(kv_heads=2)"):
    """Today's GPT of 4 blocks, width 128, on 128 bytes."""
    config = gpt_pydoc.get_config(attention)
    config.model.update(norm_type="rms", gated=True, activation="swish", mlp=344, mlp_bias=False)
    return config
