"""What cannot fit is refused at once, with its size, and nothing is made for it."""

import re

import pytest

from train import main


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"train.replicas": 10**9},
            r"at least 2\.\d+ PB on each device, 2\.\d+ PB for parameters .* train\.replicas=1000000000",
        ),
        ({"data.batch_size": 2 * 10**9}, r"544 GB for a batch, but a device has .*data\.batch_size=2000000000"),
        ({"model.width": 10**9}, r"at least 1\d\d EB on each device, 1\d\d EB for parameters"),
    ],
)
def test_absurd_sizes_are_answered_with_the_memory_that_they_would_take(tmp_path, refused, changes, sentence):
    flags = [f"--config.{field}={value}" for field, value in changes.items()]
    assert re.search(sentence, refused(main.main, [*flags, f"--workdir={tmp_path}/run"]))
    assert not (tmp_path / "run").exists()
