"""Texts in the cache: their content, that they are made once or not at all, and full disks."""

import errno
import os
import resource
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from attention.errors import UsageError
from train.data.encodings import corpus
from train.data.encodings.cache import make_once
from train.data.encodings.corpus import tokenise
from train.data.sources.rows import Rows
from train.data.tokenisers import make

TEXTS = ["one two", "", "zwölf drei four", "five\n"]


def documents(texts=TEXTS, labels=None, content="abc", **fields):
    rows = [{"where": "", "text": text} | ({"label": labels[i]} if labels else {}) for i, text in enumerate(texts)]
    return Rows("train of test", content, lambda: iter(rows), **fields)


def build(cache_dir, *, tokeniser="bytes", end=False, **fields):
    return tokenise(documents(**fields), "text", make(tokeniser, TEXTS), end, cache_dir)


def left(folder):
    """Lists all files but locks, which stay."""
    return [path.name for path in folder.rglob("*") if path.name != "texts" and path.suffix != ".lock"]


class TestContent:
    def test_tokens_and_offsets_and_ends_that_are_no_bytes(self, tmp_path):
        text, sizes = build(tmp_path), [len(part.encode()) for part in TEXTS]
        assert bytes(text.ids[:].tolist()) == "".join(TEXTS).encode()
        assert text.sizes[:].tolist() == text.lengths[:].tolist() == sizes
        np.testing.assert_array_equal(text.token_offsets, np.cumsum([0, *sizes]))
        assert len(text) == 4
        text = build(tmp_path, end=True)
        np.testing.assert_array_equal(text.lengths[:], text.sizes[:] + 1)
        np.testing.assert_array_equal(text.ids[:][text.token_offsets[1:] - 1], 259)

    @pytest.mark.parametrize(("size", "dtype"), [(2**16, "uint16"), (2**16 + 1, "uint32")])
    def test_ids_are_as_small_as_they_can_be(self, tmp_path, size, dtype):
        tokeniser = make(f"words(size={size})", [" ".join(f"w{i}" for i in range(size))])
        last = tokeniser.decode([size - 1])
        ids = tokenise(documents([last]), "text", tokeniser, False, tmp_path).ids[:]
        assert (ids.dtype, ids.tolist()) == (dtype, [size - 1])

    def test_batches_do_not_show(self, tmp_path, monkeypatch):
        whole = build(tmp_path / "a")
        monkeypatch.setattr(corpus, "_BATCH_TEXTS", 3)
        monkeypatch.setattr(corpus, "_BATCH_CHARACTERS", 8)
        parts = build(tmp_path / "b")
        assert parts.content == whole.content
        for name in ("ids", "lengths", "sizes", "labels"):
            np.testing.assert_array_equal(getattr(whole, name)[:], getattr(parts, name)[:])

    def test_classes_are_part_of_the_content(self, tmp_path):
        text = build(tmp_path, texts=["x", "y", "z"], labels="bab")
        assert (text.class_names, text.labels[:].tolist()) == (("b", "a"), [0, 1, 0])
        text = build(tmp_path, texts=["x", "y", "z"], labels="bab", class_names=("a", "c", "b"))
        assert (text.class_names, text.labels[:].tolist()) == (("a", "c", "b"), [2, 0, 2])
        contents = [build(tmp_path, labels=labels, content=labels).content for labels in ("abab", "baba", "bbaa")]
        assert len(set(contents)) == 3
        assert build(tmp_path, labels="abab", content="elsewhere").content == contents[0]

    @pytest.mark.parametrize("texts", [[], ["", ""]])
    def test_no_text(self, tmp_path, texts):
        with pytest.raises(UsageError, match="There is no text in train of test"):
            build(tmp_path, texts=texts)
        assert left(tmp_path) == []


class TestCaching:
    def test_the_second_time_nothing_is_read(self, tmp_path):
        before = build(tmp_path)
        unread = Rows("x", "abc", lambda: pytest.fail("read again"))
        assert tokenise(unread, "text", make("bytes"), False, tmp_path) == before

    def test_keyed_by_content_tokeniser_and_ends(self, tmp_path):
        variants = [{}, {"content": "other"}, {"tokeniser": "words"}, {"end": True}, {"class_names": ("",)}]
        assert len({build(tmp_path, **variant).ids.path for variant in variants}) == len(variants)

    def test_memory_holds_one_batch_of_texts(self, tmp_path, monkeypatch):
        """A thousand texts pass through, and no more than three batches of them may live at a time."""

        class Text(str):
            pass

        alive, most = weakref.WeakSet(), 0

        def rows():
            nonlocal most
            for i in range(1000):
                text = Text(f"{i:04} " * 5)
                alive.add(text)
                most = max(most, len(alive))
                yield {"where": "", "text": text}

        monkeypatch.setattr(corpus, "_BATCH_TEXTS", 10)
        text = tokenise(Rows("long", "long", rows), "text", make("bytes"), False, tmp_path)
        assert len(text.ids) == 25_000
        assert most <= 30

    @pytest.mark.more
    def test_a_cache_that_can_only_be_read_is_read(self, tmp_path):
        made = build(tmp_path)
        for path in (tmp_path / "texts").glob("*.lock"):
            path.unlink()
        (tmp_path / "texts").chmod(0o500)
        assert build(tmp_path) == made


class TestInterruption:
    @pytest.mark.parametrize("error", [KeyboardInterrupt(), UsageError("bad line"), MemoryError()])
    def test_nothing_half_written_is_left(self, tmp_path, error):
        def rows():
            yield {"where": "", "text": "one"}
            raise error

        with pytest.raises(type(error)):
            tokenise(Rows("train of test", "abc", rows), "text", make("bytes"), False, tmp_path)
        assert left(tmp_path) == []
        assert len(build(tmp_path)) == 4

    @pytest.mark.parametrize(
        ("number", "message"),
        [
            (errno.ENOSPC, r"Cannot cache in .* \(No space left on device\): free some space there, or set data.cache"),
            (errno.EACCES, r"\(Permission denied\): fix that, or set data.cache_dir or ATTENTION_BENCH_CACHE"),
        ],
    )
    def test_a_disk_that_refuses(self, tmp_path, monkeypatch, number, message):
        def refuse(*args):
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(corpus, "_batches", refuse)
            with pytest.raises(UsageError, match=message):
                build(tmp_path)
        assert left(tmp_path) == []
        assert len(build(tmp_path)) == 4

    def test_a_limit_on_the_size_of_files(self, tmp_path):
        """The nearest to a full disk that needs no disk: writing fails half-way."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
        try:
            with pytest.raises(UsageError, match=r"\(File too large\): free some space there, or set data.cache_dir"):
                build(tmp_path, texts=["x" * 2**20] * 3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert left(tmp_path) == []


CHILD = """
import sys, time
from pathlib import Path
from train.data.encodings.cache import make_once

def build(partial):
    partial.write_text("half")
    print("building", flush=True)
    time.sleep(60)

make_once(Path(sys.argv[1]), build)
"""


class TestLock:
    def test_one_builds_and_the_others_wait(self, tmp_path):
        """What a killed process left is not read."""
        builds = []
        (tmp_path / "a.partial").mkdir()

        def build(partial):
            builds.append(partial)
            time.sleep(0.2)
            partial.write_text("whole")

        with ThreadPoolExecutor(3) as threads:
            made = list(threads.map(lambda _: make_once(tmp_path / "a", build).read_text(), range(3)))
        assert made == ["whole"] * 3
        assert len(builds) == 1

    @pytest.mark.more
    def test_another_goes_on_after_one_was_killed(self, tmp_path):
        command = [sys.executable, "-c", CHILD, str(tmp_path / "a")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as first:
            assert first.stdout.readline() == b"building\n"
            first.kill()
        assert not (tmp_path / "a").exists()
        assert make_once(tmp_path / "a", lambda partial: partial.write_text("whole")).read_text() == "whole"
        assert not (tmp_path / "a.partial").exists()


@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_a_file_that_is_cut_or_gone_is_a_sentence(tmp_path, damage):
    path = Path(build(tmp_path).ids.path)
    path.write_bytes(path.read_bytes()[:-1]) if damage == "cut" else path.unlink()
    with pytest.raises(UsageError, match=rf"^{path} in the cache is damaged \(.*\); remove {path.parent}, and sta"):
        build(tmp_path).ids[0]
