"""A digest changes with every bit, follows its formula, and is the same on every mesh."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.run import digest

ON_MESHES = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from train.run.digest import digests
x = np.arange(128, dtype=np.float32).reshape(16, 8)
mesh = jax.make_mesh((4, 2), ("a", "b"))
places = [P(), P("a"), P(None, "b"), P("a", "b"), P(("a", "b"), None)]
found = [digests({"x": jax.device_put(x, NamedSharding(mesh, place))})["x"] for place in places]
print(*found, digests({"x": jnp.asarray(x)})["x"])
"""


def by_hand(array):
    """Computes the digest with Python's integers."""

    def mix(word):
        word = ((word ^ (word >> 16)) * 0x85EBCA6B) % 2**32
        word = ((word ^ (word >> 13)) * 0xC2B2AE35) % 2**32
        return word ^ (word >> 16)

    size = min(array.dtype.itemsize, 4)
    words = array.reshape(-1).view(f"u{size}").tolist()
    return sum(mix((word + place * 0x9E3779B9) % 2**32) for place, word in enumerate(words)) % 2**32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "float64", "int64"])
def test_every_bit_counts(x64, dtype):
    array = np.random.default_rng(0).normal(size=(2, 3)).astype(jnp.dtype(dtype))
    before = int(digest.digest(jnp.asarray(array)))
    assert before == by_hand(array)
    for place in range(8 * array.nbytes):
        data = bytearray(array.tobytes())
        data[place // 8] ^= 1 << place % 8
        changed = np.frombuffer(bytes(data), array.dtype).reshape(2, 3)
        assert int(digest.digest(jnp.asarray(changed))) != before


def test_truths_and_keys_count():
    truths = {int(digest.digest(jnp.asarray(truths))) for truths in itertools.product([False, True], repeat=4)}
    assert len(truths) == 16
    assert len({int(digest.digest(jax.random.key(seed))) for seed in (0, 1)}) == 2


def test_the_mesh_does_not_count(run_python):
    found = run_python("-c", ON_MESHES, devices=8).stdout.split()
    assert len(found) == 6
    assert set(found) == {str(by_hand(np.arange(128, dtype=np.float32)))}


def test_a_changed_array_is_named():
    tree = {"params": {"kernel": jnp.ones((2, 2)), "bias": jnp.zeros(2)}}
    written = digest.digests(tree)
    assert list(written) == ["params/bias", "params/kernel"]
    digest.verify(tree, written)
    tree["params"]["kernel"] = tree["params"]["kernel"].at[1, 1].set(jnp.nextafter(1.0, 2.0))
    with pytest.raises(digest.DamagedError, match=r"1 arrays are not as they were written, such as params/kernel"):
        digest.verify(tree, written)


def test_what_is_sealed_comes_back_or_is_damaged():
    content = {"best": {"value": -float("inf"), "step": 3}, "seconds": 0.1, "digests": {"a": 2**32 - 1}}
    text = json.dumps(digest.seal(content))
    assert digest.unseal(json.loads(text)) == content
    for old, new in (("0.1", "0.2"), ("-Infinity", "Infinity"), ('"step"', '"stop"'), ('"sha256": "', '"sha256": "0')):
        assert old in text
        with pytest.raises(digest.DamagedError, match="the metadata are not as they were written"):
            digest.unseal(json.loads(text.replace(old, new)))
    with pytest.raises(digest.DamagedError):
        digest.unseal(None)
