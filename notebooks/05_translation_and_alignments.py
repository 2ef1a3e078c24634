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
# # Translation, and what a translator attends to
#
# Attention was invented for translation, to find the word that is being translated. In this notebook a recurrent encoder-decoder with Bahdanau's attention learns to translate dates from English to French, and a picture shows where it looks. Two other attentions and a Transformer follow. Babel makes all text, so nothing is downloaded.
#
# On a CPU the recurrent models are smaller, dates are from fifty years in place of two hundred, and each model trains for about a minute. On a GPU or TPU all models have the sizes of their configs.

# %%
import itertools
from pathlib import Path

import jax
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from analysis.pictures import attention_maps, heads, style
from train import loading, loop
from train.data.sources.dates import Dates
from train.decode import alignment
from train.decode.translator import Translator
from train.generation.search import Search

# %matplotlib inline
plt.rcParams["figure.dpi"] = 110
SMALL = jax.default_backend() == "cpu"
print(f"{jax.device_count()} x {jax.devices()[0].device_kind}, {'reduced size' if SMALL else 'full size'}")

# %% [markdown]
# ## The text
#
# Each source names its language and that of the target, and then has a date in one of four forms. The order of day, month and year changes, so there is something to align. No date of the test data is in the training data, in any form. Here are six pairs from two hundred years:

# %%
for pair in itertools.islice(Dates(sources=("en",), targets=("fr",)).rows("train").read(), 6):
    print(f"{pair['source']:<42} {pair['target']}")

# %% [markdown]
# ## The model
#
# One recurrent layer, the encoder, reads the source: $h_j = E(x_j, h_{j-1})$. Another, the decoder, writes the target. For each token that it writes, attention compares the decoder's last state with every state of the encoder. The decoder then writes from the weighted sum of the encoder's states:
#
# $$s_{ij} = v^\top \tanh(W d_{i-1} + U h_j + b) \qquad w_i = \mathrm{softmax}(s_i) \qquad c_i = \sum_j w_{ij} h_j \qquad d_i = D([t_i; c_i], d_{i-1})$$

# %%
DATES = "dates(sources=('en',), targets=('fr',)"
if SMALL:
    COMMON = {"data.source": f"{DATES}, first=1980, last=2029)", "train.length": "1000 steps"}
    COMMON |= {"data.validation_split": "validation[:500]", "data.test_split": "test[:500]"}
    RECURRENT = {"model.hidden": "128", "model.embedding": "64", "optimizer.learning_rate": "0.004"}
else:
    COMMON, RECURRENT = {"data.source": f"{DATES})", "train.length": "800 steps"}, {}
COMMON |= {"train.log_every": "500 steps", "train.eval_every": "500 steps"}


def train(spec, changes):
    config, plain = loading.resolve(spec, COMMON | changes)
    directory = Path("runs") / loading.name_of(spec)
    result = loop.train_and_evaluate(config, plain, directory)
    return Translator.load(directory), result["best"]["test"]["exact_match"]


additive, found = train("configs/seq2seq_dates.py:additive", RECURRENT)

# %% [markdown]
# `exact_match` is the share of test dates that are right to the last letter; `bleu` and `chrf` also count parts that are right.
#
# ## Translating
#
# The search is greedy, one piece of a word after the other.

# %%
TEXTS = ("en fr Monday, March 2, 2020", "en fr March 2, 2020", "en fr 3/2/2020", "en fr Friday, July 14, 1989")
search = Search.configured(additive.config.data)
for text, translated in zip(TEXTS, additive.translations(TEXTS, search), strict=True):
    print(f"{text:<32} {translated}")

# %% [markdown]
# ## Where it looks
#
# The map has a row for each piece of the translation and a column for each piece of the source; dark squares are large weights. The pieces are from a vocabulary of 400 that was learned from the text, and ␣ is a space.


# %%
@style.quiet
def alignments(translators, text, width):
    figure = Figure(figsize=(width * len(translators), 2.9))
    for axes, (title, translator) in zip(
        figure.subplots(1, len(translators), squeeze=False)[0], translators.items(), strict=True
    ):
        (ids,) = translator.tokens([text], search)
        alignment.matrix(axes, translator.align(text, ids))
        axes.grid(False)
        axes.set_title(title)
    return figure


alignments({f"additive, {found:.0%} exact": additive}, TEXTS[0], 3.6)

# %% [markdown]
# Nobody has told the model which words belong together. For *lundi* it looks around *Monday*, for *mars* at *March*. For day and year it looks at the beginning, where neither is found: the decoder starts from the encoder's last state, so it can know them without looking.
#
# ## Other attentions
#
# `luong_general` scores with $d^\top W h$. `location` (Luong et al.) is the control: it never compares anything with the source. A linear layer on the decoder's state says where to look, and the recurrent states must do the rest.

# %%
general, found_general = train("configs/seq2seq_dates.py:luong_general", RECURRENT)

# %%
location, found_location = train("configs/seq2seq_dates.py:location", RECURRENT)

# %%
compared = {
    f"additive, {found:.0%} exact": additive,
    f"luong_general, {found_general:.0%}": general,
    f"location, {found_location:.0%}": location,
}
alignments(compared, TEXTS[0], 2.9)

# %% [markdown]
# The maps show the same date with all three attentions. `luong_general` looks at one place for the weekday, one for day and month, and one or two for the year; at these places the encoder's state has just seen them. `location` does as well as the others: dates are so regular that no search is needed. Percentages are exact translations of the test data, with one seed each, so small differences mean nothing.
#
# ## A Transformer
#
# The encoder and the decoder have two layers each; every head of every decoder layer attends to the source. The text and its pieces are the same as above.

# %%
SAME_PIECES = {
    "data.source_tokeniser": "bpe(size=400)",
    "data.source_length": "24",
    "data.target_length": "16",
    "data.buckets": "12",
    "train.length": "400 steps",
}
transformer, found_transformer = train("configs/translate_dates.py", SAME_PIECES)
print(f"{found_transformer:.1%} exact")

# %%
maps = attention_maps.of_translation(Path("runs/translate_dates"), TEXTS[0])
heads.of_tokens(maps)

# %% [markdown]
# Rows are layers and columns are heads. Here the heads share the work: the day, the month or the year may be found by one head of one layer and by no other head.
#
# ## Further
#
# The Transformer takes any mechanism in all three attentions (`configs/translate_dates.py:gaussian`). For your own pairs, set `data.source=file:PATH`. In a terminal, `python -m train.translate --workdir=... --alignment=FILE.png` draws such a picture. `docs/language.md` says more.
