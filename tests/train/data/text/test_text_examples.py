import itertools

import numpy as np
import pytest

from tests.train.data.streams import stream
from train.data.draws import Draws
from train.data.text.examples import Masking, per_epoch, shifted, strides


class TestNextToken:
    def test_training_windows_are_of_the_text(self, make_examples, folder):
        examples = make_examples("next tokens")
        content = (folder / "train.txt").read_bytes()
        out = stream(examples["train"].train_batches(0), 50)
        for start, tokens, targets in zip(out["index"], out["tokens"], out["targets"], strict=True):
            assert bytes(tokens.tolist()) == content[start : start + 16]
            assert bytes(targets.tolist()) == content[start + 1 : start + 17]
        assert (out["weight"] == 1).all()

    @pytest.mark.parametrize("stride", [0, 5])
    def test_evaluation_counts_every_target_once_and_whole_windows_again(self, make_examples, folder, stride):
        examples = make_examples("next tokens", eval_stride=stride)
        content = (folder / "valid.txt").read_bytes()
        seen, whole = np.zeros(len(content), int), 0
        for batch in examples["validation"].eval_batches():
            whole += batch["window_weight"].sum()
            for row in range(4):
                places = batch["index"][row] + np.flatnonzero(batch["weight"][row])
                seen[places + 1] += 1
                targets = batch["targets"][row][batch["weight"][row] == 1]
                assert bytes(targets.tolist()) == bytes(content[place + 1] for place in places)
        assert seen.tolist() == [0] + [1] * (len(content) - 1)
        assert whole == 16 * len(range(0, len(content) - 16, stride or 16))


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
        examples = make_examples("last tokens of documents", keep=keep)
        out = stream(examples["test"].eval_batches(), 99)
        rows = out["index"][:31].tolist()
        seventh = rows.index(6)
        ids = examples["test"].split.row(seventh)[0].tolist()
        assert len(ids) == 7
        assert out["tokens"][seventh].tolist() == ids[expected]
        assert out["tokens"][rows.index(0), 1:].tolist() == [0, 0]
        np.testing.assert_array_equal(out["length"][:31], [min(3, row % 7 + 1) for row in rows])
        np.testing.assert_array_equal(out["label"][:31], [row % 3 for row in rows])
        assert sorted(rows) == list(range(31))

    def test_documents_without_a_token(self, make_examples, tmp_path):
        (tmp_path / "one.tsv").write_text("text\tn\n...\t0\nwords\t1\n")
        examples = make_examples("last tokens of documents", source=f"file:{tmp_path}/one.tsv")
        [batch] = examples["test"].eval_batches()
        assert batch["length"][np.argsort(batch["index"][:2])].tolist() == [0, 1]
        assert batch["weight"].tolist() == [1, 1, 0, 0]


class TestCuts:
    @pytest.mark.parametrize(("tokens", "width"), [(99, 7), (7, 7), (105, 7), (106, 7)])
    def test_windows_lie_side_by_side_and_show_almost_all_and_together_all(self, tokens, width):
        count, shown = per_epoch(tokens, width), np.zeros(tokens, int)
        epochs = [shifted(tokens, width, 1, epoch) for epoch in range(200)]
        for starts in epochs:
            assert len(starts) == count
            assert 0 <= starts[0] <= starts[-1] + width <= tokens
            assert set(np.diff(starts)) <= {width}
            shown[(starts[:, None] + np.arange(width)).ravel()] += 1
        assert shown.min() > 0
        assert tokens - width * count < 2 * width
        assert len({starts[0] for starts in epochs}) == tokens - width * count + 1 >= min(width, tokens - width + 1)


@pytest.mark.parametrize("tokens", [1, 16, 17, 100])
@pytest.mark.parametrize("stride", [1, 5, 16])
def test_strides_show_each_token_anew_once_after_what_it_should_see(tokens, stride):
    counted = np.zeros(tokens, int)
    starts, lengths, repeated = strides(tokens, 16, stride)
    for start, length, before in zip(starts, lengths, repeated, strict=True):
        assert before < length
        counted[start + before : start + length] += 1
        assert start == 0 or before >= 16 - stride
    np.testing.assert_array_equal(counted, 1)
    whole = [start for start in range(0, tokens, stride) if start + 16 <= tokens]
    assert starts[lengths == 16].tolist() == whole


class TestMasking:
    masking = Masking(rate=0.15, size=50, special=(0, 1, 10, 49), mask=10)

    def test_shares(self):
        """15 % of the 46/50 that are not special; 80 % of these become masks, 10 % · 45/46 another ordinary token."""
        ids = np.random.default_rng(0).integers(0, 50, 100_000).astype(np.int32)
        out, chosen = self.masking(ids, np.full(len(ids), True), Draws(1))
        assert not np.isin(ids[chosen], self.masking.special).any()
        np.testing.assert_array_equal(out[~chosen], ids[~chosen])
        np.testing.assert_allclose(chosen.mean(), 0.15 * 46 / 50, rtol=0.03)
        before, after = ids[chosen], out[chosen]
        np.testing.assert_allclose((after == 10).mean(), 0.8, atol=0.015)
        random = after[(after != before) & (after != 10)]
        np.testing.assert_allclose(len(random) / len(after), 0.1 * 45 / 46, atol=0.015)
        counts = np.bincount(random, minlength=50)
        assert set(np.flatnonzero(counts == 0)) == set(self.masking.special)
        ordinary = np.delete(counts, self.masking.special)
        assert ((ordinary - ordinary.mean()) ** 2 / ordinary.mean()).sum() < 80  # chi-squared: once in a thousand

    def test_one_at_least_if_any_is_real_and_ordinary(self):
        ids = np.array([0, 5, 6, 49], np.int32)
        chosen = self.masking(ids, np.array([True, True, False, True]), Draws(1))[1]
        assert chosen.tolist() == [False, True, False, False]
        out, chosen = self.masking(ids, np.array([True, False, False, True]), Draws(0))
        assert out.tolist() == ids.tolist()
        assert not chosen.any()
