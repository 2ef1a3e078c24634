"""Short trainings in two precisions: what has not finished is named."""

import pytest

from attention import UsageError
from studies import precision


def test_a_run_that_failed_is_named_with_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(precision.runs, "train_all", lambda todo, say: {})
    with pytest.raises(UsageError, match=r"digits-\w+-0 has not finished; see .+, then give the same command again"):
        precision.measured(tmp_path, range(1))
