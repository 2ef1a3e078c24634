"""Log-linear attention against all pairs with a weight of the level of each, and what its last level keeps."""

import numpy as np
import pytest

from attention import Mask
from attention.check.subject import HEADS, LENGTH, inputs, subject_of
from attention.recurrences.log_linear import LogLinear

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group(__name__)]


def level_of(query, key, levels):
    """0 for the token itself; of those before, by the bits of their number from the lowest on."""
    first, seen = query, 0
    while key < first:
        while not query >> seen & 1:
            seen += 1
        first, seen = first - 2**seen, seen + 1
    return min(seen, levels - 1)


@pytest.mark.parametrize("levels", [2, 3, 5])
def test_it_is_all_pairs_with_the_weight_of_their_level(levels):
    case = subject_of(LogLinear(levels=levels))
    arrays, weights = inputs(batch=(1,)), case.weights()
    found, (query, key, value) = case.run("reference", arrays, weights, Mask(causal=True)), map(np.asarray, arrays)
    source, w = key[0].reshape(LENGTH, -1), {name: np.asarray(x) for name, x in weights.items()}
    for head in range(HEADS):
        step = np.log1p(np.exp(source @ w["step_kernel"][:, head] + w["step_bias"][head]))
        sums = np.cumsum(-step * np.exp(w["forget_rate"][head]))
        scales = np.log1p(np.exp(source @ w["level_kernel"][:, head] * w["level_scale"][head]))
        for i in range(LENGTH):
            pairs = [scales[i, level_of(i, j, levels)] * np.exp(sums[i] - sums[j]) * step[j] for j in range(i + 1)]
            shares = np.array(pairs) * (key[0, : i + 1, head] @ query[0, i, head])
            np.testing.assert_allclose(found[0, i, head], shares @ value[0, : i + 1, head], atol=1e-10)
