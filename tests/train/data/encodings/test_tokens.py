"""Texts in the cache: their content, that they are made once or not at all, and full disks."""

import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

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
        text = build(tmp_path, end=True)
        np.testing.assert_array_equal(text.lengths[:], text.sizes[:] + 1)
        np.testing.assert_array_equal(text.ids[:][text.token_offsets[1:] - 1], 259)

    @pytest.mark.parametrize(("size", "dtype"), [(2**16, "uint16"), (2**16 + 1, "uint32")])
    def test_ids_are_as_small_as_they_can_be(self, tmp_path, size, dtype):
        tokeniser = SimpleNamespace(size=size, dumps=str, encode_batch=lambda texts: [np.array([size - 1])] * 4)
        ids = tokenise(documents(), "text", tokeniser, False, tmp_path).ids[:]
        assert (ids.dtype, ids.tolist()) == (dtype, [size - 1] * 4)

    def test_memory_holds_one_batch_of_texts(self, tmp_path, monkeypatch):
        """A hundred texts pass through, and no more than three batches of them may live at a time."""

        class Text(str):
            pass

        alive, most = weakref.WeakSet(), 0

        def rows():
            nonlocal most
            for i in range(100):
                text = Text(f"{i:04}")
                alive.add(text)
                most = max(most, len(alive))
                yield {"where": "", "text": text}

        monkeypatch.setattr(corpus, "_BATCH_TEXTS", 10)
        ids = tokenise(Rows("long", "long", rows), "text", make("bytes"), False, tmp_path).ids[:]
        assert bytes(ids.tolist()).decode() == "".join(f"{i:04}" for i in range(100))
        assert most <= 30

    def test_classes_are_part_of_the_content(self, tmp_path):
        text = build(tmp_path, texts=["x", "y", "z"], labels="bab")
        assert (text.class_names, text.labels[:].tolist()) == (("b", "a"), [0, 1, 0])
        text = build(tmp_path, texts=["x", "y", "z"], labels="bab", class_names=("a", "c", "b"))
        assert (text.class_names, text.labels[:].tolist()) == (("a", "c", "b"), [2, 0, 2])
        contents = [build(tmp_path, labels=labels, content=labels).content for labels in ("abab", "baba", "bbaa")]
        assert len(set(contents)) == 3
        assert build(tmp_path, labels="abab", content="elsewhere").content == contents[0]

    def test_no_text(self, tmp_path):
        with pytest.raises(UsageError, match="There is no text in train of test"):
            build(tmp_path, texts=["", ""])
        assert left(tmp_path) == []


class TestCaching:
    def test_the_second_time_nothing_is_read_or_locked(self, tmp_path):
        """A finished cache may be read-only."""
        before = build(tmp_path)
        [lock] = (tmp_path / "texts").glob("*.lock")
        lock.unlink()
        unread = Rows("x", "abc", lambda: pytest.fail("read again"))
        assert tokenise(unread, "text", make("bytes"), False, tmp_path) == before
        assert not lock.exists()

    def test_keyed_by_content_tokeniser_and_ends(self, tmp_path):
        variants = [{}, {"content": "other"}, {"tokeniser": "words"}, {"end": True}, {"class_names": ("",)}]
        assert len({build(tmp_path, **variant).ids.path for variant in variants}) == len(variants)

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


class TestInterruption:
    @pytest.mark.parametrize(
        ("error", "kind", "message"),
        [
            (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
            (PermissionError(13, "denied"), UsageError, r"Cannot cache in .* \(denied\): fix that, or set data"),
        ],
    )
    def test_nothing_half_written_is_left(self, tmp_path, error, kind, message):
        def rows():
            yield {"where": "", "text": "one"}
            raise error

        with pytest.raises(kind, match=message):
            tokenise(Rows("train of test", "abc", rows), "text", make("bytes"), False, tmp_path)
        assert left(tmp_path) == []
        assert len(build(tmp_path)) == 4

    def test_a_limit_on_the_size_of_files(self, tmp_path, files_up_to):
        """The nearest to a full disk that needs no disk: writing fails half-way."""
        files_up_to(2**20)
        with pytest.raises(UsageError, match=r"\(File too large\): free some space there, or set data.cache_dir"):
            build(tmp_path, texts=["x" * 2**20] * 3)
        assert left(tmp_path) == []


@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_a_file_that_is_cut_or_gone_is_a_sentence(tmp_path, damage):
    path = Path(build(tmp_path).ids.path)
    path.write_bytes(path.read_bytes()[:-1]) if damage == "cut" else path.unlink()
    with pytest.raises(UsageError, match=rf"^{path} in the cache is damaged \(.*\); remove {path.parent}, and sta"):
        build(tmp_path).ids[0]
