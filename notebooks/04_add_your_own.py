# %% [markdown]
# On Colab, first upload `attention-bench.zip`, which `make archive` writes; the session restarts once after the first cell. In the project's folder, nothing is needed.

# %%
# Installs the project where it is missing, as on Colab; elsewhere nothing happens.
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

if importlib.util.find_spec("attention") is None:
    folder = Path("..") if Path("../attention").is_dir() else Path("attention-bench")
    if not folder.exists() and Path("attention-bench.zip").exists():
        shutil.unpack_archive("attention-bench.zip")
    if not folder.exists():
        raise FileNotFoundError("Upload attention-bench.zip, which `make archive` writes, beside this notebook.")
    on_gpu, on_tpu = shutil.which("nvidia-smi"), importlib.util.find_spec("libtpu")
    jax_for_it = "jax[tpu]" if on_tpu else "jax[cuda12]" if on_gpu else "jax"
    packages = [jax_for_it, "-e", str(folder), "-c", str(folder / "constraints.txt")]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *packages], check=True)
    sys.path.insert(0, str(folder.resolve()))
    if "google.colab" in sys.modules:  # this session has loaded other versions of NumPy, pandas and JAX already
        import IPython

        print("Installed. The session restarts now; then run the notebook again, from its first cell.")
        IPython.get_ipython().kernel.do_shutdown(restart=True)

# %% [markdown]
# # A mechanism of your own, from idea to comparison
#
# Sanger weights keys by their squared distance from the query. What if the distance is the sum of absolute differences, as for walks in Manhattan? It grows more slowly, so far keys count more. This notebook writes such a mechanism, checks it, trains it and compares it, in two minutes on a CPU. `docs/adding_a_mechanism.md` takes the same path for a mechanism that is to stay.

# %%
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
from jax.nn import initializers

from analysis import runs
from analysis.comparison import report
from analysis.pictures import attention_maps, curves, heads
from attention import Mask
from attention.parameters import Parameter
from attention.score import Score
from models.layers import MultiHeadAttention
from models.mechanisms import Mechanism, register, resolve
from train import loading, loop
from train.mechanisms import table

# %matplotlib inline
plt.rcParams["figure.dpi"] = 110
SMALL = jax.default_backend() == "cpu"
print(f"{jax.device_count()} x {jax.devices()[0].device_kind}, {'reduced size' if SMALL else 'full size'}")

# %% [markdown]
# ## 1. The equation
#
# $$s_{ij} = -\frac{e^{\gamma}}{\sqrt H}\,\lVert q_i - k_j \rVert_1 \qquad\qquad w_i = \mathrm{softmax}(s_i) \qquad\qquad y_i = \sum_j w_{ij} v_j$$
#
# with one learned $\gamma$ for each head.
#
# ## 2. The score
#
# A `Score` is a function of one pair: one query and one key of one head. Its fields are the options of spec strings. `parameters` returns what is learned, and `over=("heads",)` gives `pair` the part of its own head. Masks, softmax, dropout, caches, tiles and their gradients follow from `pair`.


# %%
@dataclasses.dataclass(frozen=True)
class Manhattan(Score):
    gamma: float = 0.0

    def parameters(self, sizes):
        return {"gamma": Parameter((sizes.heads,), initializers.constant(self.gamma), over=("heads",))}

    def pair(self, params, query, key, at):
        return -jnp.exp(params["gamma"]) * query.shape[-1] ** -0.5 * jnp.abs(query - key).sum()


# %% [markdown]
# ## 3. The row
#
# `register` gives the mechanism a name in this process. A spec string can then combine it with other projections, an alignment, or other mechanisms in other layers, like any other mechanism.

# %%
register(Mechanism("manhattan", "this notebook", score=Manhattan()))
SPECS = ["gaussian", "manhattan", "manhattan(gamma=1.0, value='tied')", "manhattan(normaliser='sink')"]
print(table(SPECS, width=64, heads=4, length=16))

# %% [markdown]
# ## 4. Is it right?
#
# Three short checks: the tiles equal the definition, which computes one pair at a time; a causal mask hides the future; and decoding token by token from a cache equals the full pass.

# %%
(mechanism,) = resolve("manhattan", depth=1)
layer, slow = (MultiHeadAttention(mechanism, heads=4, length=16, implementation=i) for i in ("chunked", "reference"))
x = jax.random.normal(jax.random.key(0), (2, 16, 32))
params = layer.init(jax.random.key(1), x)
print("fast - definition:", float(jnp.abs(layer.apply(params, x) - slow.apply(params, x)).max()))

full = layer.apply(params, x, mask=Mask(causal=True))
other_future = layer.apply(params, x.at[:, 9:].set(7.0), mask=Mask(causal=True))
print("the future reaches the past:", bool(jnp.any(full[:, :9] != other_future[:, :9])))

cache = layer.init_cache(batch=2, max_length=16, width=32)
prompt, cache = layer.apply(params, x[:, :15], cache=cache)
last, cache = layer.apply(params, x[:, 15:], cache=cache)
print("decoded - full pass:", float(jnp.abs(last[:, 0] - full[:, 15]).max()))

# %% [markdown]
# ## 5. Training
#
# The new mechanism is trained in the Vision Transformer of `configs/vit_digits.py` on scanned digits, beside dot product and projection attention, from which it was derived. Three seeds of each are trained together. On a CPU the model has two layers and trains for few epochs.

# %%
MECHANISMS = ("dot_product", "gaussian", "manhattan")
CHANGES = {"train.replicas": "3", "train.log_every": "5 epochs", "train.eval_every": "5 epochs"}
CHANGES |= {"model.depth": "2", "train.length": "20 epochs"} if SMALL else {"train.length": "150 epochs"}

for name in MECHANISMS:
    config, plain = loading.resolve(f"configs/vit_digits.py:{name}", CHANGES)
    loop.train_and_evaluate(config, plain, Path("runs/own") / name)

# %% [markdown]
# ## 6. Comparison
#
# Each line of *Differences* has a test over seeds against the baseline, corrected for the number of tests. The outputs below were made while other programs ran, so do not compare their times.

# %%
report(runs.find([Path("runs/own")]), wanted="dot_product")

# %% [markdown]
# The sentence in the last column is what you can claim; with three seeds only large differences can be claimed. The curves show the training: solid lines are validation data, dotted lines training data, and bands one standard deviation over seeds.

# %%
curves.figure(curves.read([f"runs/own/{name}" for name in MECHANISMS]), axes=("step",))

# %% [markdown]
# This is what the heads of the new mechanism attend to in one test image: rows are layers, and orange marks the weights.

# %%
heads.of_heads(attention_maps.of_images(Path("runs/own/manhattan"), [3]))

# %% [markdown]
# ## 7. If it is to stay
#
# Put `Manhattan` into a file in `attention/scores/`, and its row into `MECHANISMS` in `models/mechanisms.py`. The tests of layers, decoding and sharding then find the row by themselves, and `python -m train.sweep` trains it in grids. `docs/adding_a_mechanism.md` has each step.
