"""Whatever happens to a checkpoint's files, what is restored is bit for bit what was saved, by it or an earlier one."""

import errno
import os
import random
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from attention import UsageError
from train.run import digest
from train.run.checkpoints import Checkpoints, evaluated
from train.state import TrainState

STEPS = (2, 4, 6)


def state(step):
    draw = np.random.default_rng(step)
    params = {"kernel": jnp.asarray(draw.normal(size=(16, 8)), jnp.float32), "flags": jnp.arange(5) > 2}
    moments = {"mu": jnp.asarray(draw.normal(size=30), jnp.bfloat16)}
    return TrainState(jnp.int32(step), params, moments, {}, jnp.array(True))


def abstract():
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state(0))


def progress(step):
    return {"record_size": step, "best": {"step": 0, "value": -float("inf")}, "clock": {"seconds": 0.1 * step}}


def save(checkpoints, step, best=0):
    checkpoints.save(step, state(step), progress(step), [best])


def save_and_wait(checkpoints, step, best=0):
    save(checkpoints, step, best)
    checkpoints.wait()


def restored(workdir):
    """Restores a step, asserts that all of it is what was saved, and returns its number."""
    with Checkpoints(workdir, keep=2) as checkpoints:
        step, found, told = checkpoints.restore(abstract())
    assert step == int(found.step)
    for ours, saved in zip(jax.tree.leaves(found), jax.tree.leaves(state(step)), strict=True):
        assert ours.dtype == saved.dtype
        assert np.asarray(ours).tobytes() == np.asarray(saved).tobytes()
    assert told == progress(step)
    return step


def kernel(checkpoints, step):
    return checkpoints.load_params(step, abstract().params, averaged=False)["kernel"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("saved")
    (workdir / "checkpoints").mkdir()
    with Checkpoints(workdir, keep=2) as checkpoints:
        for step in STEPS:
            save(checkpoints, step)
    return workdir


@pytest.fixture
def workdir(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "run")


def files(workdir, step=6):
    return sorted(p for p in (workdir / "checkpoints" / str(step)).rglob("*") if p.is_file())


def assert_passed_over(workdir, capsys):
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("Checkpoint 6 is damaged (")
    assert line.endswith("; moved to damaged/; an earlier one is used.")
    assert (workdir / "damaged" / "6").is_dir()
    assert not (workdir / "checkpoints" / "6").exists()


def test_the_newest_few_stay(saved, capsys):
    assert sorted(p.name for p in (saved / "checkpoints").iterdir()) == ["4", "6"]
    assert restored(saved) == 6
    assert not capsys.readouterr().out


def cut(data):
    return data[: len(data) // 2]


def flip(data):
    place = random.Random(0).randrange(len(data)) if data else 0
    return data[:place] + bytes(byte ^ 4 for byte in data[place : place + 1]) + data[place + 1 :]


@pytest.mark.parametrize("damage", [cut, flip, None], ids=["truncated", "flipped", "missing"])
def test_damage_to_any_file_never_passes_for_good(saved, tmp_path, damage, capsys):
    passed_over = set()
    for number, file in enumerate(files(saved)):
        workdir = shutil.copytree(saved, tmp_path / str(number))
        file = workdir / file.relative_to(saved)
        file.write_bytes(damage(file.read_bytes())) if damage else file.unlink()
        if restored(workdir) == 4:
            assert_passed_over(workdir, capsys)
            passed_over.add(file.parent.name if len(file.name) == 32 else file.name)
    assert {"d", "manifest.ocdbt"} <= passed_over  # where arrays are; some files only repeat what others say
    assert damage is flip or {"_METADATA", "_CHECKPOINT_METADATA"} <= passed_over


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        ValueError("Error reading local file [os_error_code='5']"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes."),
        MemoryError(),
    ],
    ids=["disk", "tensorstore", "device", "host"],
)
def test_what_keeps_it_from_being_read_and_may_pass_is_no_damage(workdir, monkeypatch, error):
    def load(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(ocp, "load", load)
        with pytest.raises(UsageError, match=r"step 6 cannot be read now \(.*\), but it may be whole; fix that"):
            restored(workdir)
    assert restored(workdir) == 6


def test_a_folder_of_another_step_is_no_checkpoint_of_this_one(workdir, capsys):
    (workdir / "checkpoints" / "6").rename(workdir / "checkpoints" / "8")
    with (
        Checkpoints(workdir, keep=2) as checkpoints,
        pytest.raises(UsageError, match=r"step 8 cannot be read \(it is of step 6, though its folder is named 8\)"),
    ):
        kernel(checkpoints, 8)
    assert restored(workdir) == 4
    assert (workdir / "damaged" / "8").is_dir()
    assert "Checkpoint 8 is damaged (it is of step 6" in capsys.readouterr().out


def test_checkpoints_of_before_are_refused_and_stay(workdir, monkeypatch):
    with Checkpoints(workdir, keep=2) as checkpoints, monkeypatch.context() as patch:
        seal = digest.seal
        patch.setattr(digest, "seal", lambda content: seal({n: v for n, v in content.items() if n != "step"}))
        save_and_wait(checkpoints, 8)
    with pytest.raises(UsageError, match=r"are of an older version; choose another --workdir"):
        restored(workdir)
    assert (workdir / "checkpoints" / "8").is_dir()


def test_a_best_step_alone_is_evaluated_and_not_continued_from(workdir):
    with Checkpoints(workdir, keep=2) as checkpoints:
        checkpoints.save(8, evaluated(state(8)), None, [8])
        checkpoints.wait()
        assert checkpoints.steps() == [4, 6, 8]
        assert checkpoints.kept() == "the last good checkpoint is step 6"
        np.testing.assert_array_equal(kernel(checkpoints, 8), state(8).params["kernel"])
        averaged = state(10).replace(ema={"kernel": state(10).params["kernel"]})
        checkpoints.save(10, evaluated(averaged), None, [8, 10])
        checkpoints.wait()
        assert [checkpoints.shapes(step)["kernel"] for step in (6, 8, 10)] == [(16, 8)] * 3
    size = lambda step: sum(file.stat().st_size for file in files(workdir, step))  # noqa: E731
    assert size(8) < size(6)
    assert restored(workdir) == 6  # and comes to step 8 again
    assert sorted(p.name for p in (workdir / "checkpoints").iterdir()) == ["4", "6"]


def test_an_empty_folder_is_passed_over(workdir, capsys):
    shutil.rmtree(workdir / "checkpoints" / "6")
    (workdir / "checkpoints" / "6").mkdir()
    assert restored(workdir) == 4
    assert_passed_over(workdir, capsys)


def test_what_is_no_checkpoint_is_left_alone(workdir, capsys):
    for name in ("notes", "12abc", "007", "-8"):
        (workdir / "checkpoints" / name).mkdir()
        (workdir / "checkpoints" / name / "mine").write_text("text")
    (workdir / "checkpoints" / "3").mkdir()  # older than what is restored, and no checkpoint
    (workdir / "checkpoints" / "README").write_text("text")
    assert restored(workdir) == 6
    with Checkpoints(workdir, keep=1) as checkpoints:
        save_and_wait(checkpoints, 8)
        assert checkpoints.steps() == [8]
    left = sorted(p.name for p in (workdir / "checkpoints").iterdir())
    assert left == sorted(["notes", "12abc", "007", "-8", "3", "8", "README"])
    assert not capsys.readouterr().out


def test_a_file_in_a_checkpoints_place_is_refused(workdir):
    (workdir / "checkpoints" / "8").write_text("text")
    with pytest.raises(UsageError, match=r"checkpoints/8 is a file, but .* move it elsewhere"):
        restored(workdir)


def test_what_a_kill_left_unfinished_is_not_read_and_goes(workdir):
    (workdir / "checkpoints" / "6").rename(workdir / "checkpoints" / "8.orbax-checkpoint-tmp")
    with Checkpoints(workdir, keep=2) as checkpoints:
        assert checkpoints.steps() == [4]
        assert (workdir / "checkpoints" / "8.orbax-checkpoint-tmp").is_dir()  # another process may be writing it
    assert restored(workdir) == 4
    assert [p.name for p in (workdir / "checkpoints").iterdir()] == ["4"]


def test_arrays_of_another_checkpoint_do_not_pass_for_its_own(workdir, capsys):
    folder, name = workdir / "checkpoints", "_CHECKPOINT_METADATA"
    own = (folder / "6" / name).read_bytes()
    shutil.rmtree(folder / "6")
    shutil.copytree(folder / "4", folder / "6")
    (folder / "6" / name).write_bytes(own)
    assert restored(workdir) == 4
    assert_passed_over(workdir, capsys)


def test_the_best_stays_however_old_until_another_is(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        for step, best in ((1, 1), (2, 1), (3, 1), (4, 1), (5, 5), (6, 5)):
            save_and_wait(checkpoints, step, best)
            assert checkpoints.steps() == sorted({best, step})


def test_parameters_alone_are_checked_too(workdir):
    data = max(files(workdir), key=lambda path: path.stat().st_size if path.parent.name == "d" else 0)
    with Checkpoints(workdir, keep=2) as checkpoints:
        np.testing.assert_array_equal(kernel(checkpoints, 6), state(6).params["kernel"])
        data.write_bytes(flip(data.read_bytes()))
        with pytest.raises(UsageError, match=r"The checkpoint of step 6 cannot be read \(.*; there are \[4, 6\]"):
            kernel(checkpoints, 6)


@pytest.mark.parametrize("size", [0, 100, 500])
def test_a_disk_that_takes_no_more_leaves_the_last_one_and_no_remains(workdir, files_up_to, size):
    with Checkpoints(workdir, keep=2) as checkpoints:
        files_up_to(size)
        with pytest.raises(UsageError, match=r"of step 8 could not .* \(File too large\); the last good .* is step 6"):
            save_and_wait(checkpoints, 8)
        files_up_to(resource.RLIM_INFINITY)
        assert sorted(p.name for p in (workdir / "checkpoints").iterdir()) == ["4", "6"]
    assert restored(workdir) == 6


def test_where_no_more_files_may_be_open_the_remedy_is_said(workdir, monkeypatch):
    def refused(*_, **__):
        raise ValueError(f"Failed to open: Too many open files [os_error_code='{errno.EMFILE}']")  # TensorStore's words

    monkeypatch.setattr(ocp, "save_async", refused)
    with (
        Checkpoints(workdir, keep=2) as checkpoints,
        pytest.raises(UsageError, match=r"\(Too many open files\); .* step 6: raise the limit \(ulimit -n\) and"),
    ):
        save(checkpoints, 8)


@pytest.mark.parametrize(("bad", "where"), [(jnp.nan, "params"), (jnp.inf, "opt_state")])
def test_numbers_that_are_not_finite_are_never_saved_and_the_last_good_one_is_named_and_stays(tmp_path, bad, where):
    broken = jax.tree.map(lambda x: x.at[0].set(bad) if jnp.issubdtype(x.dtype, jnp.inexact) else x, state(4))
    broken = state(4).replace(**{where: getattr(broken, where)})
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        save(checkpoints, 2)  # and is still being written
        with pytest.raises(
            FloatingPointError, match=rf"After step 4, .* such as {where}/.*; the last good .* step 2\."
        ):
            checkpoints.save(4, broken, progress(4), [4])
    assert restored(tmp_path) == 2


def test_a_folder_whose_name_is_not_in_utf8_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"^Checkpoints need a folder whose name is in UTF-8; rename .*caf\\udce9/run"):
        Checkpoints(tmp_path / os.fsdecode(b"caf\xe9") / "run", keep=1)
