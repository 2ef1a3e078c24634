"""The gated delta rule and Mamba-2's state space against transformers': outputs, and states after the last token."""

import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import Mask
from attention.parameters import Sizes
from attention.recurrences.gated import GatedDelta
from attention.recurrences.selective import StateSpace

WHY = "parity needs PyTorch and transformers: pip install -r requirements-parity.txt"
torch = pytest.importorskip("torch", reason=WHY)
transformers = pytest.importorskip("transformers", reason=WHY)
qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next", reason=WHY)
mamba = pytest.importorskip("transformers.models.mamba2.modeling_mamba2", reason=WHY)

BATCH, LENGTH, HEADS, HEAD, MODEL, FIRST = 2, 11, 3, 8, 5, 6
SIZES = Sizes(MODEL, HEADS, HEAD, LENGTH)


def arrays(score):
    """Params, the layer's inputs, and queries, keys and values."""
    draw = np.random.default_rng(0).normal
    params = {name: draw(size=p.shape).astype(np.float32) for name, p in score.parameters(SIZES).items()}
    heads = draw(size=(3, BATCH, LENGTH, HEADS, HEAD)).astype(np.float32)
    return params, draw(size=(BATCH, LENGTH, MODEL)).astype(np.float32), heads


def ours(score, params, source, heads):
    """The outputs of each implementation of the whole, and output and state of two parts after each other."""
    params = {name: jnp.asarray(x) for name, x in params.items()}
    options = {"source": jnp.asarray(source), "mask": Mask(causal=True)}
    whole = [
        attention.attend(score, params, *map(jnp.asarray, heads), implementation=name, **options)
        for name in ("reference", "chunked")
    ]
    state, outs = score.start(SIZES, (BATCH,), jnp.float32), []
    for part in (slice(0, FIRST), slice(FIRST, LENGTH)):
        query, key, value = (jnp.asarray(x[:, part]) for x in heads)
        gates = score.gates(params, jnp.asarray(source[:, part]))
        out, state = score.advance(params, query, (key, gates), value, state, Mask(causal=True))
        outs.append(out)
    return [*whole, jnp.concatenate(outs, axis=1)], state


def close(outs, state, their_out, their_state):
    for out in outs:
        np.testing.assert_allclose(out, their_out, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(state, their_state, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rule", ["torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"])
def test_the_gated_delta_rule_is_qwen3_nexts(rule):
    """Which divides queries by √H; a norm of the output follows there, to which it is all one."""
    params, source, heads = arrays(GatedDelta())
    amount = torch.nn.functional.softplus(torch.tensor(source @ params["forget_kernel"] + params["forget_bias"]))
    decay = -torch.exp(torch.tensor(params["forget_rate"])) * amount
    strength = torch.sigmoid(torch.tensor(source @ params["strength_kernel"]))
    query, key, value = (torch.tensor(x) for x in heads)
    phi = torch.nn.functional.silu
    options = {"use_qk_l2norm_in_kernel": True, "output_final_state": True}
    out, state = getattr(qwen, rule)(phi(query), phi(key), value, decay, strength, **options)
    close(*ours(GatedDelta(), params, source, heads), out.numpy() * HEAD**0.5, state.numpy().swapaxes(-1, -2))


def test_the_state_space_is_mamba_2s():
    params, source, heads = arrays(StateSpace())
    steps, rate = torch.tensor(source @ params["step_kernel"]), -torch.exp(torch.tensor(params["forget_rate"]))
    (read, write, value), bias = (torch.tensor(x) for x in heads), torch.tensor(params["step_bias"])
    options = {"dt_bias": bias, "dt_softplus": True}
    out, state = mamba.mamba2_chunk_scan(
        value, steps, rate, write, read, chunk_size=4, return_final_states=True, **options
    )
    found = ours(StateSpace(), params, source, heads)
    close(*found, out.numpy(), state.numpy())
    state = torch.zeros(BATCH, HEADS, HEAD, HEAD)
    rates, options["dt_bias"] = rate[:, None, None].expand(HEADS, HEAD, HEAD), bias[:, None].expand(HEADS, HEAD)
    step = lambda t: mamba.mamba2_selective_state_update(  # noqa: E731
        state,
        value[:, t],
        steps[:, t, :, None].expand(BATCH, HEADS, HEAD),
        rates,
        write[:, t],
        read[:, t],
        **options,
    )
    outs = [step(t) for t in range(LENGTH)]
    close(*found, torch.stack(outs, 1).numpy(), state.numpy())


def drawn(module):
    """The layer with all of its weights random, and these as arrays."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return module.eval(), {name: jnp.asarray(x.detach().numpy()) for name, x in module.named_parameters()}


def convolved(x, kernel, bias=0.0):
    """Channels `(B, T, C)` after a causal convolution of each, `(C, 1, taps)`."""
    taps = kernel.shape[-1]
    padded = jnp.pad(x, [(0, 0), (taps - 1, 0), (0, 0)])
    return sum(padded[:, tap : tap + x.shape[1]] * kernel[None, None, :, 0, tap] for tap in range(taps)) + bias


def normed(x, epsilon):
    return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + epsilon)


def silu(x):
    return x / (1 + jnp.exp(-x))


def compare(layer, out, x):
    with torch.no_grad():
        np.testing.assert_allclose(out, layer(torch.tensor(x)).numpy(), atol=1e-5)


def test_a_layer_of_qwen3_next_has_the_gated_delta_rule_between_convolutions_and_a_gated_norm():
    sizes = {"linear_num_key_heads": HEADS, "linear_num_value_heads": HEADS, "hidden_size": MODEL}
    sizes |= {"linear_key_head_dim": HEAD, "linear_value_head_dim": HEAD, "num_hidden_layers": 1}
    config = transformers.Qwen3NextConfig(**sizes, layer_types=["linear_attention"])
    layer, w = drawn(qwen.Qwen3NextGatedDeltaNet(config, 0))
    source, by_head = arrays(GatedDelta())[1], (BATCH, LENGTH, HEADS, HEAD)
    x = jnp.asarray(source)
    heads = (x @ w["in_proj_qkvz.weight"].T).reshape(BATCH, LENGTH, HEADS, 4 * HEAD)
    strength, forget = jnp.split((w["in_proj_ba.weight"].T).reshape(MODEL, HEADS, 2), 2, -1)
    *mixed, gate = jnp.split(heads, 4, -1)
    mixed = jnp.concatenate([part.reshape(BATCH, LENGTH, -1) for part in mixed], -1)
    query, key, value = (part.reshape(by_head) for part in jnp.split(convolved(mixed, w["conv1d.weight"]), 3, -1))
    params = {"forget_kernel": forget[..., 0], "forget_bias": w["dt_bias"], "forget_rate": w["A_log"]}
    params |= {"strength_kernel": strength[..., 0]}
    out = attention.attend(GatedDelta(), params, query, key, silu(value), source=x, mask=Mask(causal=True))
    out = normed(out / HEAD**0.5, config.rms_norm_eps) * w["norm.weight"][None, None, None] * silu(gate)
    compare(layer, out.reshape(BATCH, LENGTH, -1) @ w["out_proj.weight"].T, source)


def test_a_layer_of_mamba_2_has_the_state_space_between_convolutions_and_a_gated_norm():
    inner = HEADS * HEAD
    sizes = {"num_heads": HEADS, "head_dim": HEAD, "state_size": HEAD, "n_groups": HEADS, "num_hidden_layers": 1}
    config = transformers.Mamba2Config(**sizes, hidden_size=inner, expand=1, chunk_size=4)
    layer, w = drawn(mamba.Mamba2Mixer(config, 0))
    source, by_head = np.random.default_rng(1).normal(size=(BATCH, LENGTH, inner)).astype(np.float32), (HEADS, HEAD)
    x, cuts = jnp.asarray(source), [inner, 4 * inner]
    kernel = w["in_proj.weight"].T
    gate, mixed, _ = jnp.split(x @ kernel, cuts, -1)
    mixed = convolved(mixed, w["conv1d.weight"], w["conv1d.bias"][None, None])
    value, write, read = (part.reshape(BATCH, LENGTH, *by_head) for part in jnp.split(silu(mixed), 3, -1))
    params = {"step_kernel": kernel[:, cuts[1] :], "step_bias": w["dt_bias"], "forget_rate": w["A_log"]}
    out = attention.attend(StateSpace(), params, read, write, value, source=x, mask=Mask(causal=True))
    out = (out + w["D"][None, None, :, None] * value) * silu(gate).reshape(BATCH, LENGTH, *by_head)
    out = normed(out, config.layer_norm_epsilon).reshape(BATCH, LENGTH, -1) * w["norm.weight"][None, None]
    compare(layer, out @ w["out_proj.weight"].T, source)
