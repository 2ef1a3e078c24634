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
# # A GPT on a TPU, sharded
#
# This notebook trains the GPT of DiGiugno & Mahmood (arXiv:2502.17206) on WikiText-103, with Neural Attention in its first layer, on all devices of a TPU VM, a Colab TPU or a machine with several GPUs. A mesh and a table of rules say where everything is placed; the model's code knows nothing of devices.
#
# On a CPU the same cells run at a reduced size: eight fake devices (threads of the one CPU), a smaller GPT of bytes, and the text of the Python manual, which comes with Python. **The outputs below were made on a CPU, not on a TPU;** this notebook has not been run on TPUs yet.

# %% [markdown]
# ## What this device can do
#
# `benchmarks.device` checks every mechanism against its definition, and measures how fast it is, in the order of what is worth knowing. Its processes need the TPU or GPU, so it must run before this notebook takes it. Each call ends after nine minutes, and the next one goes on; all results are in one file, `runs/device/device.json`. Set `MEASURE = True` to run it.

# %%
import subprocess
import sys

MEASURE = False
if MEASURE:
    subprocess.run([sys.executable, "-m", "benchmarks.device", "--seconds=540", "--out=runs/device"], check=True)

# %%
from pathlib import Path

import jax
import matplotlib.pyplot as plt

jax.config.update("jax_num_cpu_devices", 8)  # of a CPU alone; TPUs and GPUs take no notice

from analysis.pictures import curves
from train import loading, loop
from train.decode.continuations import continuations
from train.decode.language_models import LanguageModel
from train.dry_run import dry
from train.generation.sampling import Sampling
from train.mesh import sharding

# %matplotlib inline
plt.rcParams["figure.dpi"] = 110
SMALL = jax.default_backend() == "cpu"
DEVICES = jax.device_count()
print(f"{DEVICES} x {jax.devices()[0].device_kind}, {'pretended, reduced size' if SMALL else 'full size'}")

# %% [markdown]
# ## The mesh
#
# The mesh here has three axes: `data` splits the batch, `fsdp` the batch and the parameters, `tensor` heads and hidden units. Their product is the number of devices, and -1 takes what the others leave. (A fourth axis, `context`, splits long sequences.)

# %%
TENSOR = 2 if DEVICES % 2 == 0 else 1
FSDP = 2 if DEVICES % (2 * TENSOR) == 0 else 1
MESH = {"mesh.data": "-1", "mesh.fsdp": str(FSDP), "mesh.tensor": str(TENSOR)}
print(f"data {DEVICES // (FSDP * TENSOR)} x fsdp {FSDP} x tensor {TENSOR}")

# %% [markdown]
# ## The experiment
#
# The full size is that of the paper: 8 layers, width 512, contexts of 1,024 word pieces. WikiText-103 and the tokeniser come from the Hugging Face hub on first use. `neural(dim=2)|dot_product` is Neural Attention in the first layer and dot products in all others.

# %%
ATTENTION = "neural(dim=2)|dot_product"
if SMALL:
    SPEC, STEPS, TOKENS = f"configs/gpt_pydoc.py:{ATTENTION}", 600, 100
    CHANGES = {"model.depth": "2", "model.width": "64", "model.mlp": "256", "optimizer.warmup": "50 steps"}
    CHANGES |= {"train.log_every": "100 steps", "train.eval_every": "200 steps"}
else:
    SPEC, STEPS, TOKENS = f"configs/gpt_wikitext103.py:{ATTENTION}", 20_000, 200
    CHANGES = {"data.batch_size": str(2 * DEVICES), "data.eval_batch_size": str(2 * DEVICES)}
    CHANGES |= {"train.precision": "bfloat16", "train.eval_every": "2000 steps"}
config, plain = loading.resolve(SPEC, CHANGES | MESH | {"train.length": f"{STEPS} steps"})

# %% [markdown]
# ## Does it fit?
#
# A dry run compiles one training step for these devices and says how much memory it needs on each, without data and without training.

# %%
planned = dry.DryRun.of(config)
print("\n".join(planned.report()))

# %% [markdown]
# ## Where parameters are
#
# The rules depend on a parameter's path alone. Each line shows a parameter of the first block, its shape, how the mesh splits its axes, and the shape that one device holds. Small parameters, such as the MLP on pairs, are whole on every device.

# %%
for path, array in jax.tree_util.tree_leaves_with_path(planned.setup.shapes.params["block_0"]):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    spec = sharding.parameter_spec(f"block_0/{name}", array.shape, planned.setup.replicas.mesh)
    own = jax.sharding.NamedSharding(planned.setup.replicas.mesh, spec).shard_shape(array.shape)
    if name.endswith("kernel"):
        print(f"{name:<34} {array.shape!s:<16} {tuple(spec)!s:<28} {own}")

# %% [markdown]
# ## Training
#
# This is the same loop as on one device. The work directory holds everything; the same call continues the run, also on another mesh. On Colab the work directory is on Drive.

# %%
RUN = Path("runs/gpt")
if "google.colab" in sys.modules:
    from google.colab import drive

    drive.mount("/content/drive")
    RUN = Path("/content/drive/MyDrive/attention-bench/gpt")

result = loop.train_and_evaluate(config, plain, RUN)

# %% [markdown]
# `bits_per_byte` does not depend on the tokeniser. `perplexity` is per token: per byte on a CPU, and per word piece at full size. *Baselines* are n-grams of the same text; after so short a training on a CPU they are still better.

# %%
curves.figure(curves.read([str(RUN)]), axes=("step", "seconds"))

# %% [markdown]
# The curves are the loss on validation data (solid) and training data (dotted), by step and by seconds of training.
#
# ## Generation
#
# Tokens are decoded one by one with a cache. For the layer with Neural Attention, the cache keeps each key's share of the first hidden layer in place of the key. After a minute of training on a CPU, the model has learned what words look like, and no more.

# %%
prompt = "The return statement" if SMALL else "The history of"
print(continuations(LanguageModel.of_run(RUN), [prompt], TOKENS, Sampling(temperature=0.7), seed=1)[0])

# %% [markdown]
# ## On a pod
#
# A slice of several machines needs one process on each machine, and a notebook is only one process. `docs/scaling.md` has the commands for TPU pods, SLURM and others. The mesh, the rules and the run's folder are the same.
