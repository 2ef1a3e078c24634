"""What a file may hold has limits, and beyond them one sentence names the file."""

import os
from pathlib import Path

import numpy as np
import pytest

from attention import UsageError
from models import files


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 10**5, "nested too deeply"),
        ('{"a": ' + "[" * 900 + "]" * 900 + "}", "nested too deeply"),
        ('{"a": ' + "9" * 400 + "}", "a number has 400 digits, and at most 40 are read"),
        ('{"a": "\\ud83d"}', "half of a surrogate pair"),
        ("[]", "no object"),
        ("", "Expecting value"),
    ],
)
def test_json_beyond_the_limits_is_one_sentence(tmp_path, text, reason):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match=rf"a\.json is damaged \(.*{reason}.*\); try again\."):
        files.read_json(tmp_path / "a.json", "try again")


def test_what_never_ends_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe", tmp_path):
        with pytest.raises(UsageError, match=rf"{path} cannot be read \({path.name} is no file\)"):
            files.read_text(path)
    for mode in ("r", "w", "a", "rb"):
        with pytest.raises(OSError, match="pipe is no file"):
            files.open_regular(tmp_path / "pipe", mode)


def test_arrays_are_read_when_asked_for_and_objects_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez(path, good=np.arange(3), bad=np.array([{}], object))
    arrays = files.Arrays(path, "write it again")
    assert list(arrays) == ["good", "bad"]
    assert arrays["good"].tolist() == [0, 1, 2]
    with pytest.raises(UsageError, match=r"a\.npz' cannot be read as a \.npz file \(.*\); write it again"):
        _ = arrays["bad"]
    monkeypatch.setattr(files, "memory", lambda: 10)
    with pytest.raises(UsageError, match=r"'good' in '.*a\.npz' has \d+ bytes, and this machine has 10;"):
        _ = arrays["good"]
