"""The gated delta rule and Mamba-2's state space against transformers': outputs, and states after the last token."""

import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import Mask
from attention.parameters import Sizes
from attention.recurrences.gated import GatedDelta
from attention.recurrences.selective import StateSpace
from models.layers.multi_head import MultiHeadAttention
from tests.parity.close import WHY, assert_close, torch, transformers

qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next", reason=WHY)
mamba = pytest.importorskip("transformers.models.mamba2.modeling_mamba2", reason=WHY)

BATCH, LENGTH, HEADS, HEAD, MODEL, FIRST = 2, 11, 3, 8, 5, 6
SIZES = Sizes(MODEL, HEADS, HEAD, LENGTH)
TAPS = ("taps", "taps_bias")


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


def assert_same(family, outs, state, their_out, their_state):
    for found, expected in (*((out, their_out) for out in outs), (state, their_state)):
        assert_close(found, expected, family, what="layer")


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
    found = ours(GatedDelta(), params, source, heads)
    assert_same("Qwen3Next", *found, out.numpy() * HEAD**0.5, state.numpy().swapaxes(-1, -2))


def test_the_state_space_is_mamba_2s():
    params, source, heads = arrays(StateSpace())
    steps, rate = torch.tensor(source @ params["step_kernel"]), -torch.exp(torch.tensor(params["forget_rate"]))
    (read, write, value), bias = (torch.tensor(x) for x in heads), torch.tensor(params["step_bias"])
    options = {"dt_bias": bias, "dt_softplus": True}
    out, state = mamba.mamba2_chunk_scan(
        value, steps, rate, write, read, chunk_size=4, return_final_states=True, **options
    )
    found = ours(StateSpace(), params, source, heads)
    assert_same("Mamba2", *found, out.numpy(), state.numpy())
    state = torch.zeros(BATCH, HEADS, HEAD, HEAD)
    rates, options["dt_bias"] = rate[:, None, None].expand(HEADS, HEAD, HEAD), bias[:, None].expand(HEADS, HEAD)
    step = lambda t: mamba.mamba2_selective_state_update(  # noqa: E731
        state, value[:, t], steps[:, t, :, None].expand(BATCH, HEADS, HEAD), rates, write[:, t], read[:, t], **options
    )
    outs = [step(t) for t in range(LENGTH)]
    assert_same("Mamba2", *found, torch.stack(outs, 1).numpy(), state.numpy())


def drawn(module):
    """The layer with all of its weights random, and these as arrays."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return module.eval(), {name: jnp.asarray(x.detach().numpy()) for name, x in module.named_parameters()}


def compare(family, theirs, spec, params, x):
    """Our layer against theirs: whole, and with a cache in two parts."""
    layer = MultiHeadAttention(spec, HEADS, bias=False, head=HEAD)
    x = x.astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor(x)).numpy()
    whole = layer.apply(params, jnp.asarray(x), mask=Mask(causal=True))
    assert_close(whole, expected, family, rtol=0, what="layer")
    cache, outs = layer.init_cache(BATCH, LENGTH, x.shape[-1]), []
    for part in (slice(0, FIRST), slice(FIRST, FIRST + 1), slice(FIRST + 1, LENGTH)):
        out, cache = layer.apply(params, jnp.asarray(x[:, part]), cache=cache)
        outs.append(out)
    assert_close(jnp.concatenate(outs, 1), expected, family, rtol=0, what="layer")


def heads_of(kernel, heads=HEADS):
    """`(D, N·H)` as `(D, N, H)`."""
    return kernel.reshape(kernel.shape[0], heads, -1)


def taps(w, heads):
    """The convolutions of theirs `(channels, 1, taps)` as ours, for parts with these heads in their order."""
    ends = np.cumsum([number * HEAD for number in heads])[:-1]
    bias = w.get("conv1d.bias", jnp.zeros(sum(heads) * HEAD))
    sides = zip(jnp.split(w["conv1d.weight"], ends), jnp.split(bias, ends), heads, strict=True)
    return [(x.reshape(number, HEAD, -1).transpose(2, 0, 1), b.reshape(number, HEAD)) for x, b, number in sides]


def named(parts, arrays):
    return {
        f"{part}_{name}": x
        for part, pair in zip(parts, arrays, strict=True)
        for name, x in zip(TAPS, pair, strict=True)
    }


@pytest.mark.parametrize("groups", [1, HEADS])
def test_a_layer_of_qwen3_next_is_a_row(groups):
    sizes = {"linear_num_key_heads": groups, "linear_num_value_heads": HEADS, "hidden_size": MODEL}
    sizes |= {"linear_key_head_dim": HEAD, "linear_value_head_dim": HEAD, "num_hidden_layers": 1}
    config = transformers.Qwen3NextConfig(**sizes, layer_types=["linear_attention"])
    layer, w = drawn(qwen.Qwen3NextGatedDeltaNet(config, 0))
    wide = HEAD * HEADS // groups
    ends = [HEAD, 2 * HEAD, 2 * HEAD + wide]
    query, key, value, gate = jnp.split(w["in_proj_qkvz.weight"].T.reshape(MODEL, groups, -1), ends, -1)
    strength, forget = jnp.split(w["in_proj_ba.weight"].T.reshape(MODEL, groups, -1), 2, -1)
    score = {"forget_kernel": forget.reshape(MODEL, HEADS), "strength_kernel": strength.reshape(MODEL, HEADS)}
    score |= {"forget_rate": w["A_log"], "forget_bias": w["dt_bias"]}
    score |= {"gate_kernel": heads_of(gate), "gate_scale": w["norm.weight"]}
    score |= named(("query", "key", "value"), taps(w, (groups, groups, HEADS)))
    params = {"query": {"kernel": query}, "key": {"kernel": key}, "value": {"kernel": heads_of(value)}, "score": score}
    params["out"] = {"kernel": w["out_proj.weight"].T.reshape(HEADS, HEAD, MODEL)}
    # Their queries are divided by √H, which is a factor H of the norm's ε.
    spec = f"gated_delta(groups={groups}, conv=4, gate='norm_first', epsilon={config.rms_norm_eps * HEAD})"
    compare("Qwen3Next", layer, spec, {"params": params}, np.random.default_rng(1).normal(size=(BATCH, LENGTH, MODEL)))


def test_a_layer_of_mamba_2_is_a_row():
    """With a norm and a group of its own for each head; whole models of any groups are among the decoders."""
    inner = HEADS * HEAD
    sizes = {"num_heads": HEADS, "head_dim": HEAD, "state_size": HEAD, "n_groups": HEADS, "num_hidden_layers": 1}
    config = transformers.Mamba2Config(**sizes, hidden_size=inner, expand=1, chunk_size=4)
    layer, w = drawn(mamba.Mamba2Mixer(config, 0))
    w["norm.weight"] = jnp.tile(w["norm.weight"][:HEAD], HEADS)  # ours is shared by the heads
    layer.norm.weight.data = torch.tensor(np.asarray(w["norm.weight"]))
    gate, value, key, query, step = jnp.split(w["in_proj.weight"].T, [inner, 2 * inner, 3 * inner, 4 * inner], -1)
    score = {"step_kernel": step, "step_bias": w["dt_bias"], "forget_rate": w["A_log"], "skip": w["D"]}
    score |= {"gate_kernel": heads_of(gate), "gate_scale": w["norm.weight"][:HEAD]}
    score |= named(("value", "key", "query"), taps(w, (HEADS,) * 3))
    pieces = {"query": query, "key": key, "value": value}
    params = {name: {"kernel": heads_of(kernel)} for name, kernel in pieces.items()} | {"score": score}
    params["out"] = {"kernel": w["out_proj.weight"].T.reshape(HEADS, HEAD, inner)}
    spec = f"state_space(conv=4, gate='gate_first', skip=True, epsilon={config.layer_norm_epsilon})"
    compare("Mamba2", layer, spec, {"params": params}, np.random.default_rng(1).normal(size=(BATCH, LENGTH, inner)))
