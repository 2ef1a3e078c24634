"""Compiled programs from disk give the same numbers, and no damage to the folder stops or changes a run."""

import os
import resource
import zlib

import pytest

from tests.storm import assert_same
from tests.train.conftest import RESUMED, arguments, kill_9
from train.mesh import compilation

COMPILE = """
from train.mesh import compilation
compilation.keep_programs()
import jax
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
print(int(jax.jit(lambda x: x + 1)(41)))
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Sets the user's cache folder, and removes JAX's own settings."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)
    monkeypatch.setenv("ATTENTION_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "compiled"


def whole(path):
    """Decompresses a program's file; raises a zlib.error if it is damaged."""
    return zlib.decompress(path.read_bytes())


@pytest.mark.more
def test_a_killed_run_goes_on_bit_for_bit_with_programs_from_disk_some_of_them_damaged(
    cache, tmp_path, run_python, monkeypatch
):
    command = arguments(tmp_path / "run", **RESUMED)
    kill_9(5, *command)
    programs = sorted(cache.glob("*-cache"), key=lambda path: path.stat().st_size)
    assert all(map(whole, programs))
    *_, flipped, largest = programs
    flipped.write_bytes(flipped.read_bytes()[:-2] + b"??")
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    again = run_python("-m", "train.main", *command)
    assert "Continuing after step" in again.stdout
    assert again.stderr == ""
    left = [*cache.glob("*-cache")]  # what makes initial values is not needed again
    assert largest in left
    assert all(map(whole, left))

    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    monkeypatch.setenv("ATTENTION_BENCH_CACHE", str(tmp_path / "none"))
    run_python("-m", "train.main", *arguments(tmp_path / "fresh", **RESUMED))
    assert not (tmp_path / "none" / "compiled").exists()
    assert_same(tmp_path / "run", tmp_path / "fresh")


def test_a_folder_that_cannot_be_written_is_one_line_and_stops_nothing(cache, run_python):
    cache.parent.write_text("a file")
    done = run_python("-c", COMPILE)
    assert done.stdout == "42\n"
    assert done.stderr.startswith(f"Compiled programs cannot be kept in {cache}")
    assert done.stderr.count("\n") == 1


def test_a_disk_that_fills_up_later_stops_nothing(cache, run_python):
    limit = 100  # bytes of a file: what the check writes fits, a program does not
    done = run_python("-c", COMPILE, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert (done.stdout, done.stderr) == ("42\n", "")
    (program,) = cache.glob("*-cache")
    assert program.stat().st_size <= limit
    compilation.tidy(cache)
    assert not program.exists()


@pytest.mark.more
def test_jaxs_own_settings_come_first(cache, run_python, tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "theirs"))
    run_python("-c", COMPILE)
    assert not cache.exists()
    assert list((tmp_path / "theirs").glob("*-cache"))


def test_of_too_much_the_oldest_go(tmp_path):
    for age, name in enumerate(["new", "old", "older"]):
        path = tmp_path / f"{name}-cache"
        path.write_bytes(zlib.compress(os.urandom(1000)))
        os.utime(path, (1e9 - age, 1e9 - age))
    compilation.tidy(tmp_path, most=2500)
    assert sorted(path.name for path in tmp_path.glob("*-cache")) == ["new-cache", "old-cache"]
