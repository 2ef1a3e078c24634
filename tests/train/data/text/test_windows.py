import numpy as np
import pytest

from attention.errors import UsageError
from train.data.text.examples import Masking
from train.data.text.windows import Cuts, Strides, padded, truncated
from train.data.tokenisers import make


class TestCuts:
    @pytest.mark.parametrize(("tokens", "width", "ahead"), [(100, 7, 1), (100, 7, 0), (15, 7, 1), (8, 7, 1), (7, 7, 0)])
    def test_windows_lie_side_by_side_inside_the_text(self, tokens, width, ahead):
        cuts = Cuts(tokens, width, ahead)
        for epoch in range(50):
            starts = [cuts.start(i, epoch, seed=1) for i in range(len(cuts))]
            assert starts[0] >= 0
            assert starts[-1] + width + ahead <= tokens
            assert set(np.diff(starts)) <= {width}

    @pytest.mark.parametrize(("tokens", "ahead"), [(100, 1), (101, 1), (105, 0), (106, 0)])
    def test_epochs_show_almost_all_and_together_all(self, tokens, ahead):
        cuts = Cuts(tokens, 7, ahead)
        shown = np.zeros(tokens - ahead, int)
        firsts = set()
        for epoch in range(200):
            starts = [cuts.start(i, epoch, seed=1) for i in range(len(cuts))]
            firsts.add(starts[0])
            for start in starts:
                shown[start : start + 7] += 1
        assert len(firsts) >= 7
        assert shown.min() > 0
        assert tokens - ahead - 7 * len(cuts) < 14

    def test_seeds_cut_differently(self):
        orders = [tuple(Cuts(1000, 64).start(0, epoch, seed) for epoch in range(8)) for seed in range(4)]
        assert len(set(orders)) == 4


class TestStrides:
    def test_by_hand(self):
        """Ten tokens, windows of 4, 2 apart: 0-3, 2-5, 4-7, 6-9."""
        strides = Strides(10, 4, 2)
        assert [strides.span(i) for i in range(len(strides))] == [(0, 4), (2, 6), (4, 8), (6, 10)]
        weights = [strides.weight(i).tolist() for i in range(4)]
        assert weights == [[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]

    def test_the_last_is_cut_short(self):
        strides = Strides(9, 4, 2)
        assert [strides.span(i) for i in range(len(strides))] == [(0, 4), (2, 6), (4, 8), (6, 9)]
        assert strides.weight(3).tolist() == [0, 0, 1, 0]
        assert strides.whole_weight(2).tolist() == [1, 1, 1, 1]
        assert strides.whole_weight(3).tolist() == [0, 0, 0, 0]

    @pytest.mark.parametrize("tokens", [1, 5, 16, 17, 31, 100, 1023])
    @pytest.mark.parametrize("stride", [1, 3, 8, 15, 16])
    def test_each_token_counts_once_and_sees_what_it_should(self, tokens, stride):
        strides = Strides(tokens, 16, stride)
        counted = np.zeros(tokens, int)
        for i in range(len(strides)):
            start, stop = strides.span(i)
            places = np.flatnonzero(strides.weight(i)) + start
            assert places.max() < stop
            counted[places] += 1
            assert i == 0 or (places - start >= 16 - stride).all()
        np.testing.assert_array_equal(counted, 1)

    @pytest.mark.parametrize("tokens", [5, 16, 17, 100])
    def test_whole_windows_are_those_of_a_plain_loop(self, tokens):
        strides = Strides(tokens, 16, 8)
        total = sum(strides.whole_weight(i).sum() for i in range(len(strides)))
        assert total == 16 * len(range(0, tokens - 16 + 1, 8))


class TestTruncation:
    def test_first_and_last(self):
        ids = np.arange(5, dtype=np.uint16)
        assert truncated(ids, 3, "first").tolist() == [0, 1, 2]
        assert truncated(ids, 3, "last").tolist() == [2, 3, 4]
        for keep in ("first", "last"):
            assert truncated(ids, 8, keep).tolist() == [0, 1, 2, 3, 4]
            assert truncated(ids[:0], 8, keep).tolist() == []

    def test_padding_comes_after(self):
        out = padded(np.array([7, 8], np.uint16), 4, 9)
        assert out.tolist() == [7, 8, 9, 9]
        assert out.dtype == np.int32


class TestMasking:
    @pytest.fixture
    def masking(self):
        return Masking(rate=0.15, size=50, special=(0, 1, 10, 49), mask=10)

    @pytest.fixture
    def corrupted(self, masking):
        ids = np.random.default_rng(0).integers(0, 50, 400_000).astype(np.int32)
        out, chosen = masking(ids, np.random.default_rng(1))
        return ids, out, chosen

    def test_special_tokens_are_never_chosen(self, corrupted, masking):
        ids, _, chosen = corrupted
        assert not np.isin(ids[chosen], masking.special).any()

    def test_only_chosen_tokens_change(self, corrupted):
        ids, out, chosen = corrupted
        np.testing.assert_array_equal(out[~chosen], ids[~chosen])

    def test_shares(self, corrupted):
        """15 % of 46/50; of these 80 % mask, 10 % · 45/46 another token, the rest as it was."""
        ids, out, chosen = corrupted
        np.testing.assert_allclose(chosen.mean(), 0.15 * 46 / 50, rtol=0.02)
        before, after = ids[chosen], out[chosen]
        np.testing.assert_allclose((after == 10).mean(), 0.8, atol=0.01)
        np.testing.assert_allclose(((after != before) & (after != 10)).mean(), 0.1 * 45 / 46, atol=0.01)

    def test_random_tokens_are_uniform_over_ordinary_ones(self, corrupted, masking):
        ids, out, chosen = corrupted
        random = out[chosen & (out != ids) & (out != 10)]
        counts = np.bincount(random, minlength=50)
        assert set(np.flatnonzero(counts == 0)) == set(masking.special)
        ordinary = np.delete(counts, masking.special)
        chi_squared = ((ordinary - ordinary.mean()) ** 2 / ordinary.mean()).sum()
        assert chi_squared < 80  # 45 degrees of freedom: beyond 80 once in a thousand

    def test_one_at_least(self, masking):
        ids = np.array([0, 5, 6, 49], np.int32)
        for seed in range(100):
            chosen = masking(ids, np.random.default_rng(seed))[1]
            assert chosen.any()
            assert not chosen[[0, 3]].any()

    def test_nothing_to_choose(self, masking):
        out, chosen = masking(np.array([0, 49], np.int32), np.random.default_rng(0))
        assert out.tolist() == [0, 49]
        assert not chosen.any()

    def test_of_tokenisers(self):
        masking = Masking.of(make("bytes"), 0.15)
        assert (masking.mask, masking.special, masking.size) == (257, (256, 257, 258, 259), 260)
        with pytest.raises(UsageError, match=r"with a mask token, but data.tokeniser has only pad, unknown; for words"):
            Masking.of(make("words(size=9)", ["a"]), 0.15)
