import errno
import functools
import json
import os
import pickle
import subprocess
import sys
import time
import weakref
from pathlib import Path

import grain
import numpy as np
import pytest
from absl import flags

from attention.errors import UsageError
from train.data.rows.rows import Document, Rows
from train.data.store import blocks, tokens
from train.data.store.cache import make_once
from train.data.store.tokens import Stored, tokenise
from train.data.tokenisers import make

TEXTS = ["one two", "", "zwölf drei four", "five\n"]


def documents(texts=TEXTS, content="abc", **fields):
    return Rows("train of test", content, lambda: map(Document, texts), **fields)


def build(cache_dir, *, tokeniser="bytes", end=False, **fields):
    return tokenise(documents(**fields), make(tokeniser, TEXTS), end, cache_dir)


def everything(folder):
    return sorted(path.name for path in folder.rglob("*"))


class TestContent:
    def test_tokens_and_offsets(self, tmp_path):
        text = build(tmp_path)
        assert bytes(text.ids[:].tolist()) == "".join(TEXTS).encode()
        sizes = [len(part.encode()) for part in TEXTS]
        np.testing.assert_array_equal(text.byte_offsets, np.cumsum([0, *sizes]))
        np.testing.assert_array_equal(text.token_offsets, text.byte_offsets)
        assert len(text) == 4

    def test_end_tokens_are_tokens_but_no_bytes(self, tmp_path):
        text = build(tmp_path, end=True)
        np.testing.assert_array_equal(text.token_offsets, text.byte_offsets + np.arange(5))
        np.testing.assert_array_equal(text.ids[:][text.token_offsets[1:] - 1], 259)

    @pytest.mark.parametrize(("size", "dtype"), [(2**16, "uint16"), (2**16 + 1, "uint32")])
    def test_ids_are_as_small_as_they_can_be(self, tmp_path, size, dtype):
        tokeniser = make(f"words(size={size})", [" ".join(f"w{i}" for i in range(size))])
        text = tokenise(documents([f"w0 w{size - 1}", tokeniser.words[-1]]), tokeniser, False, tmp_path)
        assert text.ids.dtype == dtype
        assert text.ids[-1] == size - 1

    def test_batches_do_not_show(self, tmp_path, monkeypatch):
        whole = build(tmp_path / "a")
        monkeypatch.setattr(tokens, "_BATCH_DOCUMENTS", 3)
        monkeypatch.setattr(tokens, "_BATCH_CHARACTERS", 8)
        parts = build(tmp_path / "b")
        for name in ("ids", "token_offsets", "byte_offsets", "labels"):
            np.testing.assert_array_equal(getattr(whole, name)[:], getattr(parts, name)[:])

    def test_classes(self, tmp_path):
        labelled = [Document("x", "b"), Document("y", "a"), Document("z", "b")]
        text = tokenise(Rows("t", "c", lambda: iter(labelled)), make("bytes"), False, tmp_path)
        assert (text.class_names, text.labels.tolist()) == (("b", "a"), [0, 1, 0])
        text = tokenise(Rows("t", "c", lambda: iter(labelled), ("a", "c", "b")), make("bytes"), False, tmp_path)
        assert (text.class_names, text.labels.tolist()) == (("a", "c", "b"), [2, 0, 2])

    def test_exchanged_classes_are_other_content(self, tmp_path):
        def content(key, *labels):
            documents = [Document(text, label) for text, label in zip("xy", labels, strict=True)]
            return tokenise(Rows("t", key, lambda: iter(documents)), make("bytes"), False, tmp_path).content

        assert content("1", "b", "a") == content("2", "b", "a") != content("3", "a", "b")

    def test_no_text(self, tmp_path):
        for texts in ([], ["", ""]):
            with pytest.raises(UsageError, match="There is no text in train of test"):
                build(tmp_path, texts=texts, content=str(texts))
        assert not [name for name in everything(tmp_path) if name != "texts" and not name.endswith(".lock")]

    def test_pickles_as_a_path(self, tmp_path):
        text = build(tmp_path)
        assert text.ids[:].base is not None
        copy = pickle.dumps(text)
        assert len(copy) < 500
        np.testing.assert_array_equal(pickle.loads(copy).ids[:], text.ids[:])


class TestCaching:
    def test_the_second_time_nothing_is_read(self, tmp_path):
        before = build(tmp_path)
        again = tokenise(Rows("x", "abc", lambda: pytest.fail("read again")), make("bytes"), False, tmp_path)
        assert again.folder == before.folder

    def test_keyed_by_content_tokeniser_and_ends(self, tmp_path):
        variants = [{}, {"content": "other"}, {"tokeniser": "words"}, {"end": True}, {"class_names": ("",)}]
        assert len({build(tmp_path, **variant).folder for variant in variants}) == len(variants)

    def test_memory_holds_one_batch_of_texts(self, tmp_path, monkeypatch):
        """A thousand texts pass through, of which no more than three batches may live at a time."""

        class Text(str):
            pass

        alive, most = weakref.WeakSet(), 0

        def texts():
            nonlocal most
            for i in range(1000):
                text = Text(f"{i:04} " * 5)
                alive.add(text)
                most = max(most, len(alive))
                yield Document(text)

        monkeypatch.setattr(tokens, "_BATCH_DOCUMENTS", 10)
        text = tokenise(Rows("long", "long", texts), make("bytes"), False, tmp_path)
        assert len(text.ids) == 25_000
        assert most <= 30

    @pytest.mark.parametrize("name", ["ids", "token_offsets", "labels", "about.json"])
    @pytest.mark.parametrize("damage", ["cut", "removed", "flipped", "other"])
    def test_a_damaged_text_is_made_again(self, tmp_path, name, damage, capsys):
        folder = Path(build(tmp_path).folder)
        whole = {file.name: file.read_bytes() for file in folder.iterdir()}
        damaged(folder / name, damage)
        assert build(tmp_path).folder == str(folder)
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == whole
        assert capsys.readouterr().err == f"{folder} is damaged, so it is made again.\n"
        build(tmp_path)
        assert capsys.readouterr().err == ""


LIMITED = """
import resource, sys
from train import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
data = ["--config.data.cache_dir={cache}", "--workdir={cache}/run"]
sys.exit(main.main(["--config=configs/gpt_pydoc.py", *data]))
"""


class TestInterruption:
    def failing(self, error):
        def read():
            yield Document("one")
            raise error

        return Rows("train of test", "abc", read)

    @pytest.mark.parametrize("error", [KeyboardInterrupt(), UsageError("bad line"), MemoryError()])
    def test_nothing_half_written_is_left(self, tmp_path, error):
        with pytest.raises(type(error)):
            tokenise(self.failing(error), make("bytes"), False, tmp_path)
        assert all(name == "texts" or name.endswith(".lock") for name in everything(tmp_path))
        assert len(build(tmp_path)) == 4

    @pytest.mark.parametrize(
        ("number", "message"),
        [
            (errno.ENOSPC, r"Cannot cache in .* \(No space left on device\): free some space there, or set data.cache"),
            (errno.EACCES, r"\(Permission denied\): mend that, or set data.cache_dir or ATTENTION_BENCH_CACHE"),
        ],
    )
    def test_a_disk_that_refuses(self, tmp_path, monkeypatch, number, message):
        def refuse(*args):
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(tokens, "_fill", refuse)
            with pytest.raises(UsageError, match=message):
                build(tmp_path)
        assert all(name == "texts" or name.endswith(".lock") for name in everything(tmp_path))
        assert len(build(tmp_path)) == 4

    @pytest.mark.more
    def test_a_limit_on_the_size_of_files(self, tmp_path, run_python):
        """The nearest to a full disk that needs no disk: writing fails half-way."""
        program = LIMITED.format(limit=20_000, cache=str(tmp_path / "cache"))
        done = run_python("-c", program, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("error: Cannot cache in")
        assert "(File too large): free some space there, or set data.cache_dir" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]
        assert not (tmp_path / "cache" / "run").exists()

    def test_a_folder_that_is_none(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageError, match=r"Cannot cache in .*file/texts"):
            build(tmp_path / "file")

    def test_what_a_killed_process_left_is_not_read(self, tmp_path):
        folder = build(tmp_path / "reference").folder
        partial = tmp_path / "cache" / "texts" / f"{os.path.basename(folder)}.partial"
        partial.mkdir(parents=True)
        (partial / "ids").write_bytes(b"\1\0" * 7)
        np.testing.assert_array_equal(build(tmp_path / "cache").ids[:], Stored(folder).ids[:])
        assert not partial.exists()


class TestTwoProcesses:
    CHILD = """
import sys, time
from pathlib import Path
from train.data.rows.rows import Document, Rows
from train.data.store.tokens import tokenise
from train.data.tokenisers import make

def read():
    with open(sys.argv[2], "a") as log:
        log.write("read ")
    for i in range(20):
        time.sleep(0.02)
        yield Document(f"text {i} ")

print(tokenise(Rows("t", "abc", read), make("bytes"), False, Path(sys.argv[1])).ids[:].sum())
"""

    def start(self, tmp_path):
        command = [sys.executable, "-c", self.CHILD, str(tmp_path / "cache"), str(tmp_path / "log")]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    @pytest.mark.more
    def test_one_builds_and_the_others_wait(self, tmp_path):
        children = [self.start(tmp_path) for _ in range(3)]
        sums = {child.communicate(timeout=60)[0].strip() for child in children}
        assert [child.returncode for child in children] == [0, 0, 0]
        expected = sum(sum(f"text {i} ".encode()) for i in range(20))
        assert sums == {str(expected)}
        assert (tmp_path / "log").read_text() == "read "

    @pytest.mark.more
    def test_another_goes_on_after_one_was_killed(self, tmp_path):
        first = self.start(tmp_path)
        while not (tmp_path / "log").exists():
            time.sleep(0.01)
        first.kill()
        first.communicate()
        assert not list((tmp_path / "cache" / "texts").glob("*/about.json"))
        second = self.start(tmp_path)
        assert second.communicate(timeout=60)[0].strip() == str(sum(sum(f"text {i} ".encode()) for i in range(20)))
        assert (tmp_path / "log").read_text() == "read read "


def damaged(path, how):
    """Damages a file as a disk, or a person, does."""
    data = path.read_bytes()
    if how == "removed":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-1], "flipped": bytes([data[0] ^ 4]) + data[1:], "other": data + b"0"}[how])


@pytest.mark.parametrize("name", ["a.json", "a.json.digest"])
@pytest.mark.parametrize("damage", ["cut", "removed", "flipped"])
def test_a_damaged_file_is_made_again(tmp_path, name, damage):
    target = tmp_path / "a.json"
    make_once(target, lambda path: path.write_text("[1, 2]"))
    damaged(tmp_path / name, damage)
    make_once(target, lambda path: path.write_text("[1, 2, 3]"))
    assert target.read_text() == "[1, 2, 3]"
    make_once(target, lambda path: pytest.fail("made again"))


def test_files_are_made_once(tmp_path):
    calls = []

    def make_file(path):
        calls.append(path)
        path.write_text(json.dumps(3))

    for _ in range(2):
        make_once(tmp_path / "a" / "b.json", make_file)
    assert json.loads((tmp_path / "a" / "b.json").read_text()) == 3
    assert len(calls) == 1


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A text whose files are too large to be compared at the start, as all files are here."""
    monkeypatch.setattr(blocks, "AT_ONCE", 0)
    monkeypatch.setattr(blocks, "SIZE", 8)  # four ids
    return build(tmp_path)


def flip(text, name, at):
    file = Path(text.folder) / name
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)
    return file


def test_a_start_reads_no_large_file(text, tmp_path, monkeypatch):
    digest, read = blocks._digest, bytearray()
    monkeypatch.setattr(blocks, "_digest", lambda block: [read.extend(block), digest(block)][1])
    assert len(build(tmp_path).ids) == 28
    assert bytes(read) == (Path(text.folder) / "about.json").read_bytes()


def test_a_damaged_block_is_never_read_and_the_next_start_makes_it_again(text, tmp_path, capsys):
    whole = text.ids[:].copy()
    file = flip(text, "ids", 17)  # within the ids 8 to 11
    ids = build(tmp_path).ids
    for rows in (slice(0, 8), slice(12, 28), slice(4, 4), slice(7, 3, -1)):
        np.testing.assert_array_equal(ids[rows], whole[rows])
    for rows in (8, 11, slice(7, 9), slice(11, 12), slice(None, None, -1), slice(None)):
        with pytest.raises(UsageError, match=rf"^{file} in the cache is damaged; run the same command again"):
            ids[rows]
    np.testing.assert_array_equal(build(tmp_path).ids[:], whole)
    assert capsys.readouterr().err == ""


def test_a_part_of_a_large_file_is_compared_where_it_stands(text, tmp_path):
    flip(text, "ids", 17)
    ids = build(tmp_path).ids.part(9, 20)
    assert len(ids) == 11
    np.testing.assert_array_equal(ids[3:], text.ids[12:20])
    with pytest.raises(UsageError, match="damaged"):
        ids[2]


@pytest.mark.parametrize("name", ["token_offsets", "labels"])
def test_other_large_arrays_are_compared_as_a_whole(text, tmp_path, name):
    flip(text, name, 9)
    again = build(tmp_path)
    with pytest.raises(UsageError, match=f"{name} in the cache is damaged"):
        getattr(again, name)


@pytest.mark.parametrize("damage", ["cut", "removed", "other"])
def test_another_size_of_a_large_file_is_noticed_at_the_start(text, tmp_path, damage, capsys):
    damaged(Path(text.folder) / "ids", damage)
    assert len(build(tmp_path).ids[:]) == 28
    assert capsys.readouterr().err == f"{text.folder} is damaged, so it is made again.\n"


@pytest.mark.more
def test_a_worker_passes_on_that_a_block_is_damaged(text, tmp_path):
    flip(text, "ids", 17)
    stored = build(tmp_path)
    stream = grain.MapDataset.range(3).map(functools.partial(_first_id, stored)).to_iter_dataset()
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    with pytest.raises(UsageError, match="damaged"):
        list(stream.mp_prefetch(grain.MultiprocessingOptions(1)))


def _first_id(stored, index):
    return stored.ids[8 * index]
