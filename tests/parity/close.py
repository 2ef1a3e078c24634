"""What may differ from transformers, and with PARITY=FILE a record of the largest difference of each family.

PARITY=../parity_cpu.json python -m pytest tests/parity

FILE stands outside the checkout, or the record says that this was changed.
"""

import importlib.metadata
import json
import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask
from models.published import pretrained
from tests.models.small import in_parts, random_params
from train.run import workdir

WHY = "parity needs PyTorch and transformers: pip install -r requirements-parity.txt"
torch = pytest.importorskip("torch", reason=WHY)
transformers = pytest.importorskip("transformers", reason=WHY)
FILE = os.environ.get("PARITY", "")
COMMAND = "PARITY=FILE python -m pytest tests/parity"


def noisy(make, scale, seed=0, but=None):
    """A model of transformers' in which every parameter counts: biases are zero and norms one at first."""
    torch.manual_seed(seed)
    model = make().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if but is None or but not in name:
                parameter += scale * torch.randn_like(parameter)
    return model


def drawn(module, scale, seed=0):
    """A layer with all of its weights random, and these as arrays."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(scale * torch.randn_like(parameter))
    return module.eval(), {name: jnp.asarray(x.detach().numpy()) for name, x in module.named_parameters()}


def logits_of(model, *arrays, **options):
    with torch.no_grad():
        return model(*map(torch.tensor, arrays), **options).logits.numpy()


def reloaded(theirs, folder, **options):
    """What transformers makes of our export, which has all arrays of its class and no others."""
    again, told = type(theirs).from_pretrained(folder, output_loading_info=True, **options)
    assert {key: list(value) for key, value in told.items() if value} == {}
    return again.eval()


def load_ours(folder, kind, sizes, *inputs, **fields):
    """Our model of a folder, with what `sizes` makes of its description, its weights in it, and the report."""
    described = pretrained.describe(str(folder))
    model = kind(**described.fields | fields).build(*sizes(described))
    fresh = random_params(model, *map(jnp.asarray, inputs))["params"]
    params, report = pretrained.load(str(folder), model.config, fresh)
    return model, {"params": params}, report


def assert_close(found, expected, family, atol=1e-5, rtol=1e-5, where=..., what="logits"):
    """Compares our arrays with those of one of transformers' families, where these count."""
    found, expected = np.asarray(found)[where], np.asarray(expected)[where]
    if FILE:
        keep(Path(FILE), family, what, found, expected)
    np.testing.assert_allclose(found, expected, atol=atol, rtol=rtol)


def assert_layer(layer, params, x, expected, family, **compared):
    """Compares our layer with theirs: whole, and with a cache in parts."""
    x = jnp.asarray(x)
    whole = layer.apply(params, x, mask=Mask(causal=True))
    assert_close(whole, expected, family, **compared)
    step = lambda part, cache: layer.apply(params, part, cache=cache)  # noqa: E731
    cached, _ = in_parts(step, x, layer.init_cache(*x.shape), (6, 7, x.shape[1]))
    assert_close(cached, expected, family, **compared)


def keep(file, family, what, found, expected):
    """Adds one comparison to the record of this commit; that of another commit makes room."""
    kept, record = json.loads(file.read_text()) if file.exists() else {}, about()
    record = kept if kept.get("git") == record["git"] else record
    compared = record["families"].setdefault(family, {})
    before = compared.get(what, {"largest": 0.0, "difference": 0.0})
    now = {"largest": float(np.abs(expected).max()), "difference": float(np.abs(found - expected).max())}
    compared[what] = {name: float(np.maximum(before[name], now[name])) for name in now}
    file.write_text(json.dumps(record, indent=2) + "\n")


def about():
    environment = workdir.environment()
    theirs = {package: importlib.metadata.version(package) for package in ("torch", "transformers")}
    return {"command": COMMAND} | environment | {"versions": environment["versions"] | theirs, "families": {}}
