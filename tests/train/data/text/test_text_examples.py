import itertools

import numpy as np
import pytest

from tests.train.data.streams import assert_same, stream, take


class TestNextToken:
    def test_training_windows_are_of_the_text(self, make_examples, folder):
        examples = make_examples("next tokens")
        content = (folder / "train.txt").read_bytes()
        out = stream(examples["train"].train_batches(0), 50)
        for start, tokens, targets in zip(out["index"], out["tokens"], out["targets"], strict=True):
            assert bytes(tokens.tolist()) == content[start : start + 16]
            assert bytes(targets.tolist()) == content[start + 1 : start + 17]
        assert (out["weight"] == 1).all()

    def test_an_epoch_shows_every_token_at_most_once(self, make_examples):
        examples = make_examples("next tokens", batch_size=1)
        length = len(examples["train"])
        out = stream(examples["train"].train_batches(0), 4 * length)
        for epoch in out["index"].reshape(4, length):
            starts = np.sort(epoch)
            assert set(np.diff(starts)) == {16}
        assert len(set(out["index"].reshape(4, length).min(axis=1))) > 1
        assert len({tuple(np.argsort(epoch)) for epoch in out["index"].reshape(4, length)}) == 4

    @pytest.mark.parametrize("stride", [0, 5, 16])
    def test_evaluation_counts_every_target_once(self, make_examples, folder, stride):
        examples = make_examples("next tokens", eval_stride=stride)
        content = (folder / "valid.txt").read_bytes()
        seen = np.zeros(len(content), int)
        for batch in examples["validation"].eval_batches():
            for row in range(4):
                places = batch["index"][row] + np.flatnonzero(batch["weight"][row])
                seen[places + 1] += 1
                targets = batch["targets"][row][batch["weight"][row] == 1]
                assert bytes(targets.tolist()) == bytes(content[place + 1] for place in places)
        assert seen.tolist() == [0] + [1] * (len(content) - 1)

    def test_whole_windows_as_a_loop_has_them(self, make_examples, folder):
        examples = make_examples("next tokens", eval_stride=5)
        inputs = len((folder / "valid.txt").read_bytes()) - 1
        starts = [start for start in range(0, inputs, 5) if start + 16 <= inputs]
        batches = list(examples["validation"].eval_batches())
        counted = [i for b in batches for i, w in zip(b["index"], b["window_weight"], strict=True) if w.any()]
        assert counted == starts
        assert sum(batch["window_weight"].sum() for batch in batches) == 16 * len(starts)

    def test_text_shorter_than_a_window(self, make_examples):
        examples = make_examples("next tokens", context=64)
        [batch] = examples["test"].eval_batches()
        assert batch["weight"].sum() == len("The end.\n") - 1
        assert batch["window_weight"].sum() == 0
        assert batch["index"].tolist() == [0, -1, -1, -1]

    def test_types(self, make_examples):
        examples = make_examples("next tokens")
        [batch] = take(examples["train"].train_batches(0), 1)
        kinds = {"tokens": "int32", "targets": "int32", "weight": "float32"}
        expected = {name: (kind, (4, 16)) for name, kind in kinds.items()} | {"index": ("int64", (4,))}
        assert {key: (value.dtype.name, value.shape) for key, value in batch.items()} == expected


class TestMasked:
    def test_windows_between_start_and_end(self, make_examples, folder):
        examples = make_examples("masked tokens")
        content = (folder / "train.txt").read_bytes()
        out = stream(examples["train"].train_batches(0), 50)
        np.testing.assert_array_equal(out["targets"][:, 0], 258)
        np.testing.assert_array_equal(out["targets"][:, -1], 259)
        for start, targets in zip(out["index"], out["targets"], strict=True):
            assert bytes(targets[1:-1].tolist()) == content[start : start + 14]
        np.testing.assert_array_equal(out["tokens"][out["weight"] == 0], out["targets"][out["weight"] == 0])
        assert (out["weight"][:, [0, -1]] == 0).all()
        assert (out["weight"].sum(axis=1) >= 1).all()

    @pytest.mark.more
    def test_masks_are_new_every_epoch(self, make_examples):
        """At the same start, which comes again with the same cut."""
        examples = make_examples("masked tokens", batch_size=1)
        out = stream(examples["train"].train_batches(0), 60 * len(examples["train"]))
        starts, counts = np.unique(out["index"], return_counts=True)
        again = out["weight"][out["index"] == starts[np.argmax(counts)]]
        assert len(again) > 3
        assert len({mask.tobytes() for mask in again}) > len(again) // 2

    def test_evaluation_masks_are_fixed(self, make_examples):
        examples = make_examples("masked tokens", tokeniser="wordpiece(size=80)")
        first = stream(examples["validation"].eval_batches(), 99)
        assert_same(first, stream(examples["validation"].eval_batches(), 99))
        other = make_examples("masked tokens", tokeniser="wordpiece(size=80)", eval_batch_size=1)
        second = stream(other["validation"].eval_batches(), 99)
        assert_same({k: v[: len(second["index"])] for k, v in first.items()}, second)

    def test_evaluation_covers_the_text(self, make_examples, folder):
        examples = make_examples("masked tokens")
        out = stream(examples["validation"].eval_batches(), 99)
        texts = [row[1 : length - 1].tolist() for row, length in zip(out["targets"], out["length"], strict=True)]
        assert bytes(itertools.chain(*texts)) == (folder / "valid.txt").read_bytes()
        for row, length, weight in zip(out["targets"], out["length"], out["weight"], strict=True):
            assert not weight[length:].any()
            assert (row[length:] == (256 if length else 0)).all()


class TestLabelled:
    @pytest.mark.parametrize(("keep", "expected"), [("first", slice(0, 3)), ("last", slice(-3, None))])
    def test_truncation_and_padding(self, make_examples, keep, expected):
        examples = make_examples("last tokens of documents", context=3, keep=keep)
        out = stream(examples["test"].eval_batches(), 99)
        rows = out["index"][:31].tolist()
        seventh = rows.index(6)
        words = ["word"] * 6 + ["last6"]
        ids = examples["test"].split.row(seventh)[0].tolist()
        assert len(ids) == len(words)
        assert out["tokens"][seventh].tolist() == ids[expected]
        assert out["length"][seventh] == 3
        assert out["tokens"][rows.index(0), 1:].tolist() == [0, 0]
        np.testing.assert_array_equal(out["length"][:31], [min(3, row % 7 + 1) for row in rows])
        np.testing.assert_array_equal(out["label"][:31], [row % 3 for row in rows])
        np.testing.assert_array_equal(out["weight"], [1] * 31 + [0])
        assert sorted(rows) == list(range(31))
        assert out["index"][31:].tolist() == [-1]

    def test_documents_without_a_token(self, make_examples, tmp_path):
        (tmp_path / "one.tsv").write_text("text\tn\n...\t0\nwords\t1\n")
        examples = make_examples("last tokens of documents", source=f"file:{tmp_path}/one.tsv")
        [batch] = examples["test"].eval_batches()
        assert batch["length"][np.argsort(batch["index"][:2])].tolist() == [0, 1]
        assert batch["weight"].tolist() == [1, 1, 0, 0]
