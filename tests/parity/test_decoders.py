"""Our GPT with the fields of published decoders against transformers': the same logits from the same weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from models.gpt import GPTConfig
from models.published import pretrained
from tests.models.small import apply, in_parts
from tests.parity.close import assert_close, load_ours, logits_of, noisy, reloaded, transformers

SIZES = {"vocab_size": 13, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24}
COMMON = SIZES | {"num_key_value_heads": 2, "max_position_embeddings": 32}
GEMMA = COMMON | {"head_dim": 6, "query_pre_attn_scalar": 9, "sliding_window": 4}
LLAMA_3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA_3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
YARN |= {"beta_fast": 4.0, "beta_slow": 1.0}
BETWEEN = {"truncate": False, "attention_factor": 0.8}
MSCALES = {"mscale": 0.9, "mscale_all_dim": 0.6}
DEEPSEEK = SIZES | {"first_k_dense_replace": 3, "max_position_embeddings": 32, "kv_lora_rank": 10, "q_lora_rank": None}
DEEPSEEK |= {"qk_nope_head_dim": 6, "v_head_dim": 6, "qk_rope_head_dim": 4}
MAMBA2 = {"vocab_size": 13, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 8, "expand": 2}
MAMBA2 |= {"state_size": 6, "n_groups": 1, "conv_kernel": 3, "chunk_size": 4}
FAMILIES = {
    "mamba2": ("Mamba2", MAMBA2),
    "mamba2 with groups": ("Mamba2", MAMBA2 | {"n_groups": 2, "tie_word_embeddings": True, "layer_norm_epsilon": 1e-3}),
    "gpt2": ("GPT2", {"vocab_size": 13, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 12}),
    "bloom": ("Bloom", {"vocab_size": 13, "hidden_size": 24, "n_layer": 2, "n_head": 6}),
    "diffllama": ("DiffLlama", COMMON | {"head_dim": 6}),
    "diffllama with groups": ("DiffLlama", COMMON | {"num_attention_heads": 8, "attention_bias": True}),
    "llama": ("Llama", COMMON | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "llama with biases": ("Llama", COMMON | {"attention_bias": True, "mlp_bias": True, "head_dim": 6}),
    "llama 3": ("Llama", COMMON | {"rope_parameters": LLAMA_3, "tie_word_embeddings": True}),
    "yarn between indices": ("Llama", COMMON | {"rope_parameters": YARN | BETWEEN}),
    "deepseek": ("DeepseekV2", DEEPSEEK),
    "deepseek with yarn": ("DeepseekV2", DEEPSEEK | {"q_lora_rank": 5, "rope_parameters": YARN | MSCALES}),
    "yarn": ("Llama", COMMON | {"rope_parameters": YARN}),
    "mistral": ("Mistral", COMMON | {"sliding_window": 4}),
    "qwen2": ("Qwen2", COMMON),
    "qwen2 with windows": ("Qwen2", COMMON | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("Qwen3", COMMON | {"head_dim": 6}),
    "gemma": ("Gemma", COMMON | {"head_dim": 6}),
    "gemma2": ("Gemma2", GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3", GEMMA | {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}),
}
TOKENS = np.random.default_rng(0).integers(0, 13, (2, 11))


def make(name, options):
    config = getattr(transformers, "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config")(**options)
    kind = getattr(transformers, "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM")
    return noisy(lambda: kind._from_config(config, attn_implementation="eager"), 0.2)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_equal_whole_and_with_a_cache_and_an_export_loads(family, tmp_path):
    theirs = make(*FAMILIES[family])
    theirs.save_pretrained(tmp_path / "theirs")
    sizes = lambda described: (described.vocabulary, min(described.length, 12))  # noqa: E731
    model, params, report = load_ours(tmp_path / "theirs", GPTConfig, sizes, TOKENS)
    assert report.skipped == ()
    flat = flatten_dict(params["params"], sep="/")
    for name in report.new:  # which Qwen 2 and DiffLlama lack
        absent = {"attention/out/bias": 0.0, "attention/score/scale": 1.0}[name.partition("/")[2]]
        flat[name] = jnp.full_like(flat[name], absent)
    params = {"params": unflatten_dict(flat, sep="/")}
    expected = logits_of(theirs, TOKENS)
    whole = apply(model, params, jnp.asarray(TOKENS))
    assert_close(whole, expected, FAMILIES[family][0], atol=2e-5)
    step = jax.jit(lambda tokens, caches: model.apply(params, tokens, False, caches))
    cached, _ = in_parts(step, jnp.asarray(TOKENS), model.init_caches(2, 12), (5, 6, 11))
    assert_close(cached, expected, FAMILIES[family][0], atol=2e-5)
    pretrained.export(str(tmp_path / "ours"), model.config, params["params"], length=32)
    again = reloaded(theirs, tmp_path / "ours", attn_implementation="eager")
    np.testing.assert_allclose(logits_of(again, TOKENS), expected, atol=1e-6)
