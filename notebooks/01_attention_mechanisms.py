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
# # Every attention mechanism, side by side
#
# This notebook shows twenty mechanisms of five papers: the equation of each, the few lines of code that define it here, and a map of what it learns to attend to in a small puzzle. It takes about three minutes on a CPU.

# %%
import dataclasses
import functools
import inspect

import flax.linen as nn
import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib.figure import Figure

from analysis import metrics
from analysis.pictures import projection, style, surfaces
from analysis.tables import Number, ResultColumn, ResultTable
from attention import reference, spatial_attention, squeeze_excitation
from models.layers import MultiHeadAttention
from models.layers.attention_weights import attention_weights
from models.mechanisms import Mechanism, resolve
from train.decode.alignment import Alignment, matrix
from train.mechanisms import layer_parameters

# %matplotlib inline
plt.rcParams["figure.dpi"] = 110
print(f"{jax.device_count()} x {jax.devices()[0].device_kind}, JAX {jax.__version__}")

# %% [markdown]
# ## One attention, four pieces
#
# For one head, with queries from the inputs $x$, and keys and values from the inputs $z$ (in self-attention they are the same):
#
# $$q = P_q(x) \qquad k = P_k(z) \qquad v = A\,P_v(z) \qquad s_{ij} = \mathrm{score}(q_i, k_j) \qquad w_i = \mathrm{normalise}(s_i) \qquad y_i = P_o\Big(\sum_j w_{ij} v_j\Big)$$
#
# Each mechanism is a choice of projections $P$, score, normaliser and alignment $A$. The normaliser is nearly always a softmax, which is defined here as:


# %%
def show(*functions):
    print("\n\n\n".join(inspect.getsource(function).rstrip() for function in functions))


show(reference.masked_softmax)

# %% [markdown]
# ## The puzzle
#
# A puzzle has twelve tokens: each of six letters occurs twice, in any order. For every token the model must say where its twin is. The order is new in each puzzle, so the answer follows from content, not from position.

# %%
LETTERS, TOKENS, WIDTH, STEPS = "ABCDEF", 12, 32, 500


def puzzles(seed, *shape):
    ordered = np.broadcast_to(np.repeat(np.arange(len(LETTERS)), 2), (*shape, TOKENS))
    tokens = np.random.default_rng(seed).permuted(ordered, axis=-1)
    same = (tokens[..., :, None] == tokens[..., None, :]) & ~np.eye(TOKENS, dtype=bool)
    return tokens, same.argmax(axis=-1)


tokens, twins = puzzles(3)
words = [LETTERS[i] for i in tokens]
print("token  ", *(f"{word:>2}" for word in words))
print("twin at", *(f"{twin:>2}" for twin in twins))

# %% [markdown]
# The model is as small as can be: an embedding of letters and of positions, one attention layer with one head, and one linear layer. Only the attention differs from picture to picture.


# %%
class OneLayer(nn.Module):
    mechanism: Mechanism

    def setup(self):
        self.letters = nn.Embed(len(LETTERS), WIDTH)
        self.positions = self.param("positions", nn.initializers.normal(WIDTH**-0.5), (TOKENS, WIDTH))
        self.attention = MultiHeadAttention(self.mechanism, heads=1, length=TOKENS)
        self.head = nn.Dense(TOKENS)

    def inputs(self, tokens):
        return self.letters(tokens) + self.positions

    def __call__(self, tokens):
        x = self.inputs(tokens)
        return self.head(x + self.attention(x))


@functools.partial(jax.jit, static_argnums=0)
def fit(model, batches):
    optimizer = optax.adam(5e-3)

    def loss(params, tokens, twins):
        logits = model.apply({"params": params}, tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, twins).mean()

    def step(carry, batch):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params, *batch), state)
        return (optax.apply_updates(params, updates), state), None

    start = model.init(jax.random.key(0), batches[0][0])["params"]
    (params, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), batches)
    accuracy = (model.apply({"params": params}, TEST[0]).argmax(-1) == TEST[1]).mean()
    return start, params, accuracy


TRAIN, TEST = puzzles(0, STEPS, 64), puzzles(1, 500)


SHOWN = []


@functools.cache
def trained(spec):
    SHOWN.append(spec)
    (mechanism,) = resolve(spec, depth=1)
    model = OneLayer(mechanism)
    start, params, accuracy = fit(model, TRAIN)
    return model, start, params, float(accuracy)


# %% [markdown]
# `maps` draws what each mechanism attends to in the puzzle above. Row $i$ shows the weights of token $i$, and the greatest weight of a map is black. A model can find the twin in three ways: it attends to the twin (one dark square in a row), to both places of the letter (two dark squares), or to everything else (two white squares). The number above each map is the share of twins that are found in 500 new puzzles; guessing finds 9 %.


# %%
def weights_of(spec):
    model, _, params, _ = trained(spec)
    (found,) = attention_weights(model, params, tokens[None]).values()
    return found[0, 0]


@style.quiet
def maps(*specs, weights=weights_of, columns=4):
    rows = -(-len(specs) // columns)
    figure = Figure(figsize=(2.1 * min(columns, len(specs)), 2.4 * rows))
    places = figure.subplots(rows, min(columns, len(specs)), squeeze=False).flat
    for axes, spec in zip(places, specs, strict=False):
        found = np.asarray(weights(spec))
        matrix(axes, Alignment(words, words, found))
        axes.images[0].set_clim(0, found.max())
        axes.grid(False)
        axes.set_title(f"{spec}\n{trained(spec)[-1]:.0%}")
    for axes in figure.axes[len(specs) :]:
        axes.set_visible(False)
    return figure


# %% [markdown]
# ## Dot products
#
# These are `dot_product` (Vaswani et al.), Luong's score without the factor $1/\sqrt H$, and Luong's score with a matrix between query and key:
#
# $$s_{ij} = \frac{q_i \cdot k_j}{\sqrt H} \qquad\qquad s_{ij} = q_i \cdot k_j \qquad\qquad s_{ij} = q_i^\top W k_j$$

# %%
show(reference.dot_score, reference.luong_score)

# %%
maps("dot_product", "luong_dot", "luong_general")

# %% [markdown]
# All three find the twins by looking away: the weights are spread over all tokens but the two of the letter, and the gap says where these two are.
#
# ## Fewer projections, and an alignment
#
# Hosseini & Hosseini (arXiv:2403.01643) remove the projections one by one: in `optimised`, the input itself is the values; in `efficient`, it is also the keys. `super` mixes these values over tokens with a learned matrix before the weights are applied:
#
# $$V' = W^A V + b \qquad\qquad y_i = \sum_j w_{ij} V'_j$$

# %%
show(reference.standard_layer, reference.optimised_layer, reference.efficient_layer, reference.super_layer)

# %%
maps("optimised", "efficient", "super")

# %% [markdown]
# `efficient` looks away too; the other two attend to the twin. The weights of `super` are for the *aligned* values, each of which is a mixture of all tokens.
#
# ## MLPs as projections
#
# Zhang (arXiv:2310.11398) puts MLPs in the place of linear projections. `decomposable` (Parikh et al.) applies the same MLP to both sides and compares the results:
#
# $$\mathrm{MLP}(x) = W_2\,\mathrm{ReLU}(\mathrm{LayerNorm}(W_1 x + b_1)) + b_2 \qquad\qquad s_{ij} = F(x_i) \cdot F(z_j)$$
#
# The score stays a dot product, so there is no new reference code. `resolve` says which pieces each mechanism has:

# %%
MLPS = ("mlp_qkv", "mlp_kv", "dual_linear", "mlp_marian", "mlp_roberta", "decomposable")
for name in MLPS:
    (row,) = resolve(name, depth=1)
    print(f"{name:<13} q: {row.query:<17} k: {row.key:<17} v: {row.value:<17} out: {row.out}")

# %%
maps(*MLPS, columns=3)

# %% [markdown]
# Five of the six attend to the twin itself. In `decomposable`, the same MLP makes queries and keys, so a token is as similar to its twin as to itself, and both get half of the weight.
#
# ## An MLP on each pair
#
# `additive` (Bahdanau et al.) and `luong_concat` score a pair with a hidden layer of tanh units. `neural` (DiGiugno & Mahmood, arXiv:2502.17206) scores it with a whole MLP, after a projection to $d'$ numbers, by default two:
#
# $$s_{ij} = v^\top \tanh(W q_i + U k_j + b) \qquad\qquad s_{ij} = w \cdot \sigma\big(W_2\,\sigma(W_1 [q'_i; k'_j] + b_1) + b_2\big) + b_a$$

# %%
show(reference.additive_score, reference.luong_concat_score, reference.neural_score)

# %%
PAIRS = ("additive", "luong_concat", "neural", "neural(dim=16)")
maps(*PAIRS)

# %% [markdown]
# `additive`, `luong_concat` and `neural(dim=16)` look away. Two numbers for each token and an MLP of three units cannot tell all six letters apart, so `neural` finds only some of the twins.
#
# ### The scores as a surface
#
# This is Figure 1 of the paper by DiGiugno & Mahmood: query and key are the same point $(x, y)$, and the score is drawn over this point. A dot product is a paraboloid whatever it learns, while an MLP takes the shape that training gives it. If $d' > 2$, the other coordinates are zero.

# %%
model, start, params, _ = trained("neural(dim=16)")
drawn = [surfaces.paraboloid(2.0)]
for title, found in (("neural(dim=16), untrained", start), ("trained", params)):
    drawn.append(surfaces.neural(model.mechanism.score, found["attention"]["score"], 2.0, title=title))
surfaces.figure(drawn)

# %% [markdown]
# The dot product is on the left; the MLP before and after training is in the middle and on the right. The MLP is flat where the ReLU cuts off and steep where it does not, a shape that no dot product has.
#
# ## Projection attention
#
# Sanger weights keys by their distance from the query and uses the keys as values, so a query becomes a mean of the keys near it:
#
# $$s_{ij} = -\frac{\lVert q_i - k_j \rVert^2}{2\sigma^2} \qquad\qquad y_i = \sum_j w_{ij} k_j$$

# %%
show(reference.gaussian_score, reference.unit)

# %%
maps("gaussian", "gaussian(sigma=0.3)", "gaussian(sigma=0.1)")

# %% [markdown]
# The smaller σ is, the fewer keys count. With σ = 1 all keys count nearly alike, since queries and keys have norm 1 and are at most 2 apart. With σ = 0.1 all weight is on the twin.
#
# The next picture shows what the paper means by projection: noisy points around a circle, before and after they attend to each other.

# %%
projection.figure(projection.noisy_circle())

# %% [markdown]
# The first panel shows one point, its neighbours and where it goes. The others show all points (blue) and where they go (red). If only few neighbours count, nothing moves; with the right number of neighbours, the points move onto the circle; if all points count, they move to its middle.
#
# ## Positions alone
#
# `positional` has a learned table of scores, and `positional_factorised` has a table of low rank. No query and no key is computed:
#
# $$s_{ij} = P_{ij} \qquad\qquad s_{ij} = u_i \cdot w_j$$

# %%
maps("positional", "positional_factorised")

# %% [markdown]
# These two are the control of the experiment. The puzzle needs content, so they can only guess, whatever their maps look like.
#
# ## Running states
#
# `linear` has no softmax, so it can keep a sum over keys in place of the keys. `delta`, before it writes a value, also subtracts what the state already returns for the key:
#
# $$y_i = \frac{\sum_j \varphi(q_i) \cdot \varphi(k_j)\, v_j}{\sum_j \varphi(q_i) \cdot \varphi(k_j)} \qquad\qquad W_j = W_{j-1} + \beta_j \left(v_j - W_{j-1}\,\varphi(k_j)\right) \varphi(k_j)^\top, \quad y_i = W_i\,\varphi(q_i)$$

# %%
show(reference.elu_feature, reference.linear_head, reference.delta_head)

# %% [markdown]
# Neither computes weights of pairs. To see how much of each value is in each output, we give each token a value that marks this token alone. The output of token $i$ is then its share of each value:


# %%
def taken(spec):
    model, _, params, _ = trained(spec)
    x = model.apply({"params": params}, tokens[None], method="inputs")
    layer = MultiHeadAttention(model.mechanism, heads=1, length=TOKENS)
    unprojected = {"kernel": np.eye(WIDTH)[None], "bias": np.zeros(WIDTH)}
    own = {"params": params["attention"] | {"out": unprojected}}
    source = layer.apply(own, x, WIDTH, method="prepare")
    marked = dataclasses.replace(source, value=np.eye(TOKENS, WIDTH)[None, :, None])
    return layer.apply(own, x, marked)[0, :, :TOKENS]


maps("linear", "delta", weights=taken)

# %% [markdown]
# Both find every twin without a softmax, `linear` by looking away and `delta` by attending to the twin. The shares of `delta` may be negative; these are white here.
#
# ## Channels and positions
#
# In convolutional networks, attention is a weight between 0 and 1 for each channel, or for each position of a feature map $x$. Here $\bar z$ is the mean of a channel over the map, and $m$ and $n$ are the mean and the maximum of a position over the channels:
#
# $$x \cdot \sigma(W_2\,\mathrm{ReLU}(W_1 \bar z)) \qquad\qquad x \cdot \sigma(\mathrm{conv}([m; n]))$$
#
# These functions are short enough to be their own definitions.

# %%
show(squeeze_excitation, spatial_attention)

# %% [markdown]
# ## All together
#
# The table shows the share of twins that each mechanism found, and the number of parameters of its layer at the sizes of this puzzle.

# %%
rows = [(spec, trained(spec)[-1], layer_parameters(resolve(spec, 1)[0], WIDTH, 1, TOKENS)) for spec in SHOWN]
accuracy, parameters = metrics.find("accuracy"), metrics.find("attention_layer_parameters")
ResultTable(
    (
        ResultColumn("mechanism", "mechanism", tuple(spec for spec, _, _ in rows)),
        ResultColumn("found", "twins found, %", tuple(Number(found, accuracy) for _, found, _ in rows)),
        ResultColumn("parameters", parameters.title, tuple(Number(count, parameters) for *_, count in rows)),
    )
)

# %% [markdown]
# With one seed and one puzzle, this shows that each mechanism works and what it can express, not which is better. Notebook 02 compares two mechanisms with seeds and tests, notebook 04 adds one of your own, and `docs/mechanisms.md` has every option, cost and source.
