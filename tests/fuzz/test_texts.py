"""Whatever is typed is understood, or told to be a mistake in one short sentence: overrides, specs, configs, flags."""

import functools
import importlib

from hypothesis import strategies as st

from attention.kernels.call import parse_implementation
from attention.specs import parse
from models.mechanisms import MECHANISMS, PROJECTIONS, resolve
from tests.fuzz.harness import TEXTS, VALUES, answers, changed, fuzzed
from train import loading, sweep
from train.config.durations import Duration
from train.config.timetable import Timetable
from train.data import sources, tokenisers
from train.data.images import transforms
from train.data.splits import Split
from train.grids import sweeping
from train.loading.leaves import LEAVES

CONFIGS = [
    f"configs/{name}.py" for name in ("vit_digits", "cnn_digits", "gpt_pydoc", "translate_dates", "seq2seq_dates")
]
PROGRAMS = ("train.main", "train.sweep", "train.evaluate", "train.generate", "train.translate", "analysis.report")
NAMES = st.sampled_from([*MECHANISMS, "nothing", "None", "__class__"])
NAMED = ("kv_heads", "dim", "hidden", "scale", "normaliser", "sigma", "align", "per_head", "window", "x", "size")
OPTIONS = st.sampled_from([*PROJECTIONS, *NAMED])
ITEMS = st.builds(
    lambda name, options: f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})",
    NAMES,
    st.dictionaries(OPTIONS, VALUES.filter(lambda value: len(str(value)) < 1000), max_size=2),
)
COUNTED = st.builds("{}*{}".format, NAMES | ITEMS, st.sampled_from([0, 1, 2, 1000, -1, "x"]))
LISTED = st.lists(NAMES | ITEMS | COUNTED, min_size=1, max_size=4).map("|".join)
SPECS = LISTED | LISTED.map("cycle({})".format) | TEXTS


@functools.cache
def plain(config):
    return loading.load(config).to_dict()


def timed(config):
    """A config as far as it is understood before there are data."""
    made = loading.validate(config)
    return Timetable.of(made, 1000)


@fuzzed(config=st.sampled_from(CONFIGS), field=st.sampled_from([*LEAVES, "", "model", "a.b"]) | TEXTS, text=TEXTS)
def test_overrides(place, config, field, text):
    answers(loading.resolve, config, {field: text})


@fuzzed(config=st.sampled_from(CONFIGS), data=st.data())
def test_configs(place, config, data):
    answers(timed, data.draw(changed(plain(config))))


@fuzzed(spec=SPECS)
def test_mechanisms(place, spec):
    answers(resolve, spec, 3)


@fuzzed(text=TEXTS | SPECS)
def test_other_specs(place, text):
    for read in (parse, transforms.parse, tokenisers.check, parse_implementation):
        answers(read, text)
    for kind in ("images", "text", "pairs", "captions"):
        answers(sources.checker(kind), text, "data.source")
    duration = answers(Duration.parse, text, "train.length")
    if duration:
        answers(duration.steps, 32, 1000)
    split = answers(Split.parse, text)
    if split:
        answers(split.bounds, 1000)


@fuzzed(
    program=st.sampled_from(PROGRAMS),
    words=st.lists(
        st.sampled_from(["--config", "--workdir", "--seeds", "--over", "--step", "--replica", "--", "-x"]) | TEXTS,
        max_size=4,
    ),
    values=st.lists(TEXTS, max_size=2),
)
def test_command_lines(place, program, words, values):
    arguments = [f"{word}={value}" for word, value in zip(words, values, strict=False)] + words[len(values) :]
    if not {"--help", "-h"} & set(arguments):
        module = importlib.import_module(program)
        parser = getattr(module, "parser", None) or module.main.parser
        answers(parser().parse_args, arguments)


@fuzzed(
    field=st.sampled_from(["model.depth", "model.attention", "optimizer.learning_rate", "config.argument"]) | TEXTS,
    values=TEXTS,
    flag=st.sampled_from(["over", "also", "tune"]),
)
def test_sweeps(place, field, values, flag):
    given = [f"--{flag}={field}={values}", "--workdir=x", "--config=configs/vit_digits.py"]
    answers(lambda: sweeping.asked(sweep.main.parser().parse_args(given)))
