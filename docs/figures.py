"""Write every measured figure of the documents from the JSON files that hold the measurements.

    python -m docs.figures

In a page, a figure stands between `<!-- figures: NAME -->` and `<!-- end -->`. It is a table on separate lines, or a
number within a sentence. `figures()` has all names.
"""

import argparse
import collections
import functools
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from analysis import comparison, flops, statistics
from analysis import runs as finished
from analysis.metrics import METRICS
from analysis.tables import Number, markdown, plain_markdown
from attention.errors import unknown
from benchmarks import (
    attention,
    compiling,
    decoding,
    endurance,
    inference,
    layers,
    llama,
    marian,
    measure,
    pods,
    replicas,
    schedules,
    startup,
)
from benchmarks import train_step as training
from benchmarks.compilers import gpu, launches
from benchmarks.device import report as device
from benchmarks.device import worker
from benchmarks.peers import agreement
from docs import address, choices, families
from studies import declared, digits, ledger, manual, precision, replication, translations
from train import cli, mechanisms

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").glob("**/*.md")))
KEPT = ROOT / "docs/replication"
FIGURE = re.compile(r"(?P<mark><!-- figures: (?P<name>.+?) -->)(?s:.*?)<!-- end -->")
H200 = ROOT / "benchmarks/results/device_h200.json"
NEURAL = "neural(dim=2), pallas"
CACHED = (  # the rows of the table of decode caches
    *("dot_product", "dot_product(kv_heads=4)", "dot_product(kv_heads=1)", "dot_product(latent=512)"),
    *("dot_product(latent=512, rotary=64)", "optimised", "efficient", "super", "gaussian", "additive"),
    *("neural(dim=2)", "neural(dim=16)", "neural(dim=None)", "positional", "forgetting", "differential"),
    *("linear", "delta", "retention", "gated_linear", "gated_delta", "state_space", "kimi_delta"),
)


@functools.cache
def load(name: str) -> Any:
    """Reads a file of `benchmarks/results`."""
    file = ROOT / f"benchmarks/results/{name}{'' if name.endswith(('_tpu', '_gpu')) else '_cpu'}.json"
    return json.loads(file.read_text(encoding="utf-8"))


@functools.cache
def studied(name: str) -> Any:
    """Reads a file of `docs/replication`, where a study may have the name of a file of `benchmarks/results`."""
    return json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))


def tables() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yields the name of every table with the function that makes it."""
    yield "begin", lambda: address.begin("make demo", "make test", ". .venv/bin/activate")
    yield "begin the tour", lambda: address.begin("make demo", ". .venv/bin/activate")
    yield "begin with make", lambda: address.begin("make demo")
    yield "begin on Colab", address.begin_on_colab
    yield "attention", lambda: attention.table(load("attention")["forward+backward"])
    yield "attention growth", lambda: attention.growth_table(load("attention")["growth"])
    yield "attention in short", lambda: attention_in_short(cores())
    yield "speed in short", speed_in_short
    yield "attention work", lambda: attention_work(cores())
    yield "gpt in short", gpt_in_short
    for model in ("gpt", "vit"):
        yield f"layers {model}", lambda model=model: layers.table(load("layers")[model])
    for file in ("train_step", "gpt_step"):
        yield f"{file} stacks", lambda file=file: training.stacks_table(load(file)["stacks"])
    yield "train_step losses", lambda: training.losses_table(load("train_step")["stacks"], (1, 5, 10, 15, 20))
    yield "startup", lambda: startup.table(load("startup")["seconds"])
    yield "replicas", lambda: replicas.markdown(load("replicas"))
    yield "translation", lambda: marian.table(load("translation")["searches"])
    yield "decoding", lambda: decoding.table(load("decoding")["mechanisms"])
    yield "llama", lambda: llama.table(load("llama")["decoding"] + load("llama_16")["decoding"])
    yield "llama training", lambda: llama.training_table(load("llama_step")["training"])
    yield "endurance", lambda: endurance.markdown(load("endurance"))
    for part in ("depths", "layers", "chunks"):
        yield f"compiling {part}", lambda part=part: compiling.table(load("compiling")[part])
    for chip in load("schedules_tpu")["chips"]:
        yield f"schedules {chip}", lambda chip=chip: schedules.table(load("schedules_tpu"), chip)
    yield "schedules choices", lambda: schedules.choices(load("schedules_tpu"))
    yield "schedules roofline", lambda: schedules.roofline_table(load("schedules_tpu"))
    yield "schedules h100", lambda: gpu.table(load("schedules_gpu"))
    yield "launches h100", lambda: launches.table(load("launches_gpu"))
    yield "device h200", lambda: device.page(H200, [item.name for item in worker.items(False)])
    yield "device in short", lambda: device.in_short(H200)
    yield "device kernels", lambda: device.kernels(H200)
    for dtype in agreement.DTYPES:
        yield f"agreement {dtype}", lambda dtype=dtype: agreement.table(load("agreement")["rows"], dtype)
    yield "pods", lambda: pods.table(load("pods")["rows"])
    yield "precision", lambda: precision.markdown(load("precision")["reached"])
    yield "inference", lambda: inference.table(load("inference")["rows"] + load("inference_cifar100")["rows"])
    yield "flops settings", lambda: flops.settings_table(studied("flops")["settings"])
    yield "flops averages", lambda: flops.averages_table(studied("flops")["averages"])
    for table in (digits.TABLE, manual.TABLE):
        yield table.name, lambda table=table: table.markdown(load(table.name)["runs"])
    for name in translations.SETS:
        yield f"translation {name}", lambda name=name: translations.table(load(name)["runs"])
    yield "blocks", blocks
    yield "caches", caches
    for family in sorted({*families.families()} - {"channels"}):
        yield f"costs {family}", lambda family=family: families.table(family)
    yield "parity", lambda: parity(load("parity")["families"])
    yield "channel attention", lambda: channel_attention(load("cnn_digits")["runs"])
    yield "tour", tour
    yield "choosing", choices.needs
    yield "recall from a state", choices.states
    yield from of_evidence()


def of_evidence() -> Iterator[tuple[str, Callable[[], str]]]:
    """Yields the tables of the studies and of the ledger."""
    yield "declared", lambda: declared.table(full=False)
    yield "declared for a GPU", lambda: declared.table(full=True)
    yield "ledger main", ledger.main
    yield "ledger changes", ledger.changes
    yield "ledger marks", ledger.marks
    yield "ledger counts", ledger.counts
    yield "ledger evidence", ledger.evidence
    for paper in ledger.PAPERS:
        yield f"ledger {paper}", lambda paper=paper: ledger.table(paper)
    for name in replication.ALL:
        yield name, lambda name=name: replication.text(name)


def numbers() -> Iterator[tuple[str, str]]:
    """Yields the names and texts of the numbers in sentences."""
    yield from of_the_machine()
    yield from of_the_gpu()
    yield from of_training_and_translation()
    yield from of_inference()
    yield from choices.numbers()
    yield from of_operations()
    yield from schedules.numbers(load("schedules_tpu"))
    for row in load("llama")["decoding"] + load("llama_16")["decoding"]:
        yield f"llama {row['batch']}", f"{row['times_faster']['transformers']['median']:.2f}"
    for name, setting in (
        ("dot_product", "dot_product"),
        ("neural(dim=2)", "neural(dim=2)|dot_product"),
        ("neural(dim=2) everywhere", "neural(dim=2)"),
    ):
        yield f"gpt_tuned {name}", f"{mean_reached('gpt_tuned', setting, 'perplexity'):.1f}"
    for spec in ("dot_product", "neural(dim=2)|dot_product"):
        yield f"cifar100 {spec.partition('|')[0]}", f"{100 * mean_reached('cifar100_neural', spec, 'accuracy'):.1f} %"
    for spec in ("dot_product", "neural"):
        reached = [100 * run["best"]["test"]["accuracy"] for run in load("digits")["runs"][spec]]
        yield f"digits {spec}", f"{mean(reached):.1f}"
    lead = ledger.judged("imdb")["super, over heads"].number(METRICS["accuracy"])
    yield "imdb lead", f"{100 * lead.value:.3f} ± {100 * lead.spread:.2f}"
    yield "ledger rows", str(len(ledger.claims()))
    baseline = mean_reached("mnist_tuned", "dot_product", "accuracy", **{"model.heads": 4})
    yield "mnist_tuned dot_product", f"{100 * baseline:.2f} %"
    yield "digits neural lead", lead_on_digits("neural")
    lead = ledger.judged("cifar100_neural")["d' = 2 in the first layer"].number(METRICS["accuracy"])
    yield "cifar100 lead", str(lead)
    most = studied("wikitext2_mlm")["runs"][0]["results"][0]["baselines"]["most_frequent_accuracy"]
    yield "mlm most frequent", f"{100 * most:.2f} %"
    captions = load("caption_digits")["runs"][0]["results"][0]
    yield "captions best", f"{100 * captions['best']['test']['exact_match']:.1f} %"


def blocks() -> str:
    """Compares GPTs with two kinds of blocks at the end of the faster one, by linear interpolation, and of each."""
    curves: dict[int, dict[str, Any]] = {}
    for group in finished.find([ROOT / "benchmarks/results/gpt_blocks_cpu.json"]).groups:
        name = "gpt_modern_pydoc" if group.settings["model.norm_type"] == "rms" else "gpt_pydoc"
        for run in group.runs:
            curves.setdefault(run.seed, {})[name] = run.curve("bits_per_byte")
    ends = {seed: min(curve[-1][1] for curve in both.values()) for seed, both in curves.items()}
    lines = []
    for name in ("gpt_pydoc", "gpt_modern_pydoc"):
        bits = []
        for seed, end in ends.items():
            _, seconds, values = zip(*curves[seed][name], strict=True)
            bits.append(float(np.interp(end, seconds, values)))
        last = mean(both[name][-1][2] for both in curves.values())
        lines.append((f"`{name}`", f"{mean(bits):.3f} ({min(bits):.3f} to {max(bits):.3f})", f"{last:.3f}"))
    when = f"when the faster ended, after {min(ends.values()):.0f} to {max(ends.values()):.0f} s"
    return plain_markdown(("bits per byte of validation text, mean and range", when, "after all steps, mean"), lines)


def parity(families: dict[str, dict[str, dict[str, float]]]) -> str:
    """Compares published models' families with those of transformers."""
    rows = (
        (f"`{name}`", what, f"{row['largest']:.1f}", f"{row['difference']:.1e}")
        for name, compared in families.items()
        for what, row in compared.items()
    )
    return plain_markdown(("family of `transformers`", "compared", "largest value", "largest difference"), rows)


def cores() -> dict[str, dict[str, Any]]:
    """Reads the rows of attention's forward and backward pass, by name."""
    return {row["name"]: row for row in load("attention")["forward+backward"]}


def of_the_machine() -> Iterator[tuple[str, str]]:
    """Yields the machine's limits, and the memory of the longest sequence."""
    roof, longest = load("attention")["roof"], load("attention")["growth"][-1]["cores"]
    yield "roof GFLOP/s", f"{roof['flops'] / 1e9:.0f}"
    yield "roof GB/s", f"{roof['bandwidth'] / 1e9:.0f}"
    yield "longest neural MB", f"{longest['neural, chunked']['temp_bytes'] / 1e6:.0f}"
    yield "longest jax.nn GB", f"{longest[attention.BASELINE]['temp_bytes'] / 1e9:.0f}"


def of_the_gpu() -> Iterator[tuple[str, str]]:
    """Yields how many checks are right, and ratios of times."""
    done = [name for name, row in device.read(H200)["rows"].items() if "error" in row and device.state(row) == "done"]
    yield "device right", f"{len(done)}"
    names = [item.name for item in worker.items(False) if item.name.startswith("right")]
    states = collections.Counter(device.state(device.read(H200)["rows"].get(name)) for name in names)
    for state in ("wrong", "refused", "left"):
        yield f"device right {state}", f"{states[state] or 'none'}"
    yield "device kernels right", f"{sum(', pallas, ' in name for name in done)}"
    found = device.ratios(H200)
    neural = [ratio["seconds"] for (_, name, _), ratio in found.items() if name == NEURAL]
    yield "device neural", f"{min(neural):.1f} to {max(neural):.1f}"
    fla = "flash-linear-attention, "
    slower = [
        found[shape, f"{name.removeprefix(fla)}, chunked", what]["seconds"] / ratio["seconds"]
        for (shape, name, what), ratio in found.items()
        if name.startswith(fla)
    ]
    yield "device recurrences", f"{min(slower):.0f} to {max(slower):.0f}"


def speed_in_short() -> str:
    """Tabulates speed in short."""
    baseline, ours, neural = (cores()[n] for n in (attention.BASELINE, "dot_product, chunked", "neural, chunked"))
    same = measure.spread(ours["ratios"][attention.PYTORCH])
    pytorch, jax = (measure.spread(neural["ratios"][name]) for name in (attention.PYTORCH, attention.BASELINE))
    memory = baseline["temp_bytes"] / neural["temp_bytes"]
    gpt = layers_of("gpt")["neural(dim=2)"]
    faster = [row["times_faster"]["median"] for row in load("translation")["searches"]]
    of = "of 1,024 tokens, forward and backward"
    layer = f"`neural(dim=2)` {of}"
    on_gpu = device.ratios(H200)
    forward, both = (on_gpu[device.OF_SHORT, NEURAL, what]["seconds"] for what in attention.PASSES)
    rows = (
        (f"`dot_product` {of}", "PyTorch's fused dot product", f"{same} × the time"),
        (layer, "PyTorch's fused dot product", f"{pytorch} × the time"),
        (layer, "the dot product of `jax.nn`", f"{jax} × the time, 1/{memory:.0f} of the memory"),
        (
            "a training step of a GPT with `neural(dim=2)` in all 8 layers",
            "the same GPT with `dot_product`",
            f"{gpt['ratio']['median']:.2f} × the time, {gpt['temp_ratio']:.2f} × the memory",
        ),
        (
            "translating with a Marian of opus-mt's size",
            "Hugging Face on PyTorch",
            f"{1 / max(faster):.2f} to {1 / min(faster):.2f} × the time, with the same tokens",
        ),
        (
            "on an H200, `neural(dim=2)` of 4,096 tokens in bfloat16",
            "cuDNN's dot product",
            f"{forward:.1f} × the time forward, {both:.1f} × forward and backward",
        ),
    )
    return plain_markdown(("what", "against", "measured (below 1 is faster)"), rows)


def attention_in_short(rows: dict[str, dict[str, Any]]) -> str:
    """Compares dot product, neural and additive attention with the baselines."""
    baselines = {
        "time × PyTorch's fused dot product": attention.PYTORCH,
        "× `jax.nn`'s": attention.BASELINE,
        "× our own tiled one": attention.OWN,
    }
    names = {
        "dot_product": "`dot_product`",
        "neural": "`neural(dim=2)`, hidden (2, 1)",
        "neural(dim=16)": "`neural(dim=16)`, hidden (16, 8)",
        "neural(dim=None)": "`neural(dim=None)`, hidden (64, 32)",
        "additive": "`additive`, 64 tanh units",
    }
    lines = []
    for spec, name in names.items():
        row, paper = rows[f"{spec}, chunked"], rows.get(f"{spec}, paper")
        times = (measure.spread(row["ratios"][baseline]) for baseline in baselines.values())
        memory = f"{row['temp_bytes'] / rows[attention.BASELINE]['temp_bytes']:.3f}"
        slower = ""
        if paper:
            of_own, needs = paper.get("ratios", {}).get(row["name"]), paper["temp_bytes"] / 1e9
            slower = f"{of_own['median']:.0f}" if of_own else f"not run, it needs {needs:.0f} GB"
        lines.append((name, *times, memory, slower))
    titles = ("forward + backward", *baselines, "memory × `jax.nn`", "the paper's form takes … times as long")
    return plain_markdown(titles, lines)


def attention_work(rows: dict[str, dict[str, Any]]) -> str:
    """Tabulates the useful work of tiled attention, and its speed as a share of a large product's."""
    names = {
        "dot_product": "dot product",
        "neural": "neural, d′ = 2",
        "neural(dim=16)": "neural, d′ = 16",
        "neural(dim=None)": "neural, no projection",
        "additive": "additive",
    }
    lines = []
    for spec, name in names.items():
        row = rows[f"{spec}, chunked"]
        speed, share = f"{row['flops_per_second'] / 1e9:.0f}", f"{100 * row['roofline']:.0f}"
        lines.append((name, f"{row['flops'] / 1e9:.1f}", speed, share))
    return plain_markdown(("core", "GFLOP", "GFLOP/s", "% of a large matrix product"), lines)


def gpt_in_short() -> str:
    """Compares a GPT with neural attention in every layer with the paper's, which has one such layer."""
    rows, lines = layers_of("gpt"), []
    base = rows["dot_product"]["paper"]
    for name, spec in (("2", "neural(dim=2)"), ("16", "neural(dim=16)"), ("no projection", "neural(dim=None)")):
        ours, paper = rows[spec], rows[f"{spec}|dot_product"]["paper"]
        ratios = (ours["ratio"]["median"], ours["temp_ratio"], paper[1] / base[1], paper[0] / base[0])
        lines.append((name, *(f"{ratio:.2f} ×" for ratio in ratios)))
    return plain_markdown(("d′", "time, ours", "memory, ours", "time, the paper", "memory, the paper"), lines)


def layers_of(model: str) -> dict[str, dict[str, Any]]:
    """Reads the rows of a whole model, by the attention in its layers."""
    return {row["attention"]: row for row in load("layers")[model]}


def of_training_and_translation() -> Iterator[tuple[str, str]]:
    """Yields the numbers of training steps in other stacks, and of Marian."""
    stacks, loop = load("train_step")["stacks"], load("train_step")["loop"]["loop_over_step"]
    for name in ("keras", "torch"):
        yield f"train_step {name}", f"{stacks['ratio_to_bench'][name]:.1f}"
    yield "train_step loop", f"{loop['median']:.3f} ({loop['min']:.3f} to {loop['max']:.3f} in single rounds)"
    yield "train_step loop %", f"{100 * (loop['median'] - 1):.1f}"
    losses = load("gpt_step")["stacks"]["losses"]
    apart = max(abs(a - b) for name in losses for a, b in zip(losses[name], losses["bench"], strict=True))
    yield "gpt_step losses", f"{apart:.2f}"
    translation = load("translation")
    yield "translation weights", f"{translation['searches'][0]['weight_bytes_a_step'] / 1e6:.0f}"
    times = [row["times_faster"]["median"] for row in translation["searches"]]
    yield "translation times faster", f"{min(times):.1f} to {max(times):.1f}"
    yield "translation bandwidth", f"{100 * translation['searches'][0]['of_bandwidth']:.0f}"
    yield "translation cache", measure.spread(translation["again"]["times_faster"])
    yield "translation training", measure.spread(translation["training"]["times_faster"])
    yield "translation training in short", f"{translation['training']['times_faster']['median']:.2f}"
    for name, speed in translation["training"]["tokens_per_second"].items():
        yield f"translation training {name}", f"{speed:,.0f}"
    yield "translation gaussian", measure.spread(translation["projection"]["gaussian_over_dot_product"])
    yield "translation gaussian paper", f"{translation['projection']['paper']:.2f}"


def mean_reached(name: str, spec: str, metric: str, split: str = "test", **fields: int) -> float:
    """Computes the mean over seeds of a study's metric at the best evaluation of each kept run."""
    fields = {"model.attention": spec, **fields}
    (group,) = [group for group in ledger.found(name).groups if fields.items() <= group.settings.items()]
    return mean(run.value(metric, split) for run in group.runs)


def lead_on_digits(spec: str) -> str:
    """Computes a mechanism's paired lead over dot product in test accuracy, in points with its interval."""
    ours, baseline = (
        np.array([run["best"]["test"]["accuracy"] for run in load("digits")["runs"][name]])
        for name in (spec, "dot_product")
    )
    lead = statistics.paired(ours, baseline)
    return str(Number(float(lead.mean), METRICS["accuracy"], float(lead.half_width), sign="+"))


def tour() -> str:
    """Compares the two mechanisms of the tour, as the report does."""
    kept = finished.find([ROOT / "benchmarks/results/tour_cpu.json"])
    return markdown(comparison.report(kept).differences).strip()


def channel_attention(kept: Sequence[dict[str, Any]]) -> str:
    """Compares attention of feature maps in the residual CNN on the digits."""
    results = {run["config"]["model.attention"]: run["results"][0] for run in kept}
    titles = ("`model.attention`", "parameters", "MFLOP to train on an image", "test accuracy at the best step, %")
    lines = []
    for spec in ("none", "squeeze_excitation(ratio=4)", "spatial", "cbam(ratio=4)"):
        result = results[spec]
        accuracies = (f"{100 * result[step]['test']['accuracy']:.2f}" for step in ("best", "final"))
        flops_of_image = f"{result['training_flops_per_example'] / 1e6:.2f}"
        lines.append((f"`{spec}`", f"{result['parameters']:,}", flops_of_image, *accuracies))
    return plain_markdown((*titles, "at the last, %"), lines)


def of_inference() -> Iterator[tuple[str, str]]:
    """Yields ratios for the models in which attention is a visible share of the work, all but IMDB's."""
    rows = [row for file in ("inference", "inference_cifar100") for row in load(file)["rows"]]
    for spec in ("optimised", "efficient", "super"):
        medians = sorted(
            row["ratio"]["median"] for row in rows if row["attention"] == spec and row["task"] != "classify_imdb"
        )
        first = int(spec == "efficient")  # one line, whose rounds scatter, is reported by itself
        yield f"inference {spec}{' but for the least' * first}", f"{medians[first]:.2f} to {medians[-1]:.2f}"
        yield f"inference {spec} least", f"{medians[0]:.2f}"


def of_operations() -> Iterator[tuple[str, str]]:
    """Yields by how much standard exceeds Efficient Attention at the papers' sizes."""
    ratios = [row["excess"] for row in studied("flops")["settings"].values()]
    counted = [100 * row[count] for row in ratios for count in ("analytic", "compiled")]
    yield "flops excess", f"{min(counted):.0f} to {max(counted):.0f} %"


def caches() -> str:
    """Tabulates the bytes of mechanisms' decode caches in bfloat16, for width 2,048 and 16 heads."""
    whole, _ = mechanisms.cache_bytes("dot_product", 2048, 16)
    rows = []
    for spec in CACHED:
        token, sequence = mechanisms.cache_bytes(spec, 2048, 16)
        share = f"{100 * token / whole:.1f} %" if token else ""
        rows.append((f"`{spec}`", *(f"{held:,}" if held else "" for held in (token, sequence)), share))
    return plain_markdown(("mechanism", "bytes a token", "bytes a sequence", "of `dot_product`"), rows)


@functools.cache
def figures() -> dict[str, Callable[[], str]]:
    """Collects the functions that make tables and numbers, by name."""
    return dict(tables()) | {name: lambda text=text: text for name, text in numbers()}


def written(text: str) -> str:
    """Replaces all figures of a page by those of the files.

    Raises:
      UsageError: A mark names a figure that does not exist.
    """

    def between(match: re.Match[str]) -> str:
        if match["name"] not in figures():
            raise unknown("figure", match["name"], figures())
        made = figures()[match["name"]]()
        return match["mark"] + (f"\n\n{made}\n\n" if "\n" in made else made) + "<!-- end -->"

    return FIGURE.sub(between, text)


@cli.program(__doc__)
def main(_: argparse.Namespace) -> None:
    """Writes all pages, and the ledger as CSV."""
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
    ledger.write_csv(KEPT / "ledger.csv")


if __name__ == "__main__":
    sys.exit(main())
