"""Short runs of every family of models: after a change, their numbers must be bit for bit what they were before.

python -m tests.bit_for_bit record /tmp/before
python -m tests.bit_for_bit compare /tmp/before gpt seq2seq

`record` writes what the runs give, a number a line, to `DIR/FAMILY.txt`. `compare` runs them again and prints a line a
family: `same`, or the first line that differs. The runs are command lines of `train.main`, and nothing of the product
is imported, so both work whatever moves inside it. Compiled programs stay in `DIR/compiled`, tokenised text does not.
Both recordings must be made on the same machine with the same packages.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LENGTH = "6steps"
EVERY = "train.log_every=2steps train.eval_every=3steps train.checkpoint_every=3steps optimizer.warmup=2steps"
BLOCKS = "model.depth=2 model.width=16 model.heads=2 model.mlp=32"
TEXT = f"{BLOCKS} data.context=32 data.validation_split=validation[:5%] data.test_split=test[:5%]"
DATES = (
    "data.source=dates(sources=('en',),targets=('fr',)) data.validation_split=validation[:64] data.test_split=test[:64]"
    " data.source_length=32 data.target_length=32 data.buckets=16 data.batch_size=16 data.translations=8"
)
FILES = (
    f"{BLOCKS} data.source=file:reviews.csv data.train_split=train[:60%] data.validation_split=train[60%:80%]"
    " data.test_split=train[80%:] data.classes=2 data.batch_size=16"
)
IWSLT = (
    f"{BLOCKS} model.decoder_depth=1 model.pretrained= {DATES} data.revision= data.source_column=source"
    " data.target_column=target data.source_tokeniser=bytes data.target_tokeniser= data.source_vocabulary=0"
    " data.target_vocabulary=0 data.beams=2"
)
ALL_OF_TRAIN = "train.precision=bfloat16 train.accumulate=2 train.ema=0.9 train.label_smoothing=0.1"

FAMILIES = {
    "vit": ("vit_digits.py:dot_product", BLOCKS),
    "super": ("vit_digits.py:super", BLOCKS),
    "neural": ("vit_digits.py:neural(dim=2)", BLOCKS),
    "gaussian": ("vit_digits.py:gaussian", BLOCKS),
    "gpt": ("gpt_pydoc.py", TEXT),
    "mlm": ("mlm_pydoc.py", f"{TEXT} data.tokeniser=bpe(size=300)"),
    "classifier": ("classify_imdb.py", FILES),
    "encoder_decoder": ("translate_dates.py", f"{BLOCKS} model.decoder_depth=1 {DATES}"),
    "marian": ("translate_iwslt.py:mlp_marian", IWSLT),
    "seq2seq": ("seq2seq_dates.py", f"model.embedding=16 model.hidden=16 {DATES}"),
    "cnn": ("cnn_digits.py", "model.stages=2 model.width=8"),
    "mesh": ("gpt_pydoc.py", f"{TEXT} mesh.fsdp=2 mesh.tensor=2"),
    "replicas": ("vit_digits.py:super", f"{BLOCKS} train.replicas=2"),
    "bfloat16": ("gpt_pydoc.py:neural(dim=2)", f"{TEXT} {ALL_OF_TRAIN}"),
    "resume": ("vit_digits.py:super", f"{BLOCKS} {ALL_OF_TRAIN} data.mixup=0.2"),
    "resume_text": ("gpt_pydoc.py", f"{TEXT} model.scan=True"),
}
CLOCKS = re.compile(r".*second.*|.*memory.*|versions|git")  # fields of what two equal runs may differ in


def run(family: str, folder: Path, programs: Path) -> list[str]:
    """Trains a family in `folder`, one that resumes in two processes; returns what came of it."""
    config, overrides = FAMILIES[family]
    rows = (f"{' '.join(f'w{n % 2}{n * place % 7}' for place in range(3 + n % 11))},{n % 2}" for n in range(200))
    (folder / "reviews.csv").write_text("\n".join(["text,label", *rows]))
    overrides = overrides.replace("file:", f"file:{folder}/")
    lengths = ("3steps", LENGTH) if family.startswith("resume") else (LENGTH,)
    for length in lengths:
        flags = [f"--config.{field}" for field in f"{overrides} {EVERY} train.length={length}".split()]
        command = [sys.executable, "-m", "train.main", f"--config=configs/{config}", f"--workdir={folder / family}"]
        subprocess.run(command + flags, env=environment(family, folder, programs), check=True, capture_output=True)
    return list(written(folder / family))


def environment(family: str, folder: Path, programs: Path) -> dict[str, str]:
    """One CPU, or eight for the mesh."""
    return os.environ | {
        "ATTENTION_BENCH_CACHE": str(folder / "cache"),
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={8 if family == 'mesh' else 1}",
    }


def written(workdir: Path) -> Iterator[str]:
    """The record, the result and the last parameters' digests of a finished run, a number a line."""
    for number, line in enumerate((workdir / "metrics.jsonl").read_text().splitlines(), 1):
        yield from flat(f"metrics {number}", json.loads(line))
    yield from flat("result", json.loads((workdir / "result.json").read_text()))
    last = max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name))
    digests = json.loads((last / "_CHECKPOINT_METADATA").read_text())["custom_metadata"]["content"]["digests"]
    yield from flat(f"checkpoint {last.name}", {k: v for k, v in digests.items() if k.startswith(("params/", "ema/"))})


def flat(name: str, value: Any) -> Iterator[str]:
    """A line for each number or text within `value`, but for the clocks."""
    if isinstance(value, list):
        value = {str(number): item for number, item in enumerate(value)}
    if not isinstance(value, dict):
        yield f"{name} = {value!r}"
        return
    for field in sorted(value):
        if not CLOCKS.fullmatch(field):
            yield from flat(f"{name} {field}", value[field])


def difference(before: list[str], after: list[str]) -> str:
    """The first line that differs; '' where none does."""
    pairs = itertools.zip_longest(before, after, fillvalue="nothing")
    return next((f"{old}; now {new}" for old, new in pairs if old != new), "")


def outcome(mode: str, directory: Path, family: str) -> str:
    """What is to be printed of one family; `same` or `recorded` where all is well."""
    file = directory / f"{family}.txt"
    if mode == "compare" and not file.exists():
        return f"{file} is not there; record it first"
    with tempfile.TemporaryDirectory() as folder:
        try:
            lines = run(family, Path(folder), directory.absolute() / "compiled")
        except subprocess.CalledProcessError as error:
            return f"failed: {error.stderr.decode().strip()[-1000:]}"
    if mode == "compare":
        return difference(file.read_text().splitlines(), lines) or "same"
    file.write_text("\n".join(lines) + "\n")
    return "recorded"


def main() -> int:
    """Runs the families one after the other; 1 where one failed or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("record", "compare"))
    parser.add_argument("directory", metavar="DIR", type=Path)
    parser.add_argument("families", metavar="FAMILY", nargs="*", help=f"all without one: {', '.join(FAMILIES)}")
    flags = parser.parse_args()
    if unknown := set(flags.families) - set(FAMILIES):
        parser.error(f"unknown {', '.join(sorted(unknown))}; the families are {', '.join(FAMILIES)}")
    flags.directory.mkdir(parents=True, exist_ok=True)
    well = True
    for family in flags.families or FAMILIES:
        started = time.monotonic()
        said = outcome(flags.mode, flags.directory, family)
        print(f"{family}: {said} ({time.monotonic() - started:.0f} s)", flush=True)
        well &= said in ("same", "recorded")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
