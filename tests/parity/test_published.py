"""Our definitions against plain forms of flash-linear-attention, transformers and PyTorch: outputs and gradients."""

import pytest

from benchmarks.device import right
from benchmarks.peers import agreement
from tests.parity.close import WHY

pytest.importorskip("fla", reason=WHY)
peers = pytest.importorskip("benchmarks.peers.published", reason=WHY)


@pytest.mark.parametrize("spec", peers.PUBLISHED)
def test_the_published_plain_form_is_our_definition(spec, monkeypatch):
    monkeypatch.setattr(agreement, "LENGTH", 17)
    check = agreement.check_of(spec, "float32")
    given = right.arguments(check)
    (found,) = agreement.published(check, given).values()
    errors = agreement.apart(check, found, agreement.definition(check, given))
    assert max(errors.values()) < right.LIMITS["float32"], errors
