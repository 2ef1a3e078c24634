"""The program for GPUs and TPUs: what it covers, that it sees what is wrong, and that a crash loses no row."""

import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import time
import types
import warnings

import jax
import numpy as np
import pytest

import attention
from attention import mesh
from attention.errors import UsageError
from attention.kernels import choose, cudnn, fused, loops, mlp, xla
from benchmarks.device import __main__ as program
from benchmarks.device import about, core, processes, record, report, right, timing, worker
from benchmarks.device.items import GROUPS, Item
from benchmarks.device.processes import Session, TimeIsUp, Watch
from tests.conftest import ROOT

H100 = types.SimpleNamespace(platform="cuda", compute_capability="9.0")
RESULT = ROOT / "benchmarks/results/device_h200.json"


def test_checks_cover_each_kind_of_implementation_in_at_most_200_programs_of_a_gpu():
    checks = right.checks()
    assert len(checks) <= 200
    for implementation, least in {"xla": 30, "chunked": 50, "cudnn": 20, "pallas": 14, "fused": 24}.items():
        of_it = [c for c in checks if implementation in (c.kind, c.implementation)]
        of_it = [c for c in of_it if implementation == "fused" or c.kind != "fused"]
        masks = set(right.MASKS) - ({"dense"} if implementation in ("pallas", "fused") else set())
        lengths = {n + n % 2 for n in right.LENGTHS} if implementation == "cudnn" else set(right.LENGTHS)
        assert len(of_it) >= least
        assert {c.mask for c in of_it} == masks
        assert {c.length for c in of_it} == lengths
        assert {c.grouped for c in of_it} == {True, False}
        assert {c.dropped for c in of_it} == ({False} if implementation == "cudnn" else {True, False})
    spelt = {c.length for c in checks if c.implementation == "cudnn" and c.mask == "dense"}
    assert spelt >= {64, 192}  # T mod 128 = 64
    assert all(check.spec in right.DEAR for check in checks[-8:])


def test_every_mechanism_is_checked_in_every_implementation():
    found = {(check.mechanism.score, check.implementation) for check in right.checks()}
    for spec in right.SPECS:
        score = right.mechanism_of(spec).score
        assert {name for at, name in found if at == score} == set(score.implementations) - {"reference"}


@pytest.mark.more
@pytest.mark.parametrize("implementation", ["xla", "chunked", "pallas", "fused"])
def test_a_gpu_takes_what_is_checked_on_it(implementation):
    for check in right.checks():
        network = check.spec in right.NETWORKS and check.spec != "neural(dim=None)"  # too large for its kernel
        if check.kind == implementation and (implementation != "pallas" or network):
            with mesh.compiled_for(H100):
                jax.eval_shape(right.program(check, check.implementation, check.dtype), *right.arguments(check))


CHECK = right.Check("dot_product", "xla", "float32", 7, "causal lengths", grouped=True, dropped=True)


class Definition:
    """The definition, in this process."""

    def ask(self, check):
        pass

    def read(self, check):
        with jax.enable_x64(True):
            return right.flat(jax.jit(right.program(check, "reference", "float64"))(*right.arguments(check))) | {
                right.PLAIN: 0.0
            }


@pytest.mark.parametrize("factor", [1, 1.001, np.nan])
def test_what_is_wrong_is_found_wrong_and_nothing_else(monkeypatch, factor):
    product = choose.xla.attend
    monkeypatch.setattr(choose.xla, "attend", lambda call: (product(call)[0] * factor, None))
    row = right.prepare(CHECK, Definition())()
    assert right.is_wrong(row) == (report.state(row) == "wrong") == (factor != 1)


def test_a_wrong_gradient_is_named():
    wanted = {name: np.ones(3) for name in ("['out']", "['query']", "['key']")}
    row = right.errors(CHECK, wanted | {"['key']": np.array([1.0, 1.0, 1.001])}, wanted)
    assert row["worst"] == "['key']"
    assert row["error"] == pytest.approx(1e-3 / 3**0.5)


def test_noise_of_a_gradient_that_cancels_is_allowed():
    wanted = {"['out']": np.ones(3), "['weights']['bias']": np.zeros(3), "['weights']['kernel']": np.ones(3)}
    row = right.errors(CHECK, wanted | {"['weights']['bias']": np.full(3, 1e-7)}, wanted)
    assert row["error"] < right.LIMITS["float32"]


def test_times_are_sums_of_kernels_by_call():
    # Two calls of two kernels, of which the second overlaps the first by half.
    events = [(0.0, 10.0), (5.0, 10.0), (100.0, 20.0), (110.0, 20.0)]
    assert timing.busy(events) == pytest.approx(45e-9)
    assert timing.split(events, 2) == pytest.approx([15e-9, 30e-9])
    assert timing.split(events, 3) == pytest.approx([15e-9])  # the mean, where kernels do not divide among calls
    assert timing.split([], 3) == []


def trace(**planes):
    event = lambda pair: types.SimpleNamespace(start_ns=pair[0], duration_ns=pair[1])  # noqa: E731
    line = lambda name, pairs: types.SimpleNamespace(name=name, events=[event(pair) for pair in pairs])  # noqa: E731
    lines = {plane: [line(name, pairs) for name, pairs in found.items()] for plane, found in planes.items()}
    return types.SimpleNamespace(
        planes=[types.SimpleNamespace(name=name, lines=found) for name, found in lines.items()]
    )


def test_kernels_are_those_of_a_gpus_streams_or_a_tpus_programs():
    host = {"/host:CPU": {"Stream of thoughts": [(0, 1)]}}
    gpu = {"/device:GPU:0": {"Stream #7(Kernel)": [(1, 2)], "Steps": [(0, 9)]}}
    tpu = {"/device:TPU:0": {"XLA Modules": [(3, 4)], "XLA Ops": [(3, 1), (4, 1)]}}
    assert timing.kernels(trace(**host, **gpu)) == [(1, 2)]
    assert timing.kernels(trace(**gpu, **{"/device:GPU:1": {"Stream #7(Kernel)": [(5, 2)]}})) == [(1, 2)]
    assert timing.kernels(trace(**host, **tpu)) == [(3, 4)]
    assert timing.kernels(trace(**host)) == []


def test_pytorchs_names_around_kernels_are_no_kernels():
    event = lambda start, end, named, device="gpu": types.SimpleNamespace(  # noqa: E731
        time_range=types.SimpleNamespace(start=start, end=end), is_user_annotation=named, device_type=device
    )
    events = [event(1, 3, False), event(0, 9, True), event(0, 9, False, "cpu")]
    assert timing.on_device(events, "gpu") == [(1e3, 2e3)]


def items(*names, stack="jax"):
    return [Item(name, "core", stack, lambda: dict) for name in names]


def kept(tmp_path):
    return record.Results(tmp_path, {"command": "test"})


def test_a_record_goes_on_and_says_which_call_made_a_row(tmp_path):
    first = kept(tmp_path)
    first.add("core, a", {"seconds": 1.0})
    first.add("core, b", {"failed": "why"})
    second = record.Results(tmp_path, {"command": "again"})
    wanted = items("core, a", "core, b", "core, c")
    assert [item.name for item in second.missing(wanted, again=False)] == ["core, c"]
    assert [item.name for item in second.missing(wanted, again=True)] == ["core, b", "core, c"]
    second.add("core, b", {"seconds": 2.0})
    found = record.read(tmp_path / record.FILE)
    assert [call["command"] for call in found["calls"]] == ["test", "again"]
    assert {name: row["call"] for name, row in found["rows"].items()} == {"core, a": 0, "core, b": 1}


# Compiles all, measures what is called good, and dies of the others in different ways.
WORKER = """
import json, os, sys, time
names = json.load(sys.stdin)
say = lambda **line: print(json.dumps(line), flush=True)
starts = sys.argv[0] + ".starts"
open(starts, "a").write("x")
if "unable" in names[0]: raise SystemExit("there is no device")
if "late" in names[0] and os.path.getsize(starts) == 1: raise SystemExit("the device is taken")
say(about={"device": "pretended", "platform": "gpu"})
for name in names:
    say(compiling=name)
    if "compile" in name: os.kill(os.getpid(), 6)
    say(compiled=name)
for name in names:
    say(measuring=name)
    if "crash" in name: print("illegal address", file=sys.stderr, flush=True); os.kill(os.getpid(), 11)
    if "once" in name and len(names) > 1: raise SystemExit(3)
    if "sleep" in name: time.sleep(60)
    say(name=name, row={"failed": "spoilt"} if "spoils" in name else {"seconds": 1.0})
    if "spoils" in name: raise SystemExit(3)
if "best" in names: os.kill(os.getpid(), 6)
"""


def test_compiled_programs_come_back(tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "one").write_bytes(b"program")
    record.pack(tmp_path, programs)
    record.unpack(tmp_path, tmp_path / "again")
    assert (tmp_path / "again/one").read_bytes() == b"program"


def measured(tmp_path, names, seconds=30.0, tiny=False):
    """Measures these items in a session, and returns the rows."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    session = Session(kept(tmp_path), time.monotonic() + seconds, tiny, tmp_path, (sys.executable, str(script)))
    session.measure(items(*names))
    return session.results.rows


def test_what_crashes_is_named_and_the_rest_goes_on(tmp_path):
    rows = measured(tmp_path, ["good", "crash", "better", "once", "spoils", "compiles", "last"])
    assert {name for name, row in rows.items() if "seconds" in row} == {"good", "better", "once", "last"}
    assert rows["crash"]["failed"] == "The process was ended by SIGSEGV; illegal address"
    assert rows["compiles"]["failed"].startswith("The process was ended by SIGABRT")
    assert rows["spoils"]["failed"] == "spoilt"
    assert all("seconds" in row for row in measured(tmp_path / "..", ["good", "best"]).values())  # after its last row


def test_a_process_that_does_not_start_is_started_again_and_then_ends_the_session(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "AGAIN", 0.01)
    assert set(measured(tmp_path, ["late", "good"])) == {"late", "good"}
    with pytest.raises(UsageError, match="does not start: The process ended with exit code 1; there is no device"):
        measured(tmp_path / "..", ["unable", "better"])


def test_a_record_is_of_one_accelerator(tmp_path):
    first = kept(tmp_path)
    with pytest.raises(UsageError, match="finds no GPU or TPU here; --tiny tries the program itself"):
        first.about("jax", {"device": "cpu", "platform": "cpu"}, tiny=False)
    first.about("jax", {"device": "H100", "platform": "gpu"}, tiny=False)
    first.add("core, a", {"seconds": 1.0})
    with pytest.raises(UsageError, match="has results of H100, and this is H200; choose another --out"):
        kept(tmp_path).about("jax", {"device": "H200", "platform": "gpu"}, tiny=False)
    (tmp_path / record.FILE).write_text("{}")
    with pytest.raises(UsageError, match=r"is no record of benchmarks\.device; choose another --out\.$"):
        kept(tmp_path)


def test_the_time_ends_a_session_and_its_process(tmp_path):
    started = time.monotonic()
    assert set(measured(tmp_path, ["good", "sleep", "better"], seconds=1.5)) == {"good"}
    assert time.monotonic() - started < 10


def lines(*given):
    waiting = queue.Queue()
    for line in given:
        waiting.put(line if line is None else json.dumps(line).encode())
    return waiting


def test_a_process_that_says_nothing_is_given_up(tmp_path):
    watch = Watch(kept(tmp_path), "jax", patience=0.01)
    watch.read(measuring="core, a")
    assert "took longer than" in watch.follow(lines(), time.monotonic() + 60)
    assert watch.in_flight == ["core, a"]
    with pytest.raises(TimeIsUp):
        watch.follow(lines(), time.monotonic() - 1)


def test_errors_become_rows():
    for error, row in ((UsageError("no"), {"refused": "no"}), (ValueError("no"), {"failed": "ValueError: no"})):
        assert worker.outcome(worker._raising(error)) == row


def test_items_have_names_of_their_own_and_groups_in_order():
    for tiny in (True, False):
        found = worker.items(tiny)
        names = [item.name for item in found]
        assert len(set(names)) == len(names)
        assert [item.group for item in found] == sorted((item.group for item in found), key=GROUPS.index)
        assert all(item.name.startswith(item.group) for item in found)


def device(*arguments):
    command = [sys.executable, "-m", "benchmarks.device", "--tiny", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)


@pytest.mark.more
def test_a_list_needs_no_device(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "none of these")
    assert "core, roof, bfloat16" in device("--list").stdout


@pytest.mark.more
def test_a_second_call_does_nothing(tmp_path, capsys):
    arguments = ("--tiny", "--only", "core, roof", "core, method, jax", f"--out={tmp_path}")
    assert program.main(arguments) == 0
    first = capsys.readouterr().out
    assert first.startswith("0 of 3 items are measured already.")
    assert "| core | 3 |" in first
    rows = record.read(tmp_path / record.FILE)["rows"]
    assert rows["core, method, jax"].keys() >= {"slope", "ratio"}  # noise may turn the signs of such short chains
    assert program.main(arguments) == 0
    assert capsys.readouterr().out.startswith("3 of 3 items are measured already.")
    assert record.read(tmp_path / record.FILE)["rows"] == rows


@pytest.mark.more
def test_after_a_kill_the_next_call_goes_on(tmp_path):
    arguments = ["--tiny", "--only", "core, roof", "right, sigmoid", f"--out={tmp_path}"]
    items = [item.name for item in worker.items(True) if item.name.startswith(("core, roof", "right, sigmoid"))]
    killed = subprocess.Popen([sys.executable, "-m", "benchmarks.device", *arguments], cwd=ROOT, stdout=subprocess.PIPE)
    for line in killed.stdout:
        if b"sigmoid" in line:
            break
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    done = len(record.read(tmp_path / record.FILE)["rows"])
    again = device(*arguments[1:]).stdout
    assert 0 < done < len(items)
    assert again.startswith(f"{done} of {len(items)} items are measured already.")
    assert set(record.read(tmp_path / record.FILE)["rows"]) == set(items)


def test_a_misspelt_item_is_named(tmp_path, refused):
    assert "Unknown item 'cores'. Did you mean 'core'?" in refused(
        program.main, ["--only", "cores", f"--out={tmp_path}"]
    )


def contest(spec, implementation, seconds, length=1024):
    """Makes the rows of both passes."""
    shape, name = core.Shape(16, length, 32, 64, "bfloat16", True), f"{spec}, {implementation}"
    times = {"seconds": seconds, "least": seconds, "greatest": seconds}
    rows = {what: core.of_contest(shape, what, name, 1e9) | core.made_by(name) | times for what in core.PASSES}
    return {f"{name} {length} {what}": row for what, row in rows.items()}


def checked(spec, **state):
    score = right.mechanism_of(spec).score
    found = [c for c in right.checks() if c.mechanism.score == score and c.implementation == "pallas"]
    return {check.name: RIGHT | state for check in found}


RIGHT = {"error": 1e-7, "limit": 1e-5, "worst": "['out']"} | about.made_by("pallas")


def test_auto_takes_a_kernel_that_a_record_shows_to_be_right_and_faster():
    faster = contest("additive", "pallas", 1.0) | contest("additive", "chunked", 2.0)
    slower_once = faster | contest("additive", "pallas", 3.0, 4096) | contest("additive", "chunked", 2.0, 4096)
    forward = {name: row for name, row in faster.items() if row["pass"] == core.FORWARD}
    assert report.faster_on_gpu({"rows": faster | checked("additive")}) == {"additive"}
    right_ones, stale = checked("additive"), checked("additive", digest="another")
    wrong = checked("additive", error=1.0)
    for rows in (forward | right_ones, slower_once | right_ones, faster | stale, faster | wrong, faster):
        assert report.faster_on_gpu({"rows": rows}) == set()


def test_auto_takes_any_pair_fused_once_all_that_were_tried_are_right_and_faster_in_training():
    rows = {check.name: RIGHT for check in right.checks() if check.kind == "fused"}
    for spec in ("dot_product", *core.FUSED):
        assert not report.fused_pays_on_gpu({"rows": rows})
        rows |= contest(spec, "pallas", 1.0) | contest(spec, "chunked", 2.0)
    assert report.fused_pays_on_gpu({"rows": rows})
    wrong = next(name for name in rows if "sigmoid" in name)
    assert not report.fused_pays_on_gpu({"rows": rows | {wrong: RIGHT | {"error": 1.0}}})
    slower = {name: row for name, row in contest("alibi", "xla", 0.5).items() if row["pass"] == core.FORWARD}
    assert report.fused_pays_on_gpu({"rows": rows | slower})
    assert not report.fused_pays_on_gpu({"rows": rows | contest("alibi", "xla", 0.5)})


AMPERE = types.SimpleNamespace(platform="cuda", compute_capability="8.0")
LIKE_THE_RECORD = dataclasses.replace(CHECK, mask="causal", dtype="bfloat16", length=1024, grouped=False)


@pytest.mark.parametrize(
    ("chip", "options", "taken"),
    [
        (H100, {}, fused),
        (H100, {"dropped": False}, cudnn),
        (H100, {"length": 192}, xla),
        (H100, {"dtype": "float32"}, xla),
        (AMPERE, {}, xla),
        (H100, {"spec": "soft_cap"}, fused),
        (H100, {"spec": "soft_cap", "length": 192}, loops),
        (AMPERE, {"spec": "soft_cap"}, loops),
        (H100, {"spec": "neural"}, mlp),
        (H100, {"spec": "neural", "dtype": "float32"}, loops),
        (H100, {"spec": "neural(dim=16)"}, loops),
    ],
)
def test_auto_takes_kernels_only_for_calls_like_those_measured(monkeypatch, chip, options, taken):
    found = []
    monkeypatch.setattr(choose, "choose", lambda *given, chosen=choose.choose: found.append(chosen(*given)) or loops)
    check = dataclasses.replace(LIKE_THE_RECORD, **options)
    with mesh.compiled_for(chip):
        jax.eval_shape(right.program(check, "auto", check.dtype), *right.arguments(check))
    assert found == [taken]


def units(spec):
    """Counts the units of a pairwise score's layers, for heads of 64."""
    score = right.mechanism_of(spec).score
    weights = attention.init(score, jax.random.key(0), 2, 64, length=8)
    x = jax.numpy.zeros((1, 8, 2, 64))
    network = score.form(weights, x, x)
    first, *rest = *(kernel for kernel, _ in network.layers), network.vector
    return first.shape[-2 if rest else -1], *(kernel.shape[-1] for kernel, _ in network.layers)


def test_auto_on_gpus_is_what_the_record_says():
    found = record.read(RESULT)
    assert {units(spec) for spec in report.faster_on_gpu(found)} == choose.FASTER_ON_GPU
    assert report.fused_pays_on_gpu(found) == choose.FUSED_ON_GPU


@pytest.mark.parametrize("measured", [True, False])
def test_auto_on_a_gpu_takes_the_kernel_where_it_was_measured(monkeypatch, measured):
    monkeypatch.setattr(choose, "FASTER_ON_GPU", frozenset({(2, 1)} if measured else ()))
    taken = []
    monkeypatch.setattr(mlp, "attend", lambda call: taken.append(call) or loops.attend(call))
    check = dataclasses.replace(LIKE_THE_RECORD, spec="neural")
    with mesh.compiled_for(H100):
        jax.eval_shape(right.program(check, "auto", check.dtype), *right.arguments(check))
    assert bool(taken) == measured


def test_rows_of_an_earlier_kernel_are_listed():
    rows = contest("additive", "pallas", 1.0) | contest("dot_product", "cudnn", 1.0)
    assert report.current({"rows": rows}) == rows
    name, _ = contest("additive", "pallas", 1.0)
    rows[name]["digest"] = "another"
    assert rows.keys() - report.current({"rows": rows}) == {name}
    table = report.core_table(rows, ("bfloat16", 16, 1024, 32, 64))
    assert "additive, pallas †" in table
    assert "dot_product, cudnn |" in table


def test_what_a_kernel_imports_belongs_to_its_sources():
    names = {path.relative_to(ROOT / "attention").as_posix() for path in about.sources("pallas")}
    assert names >= {"kernels/mlp/gpu.py", "kernels/mlp/layers.py", "kernels/fused/planes.py", "dropout.py", "mask.py"}
    assert "kernels/choose.py" not in names  # which a record changes
    assert not names & {"kernels/mlp/tpu.py", "kernels/mlp/strips.py", "kernels/splash.py"}  # which no GPU runs
    assert len({about.digest(name) for name in (*about.ROOTS, "auto")}) == len(about.ROOTS) + 1


def test_the_short_table_names_what_is_wrong_and_what_is_left():
    names = ["right, a", "right, b", "core, c", "core, d"]
    rows = {
        "right, a": {"error": 0.5, "limit": 0.1, "worst": "['out']"},
        "right, b": {"refused": "not here"},
        "core, c": {"failed": "CUDA_ERROR_ILLEGAL_ADDRESS"},
    }
    text = report.short({"rows": rows}, names)
    assert "| right |  | 1 |  | 1 |  |  |" in text
    assert "- wrong: right, a: ['out'] is off by 5.0e-01, allowed is 1.0e-01" in text
    assert "- failed: core, c: CUDA_ERROR_ILLEGAL_ADDRESS" in text
    assert text.endswith("1 item is left; the same command continues.\n")


def test_the_record_on_the_page_is_whole():
    """Stale rows are listed, and marked on the page, until the next GPU is measured."""
    found = record.read(RESULT)
    if old := sorted(found["rows"].keys() - report.current(found)):
        warnings.warn(f"of an earlier version of our code: {', '.join(old)}", stacklevel=1)
    assert not [name for name in found["rows"] if report.state(found["rows"][name]) == "wrong"]
    assert all(call["git"] != "unknown" for call in found["calls"])
