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
# # Super Attention against dot product, on a GPU
#
# This notebook trains a Vision Transformer on CIFAR-100 with each of two mechanisms (Hosseini & Hosseini, arXiv:2403.01643, Table 6), with three seeds each, and reports what can be claimed about the difference. On Colab choose *Runtime > Change runtime type > GPU* first. Runs are kept on Google Drive, where the same cells continue them after a disconnection.
#
# Without a GPU the same cells run at a reduced size: a smaller ViT and 15 epochs, on scikit-learn's 8x8 digits. **The outputs below were made at this size, on a CPU;** none of them is a result on CIFAR-100.

# %%
import shutil
import sys
from pathlib import Path

import jax
import matplotlib.pyplot as plt

from analysis import runs
from analysis.comparison import report
from analysis.pictures import attention_maps, curves, heads
from train import loading, loop

# %matplotlib inline
plt.rcParams["figure.dpi"] = 110
SMALL = jax.default_backend() == "cpu"
print(f"{jax.device_count()} x {jax.devices()[0].device_kind}, {'reduced size' if SMALL else 'full size'}")

# %% [markdown]
# ## Where runs are kept
#
# On Colab, runs are kept on your Drive: the machine may vanish, but the folder stays. Elsewhere, they are kept in `runs/` of the current folder.

# %%
RUNS = Path("runs/super_against_dot_product")
if "google.colab" in sys.modules:
    from google.colab import drive

    drive.mount("/content/drive")
    RUNS = Path("/content/drive/MyDrive/attention-bench/super_against_dot_product")

# %% [markdown]
# ## What is trained
#
# A config file holds nearly all settings, and the mechanism is its argument. `train.replicas` trains several seeds in one program, which keeps a GPU busy. On first use TensorFlow Datasets fetches and prepares CIFAR-100 (160 MB). This needs TensorFlow once (`pip install -r requirements-prepare.txt`).

# %%
MECHANISMS = ("dot_product", "super")
if SMALL:
    CONFIG, SEEDS, LENGTH = "configs/vit_digits.py", 3, "15 epochs"
    CHANGES = {"model.depth": "2", "train.log_every": "5 epochs", "train.eval_every": "5 epochs"}
else:
    CONFIG, SEEDS, LENGTH = "configs/vit_cifar100.py", 3, "50 epochs"
    CHANGES = {"data.batch_size": "64"}
CHANGES |= {"train.replicas": str(SEEDS), "train.length": LENGTH}


def train(mechanism):
    config, plain = loading.resolve(f"{CONFIG}:{mechanism}", CHANGES)
    return loop.train_and_evaluate(config, plain, RUNS / mechanism)


# %% [markdown]
# ## Training
#
# The header says what is trained and how much of the device it needs. Then comes a line for each evaluation, and at the end the test results, at the last step and at the step that is best on validation data.

# %%
first = train("dot_product")

# %%
second = train("super")

# %% [markdown]
# ## After a disconnection
#
# Run all cells again. A run that was cut off continues after its last checkpoint; a finished run only measures its test data again. On a CPU the numbers are then exactly those of a run that was never cut off. To show this, at reduced size, the next cell removes what the last run wrote after its last but one checkpoint, as if the machine had vanished there.

# %%
if SMALL:
    checkpoints = sorted(int(path.name) for path in (RUNS / "super/checkpoints").iterdir() if path.name.isdigit())
    shutil.rmtree(RUNS / f"super/checkpoints/{checkpoints[-1]}")
    again = train("super")
    print("The same result, to the last bit:", again["mean"]["best"]["test"] == second["mean"]["best"]["test"])

# %% [markdown]
# ## What you can claim
#
# The report has means over seeds with 95 % intervals, ranks in brackets, costs, and a sentence on the difference. The test is paired by seed. If it cannot tell, the sentence says so.

# %%
report(runs.find([RUNS]))

# %% [markdown]
# Look at `test accuracy` first; the sentence under *Differences* says whether the seeds allow a claim. Three seeds only allow claims of large differences. At reduced size, 15 epochs are only the beginning of a training, so a difference says which mechanism learns faster, not which one ends higher.
#
# ## Curves
#
# The curves are drawn over steps and over seconds of training. Solid lines are validation data, dotted lines training data; a band is one standard deviation over seeds to either side. The outputs below were made while other programs ran, so do not compare their times.

# %%
curves.figure(curves.read([str(RUNS / mechanism) for mechanism in MECHANISMS]))

# %% [markdown]
# ## What the heads attend to
#
# The picture shows one test image. Each row is a layer and each column a head; orange marks the weights. The last column is the rollout: how much of each patch reaches this layer through all layers so far, W^A included.

# %%
heads.of_heads(attention_maps.of_images(RUNS / "super", [3]))

# %% [markdown]
# ## Further
#
# Any field of the config can be changed in `CHANGES`, such as `"model.attention": "neural(dim=2)|dot_product"`; `docs/configs.md` lists them. In a terminal, `python -m train.sweep` trains whole grids and `python -m analysis.report` writes the same report to files.
