"""An archive says of runs what their work directories say."""

import json
import os
from pathlib import Path

import pytest

from analysis import archive, comparison, report, runs
from attention import UsageError


@pytest.fixture
def swept(tmp_path, write_run, write_runs):
    """Makes a sweep of three mechanisms in a chosen order, with two seeds; one mechanism is unfinished."""
    folder = tmp_path / "runs"
    names = ("super", "dot_product")
    write_runs(folder, {f"attention={name}": ({"model__attention": name}, (0.9, 0.91)) for name in names})
    write_run(folder / "attention=linear/seed0", finished=False, model__attention="linear")
    over = {"model.attention": ["super", "linear", "dot_product"]}
    (folder / "sweep.json").write_text(json.dumps({"over": over}))
    return folder


def test_groups_and_reports_are_those_of_the_folders(tmp_path, swept, capsys):
    kept = tmp_path / "kept.json"
    assert archive.main([str(swept), f"--out={kept}"]) == 0
    said = capsys.readouterr().out
    assert f"Kept 4 finished runs in {kept}." in said
    ours, theirs = runs.find([kept]), runs.find([swept])
    assert [each.label for each in ours.groups] == ["super", "dot_product"]
    for one, other in zip(ours.groups, theirs.groups, strict=True):
        assert (one.settings, one.seeds) == (other.settings, other.seeds)
        for run, same in zip(one.runs, other.runs, strict=True):
            assert (run.result, list(run.record), run.settings) == (same.result, same.record, same.settings)
            assert swept / run.path == same.path
    pages = [comparison.report(found, "dot_product").markdown().splitlines() for found in (ours, theirs)]
    assert pages[0] == pages[1][:-1]  # but for the sentence on what was left out
    assert pages[1][-1].endswith("the run has not finished.")
    assert str(tmp_path) not in kept.read_text()
    assert kept.read_text().count('"optimizer.learning_rate"') == 1  # what runs share is held once


RUN = {"path": "a", "config": {}, "results": [], "record": []}
CONFIG = {"task": "", "seed": 0, "data.batch_size": 1, "data.source": ""}
NO_ARCHIVES = [
    [],
    {},
    {"asked": {}, "config": {}, "runs": [RUN]},
    {"asked": {}, "config": CONFIG, "runs": [RUN | {"results": [{}]}]},
    {"asked": {}, "config": CONFIG, "runs": [RUN | {"path": "../a"}]},
]


@pytest.mark.parametrize("content", NO_ARCHIVES)
def test_a_file_that_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"a\.json is no archive of runs; give folders of runs, or what"):
        runs.find([tmp_path / "a.json"])


def test_mistakes_are_one_sentence(tmp_path, swept, refused):
    for arguments, message in [
        ([str(swept), f"--out={tmp_path}/a.txt"], "must end in .json"),
        ([str(swept / "sweep.json"), f"--out={tmp_path}/a.json"], "sweep.json is no folder; give folders"),
    ]:
        assert message in refused(archive.main, arguments)


@pytest.mark.usefixtures("undrawn")
def test_folders_whose_names_are_not_in_utf8_are_compared_kept_and_named(tmp_path, write_run, capsys, monkeypatch):
    strange = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    for name in ("dot_product", "super"):
        write_run(strange / name, model__attention=name)
    write_run(strange / "unfinished", finished=False)
    monkeypatch.chdir(strange)
    for program, flags in ((report, ["."]), (archive, [".", "--out=../kept.json"]), (report, ["..", "--out=out"])):
        assert program.main(flags) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "caf\\udce9/unfinished was left out: the run has not finished." in said
    assert "caf\\udce9" in (strange / "out/report.md").read_text(encoding="utf-8")
    assert archive.main(["..", "--out=../above.json"]) == 0
    assert "caf\\udce9/super" in {str(entry.path) for entry in archive.read(tmp_path / "above.json").entries}
