import numpy as np
import pytest

from attention.errors import UsageError
from train.data.draws import Draws
from train.data.text.examples import Masking, cut, padded, per_epoch, shifted, strides
from train.data.tokenisers import make


class TestCuts:
    @pytest.mark.parametrize(("tokens", "width"), [(99, 7), (100, 7), (14, 7), (7, 7), (105, 7), (106, 7)])
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
        assert len({starts[0] for starts in epochs}) == tokens - width * count + 1

    def test_seeds_cut_differently(self):
        orders = [tuple(shifted(1000, 64, seed, epoch)[0] for epoch in range(8)) for seed in range(4)]
        assert len(set(orders)) == 4


class TestStrides:
    @pytest.mark.parametrize(
        ("tokens", "starts", "lengths"),
        [(10, [0, 2, 4, 6], [4, 4, 4, 4]), (9, [0, 2, 4, 6], [4, 4, 4, 3]), (3, [0], [3])],
    )
    def test_by_hand(self, tokens, starts, lengths):
        """Windows of 4, 2 apart: of ten tokens 0-3, 2-5, 4-7, 6-9."""
        found = [of.tolist() for of in strides(tokens, 4, 2)]
        assert found == [starts, lengths, [0, 2, 2, 2][: len(starts)]]

    @pytest.mark.parametrize("tokens", [1, 5, 16, 17, 31, 100, 1023])
    @pytest.mark.parametrize("stride", [1, 3, 8, 15, 16])
    def test_each_token_is_new_once_and_sees_what_it_should(self, tokens, stride):
        counted = np.zeros(tokens, int)
        starts, lengths, repeated = strides(tokens, 16, stride)
        for start, length, before in zip(starts, lengths, repeated, strict=True):
            assert before < length
            counted[start + before : start + length] += 1
            assert start == 0 or before >= 16 - stride
        np.testing.assert_array_equal(counted, 1)
        whole = [start for start in range(0, tokens, stride) if start + 16 <= tokens]
        assert starts[lengths == 16].tolist() == whole


class TestPadding:
    @pytest.mark.parametrize(("start", "expected"), [(0, [5, 6, 7]), (1, [6, 7, 0]), (3, [0, 0, 0])])
    def test_zeros_come_after_a_text(self, start, expected):
        out = cut(np.array([5, 6, 7], np.uint16), start, 3)
        assert out.tolist() == expected
        assert out.dtype == np.int32

    def test_padding_comes_after(self):
        out = padded(np.array([7, 8, 1, 2], np.int32), 2, 9)
        assert out.tolist() == [7, 8, 9, 9]
        assert out.dtype == np.int32


class TestMasking:
    @pytest.fixture
    def masking(self):
        return Masking(rate=0.15, size=50, special=(0, 1, 10, 49), mask=10)

    @pytest.fixture
    def corrupted(self, masking):
        ids = np.random.default_rng(0).integers(0, 50, 400_000).astype(np.int32)
        out, chosen = masking(ids, np.full(len(ids), True), Draws(1))
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

    def test_one_at_least_and_of_what_is_real(self, masking):
        ids = np.array([0, 5, 6, 49], np.int32)
        for seed in range(20):
            chosen = masking(ids, np.array([True, True, False, True]), Draws(seed))[1]
            assert chosen.tolist() == [False, True, False, False]

    def test_nothing_to_choose(self, masking):
        out, chosen = masking(np.array([0, 49, 5], np.int32), np.arange(3) < 2, Draws(0))
        assert out.tolist() == [0, 49, 5]
        assert not chosen.any()

    def test_of_tokenisers(self):
        masking = Masking.of(make("bytes"), 0.15)
        assert (masking.mask, masking.special, masking.size) == (257, (256, 257, 258, 259), 260)
        with pytest.raises(UsageError, match=r"with a mask token, but data.tokeniser has only pad, unknown; for words"):
            Masking.of(make("words(size=9)", ["a"]), 0.15)

    def test_where_no_token_is_drawn_any_is_as_likely(self):
        masking = Masking(rate=1e-9, size=50, special=(0,), mask=10)
        ids, real = np.array([1, 2, 3, 0, 4], np.int32), np.full(5, True)
        chosen = sum(masking(ids, real, Draws(seed))[1].astype(int) for seed in range(2000))
        assert chosen[3] == 0
        assert chosen.sum() == 2000
        assert ((chosen[[0, 1, 2, 4]] - 500) ** 2 / 500).sum() < 16.3  # 3 degrees of freedom: once in a thousand
