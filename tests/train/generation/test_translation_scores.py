"""Scores against sacrebleu's own command on the same files."""

import json
import subprocess
import sys

import pytest

from train import score
from train.generation import translation_scores

FOUND = ["Ein Hund läuft über das Gras .", "Zwei Männer stehen an einer Straße.", "Das ist gut", "ja"]
WANTED = ["Ein Hund rennt über das Gras.", "Zwei Männer stehen an der Straße.", "Das ist sehr gut", "ja"]


@pytest.fixture
def files(tmp_path):
    paths = tmp_path / "found.txt", tmp_path / "wanted.txt"
    for path, lines in zip(paths, (FOUND, WANTED), strict=True):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


def test_scores_are_those_of_sacrebleu(files):
    found, wanted = map(str, files)
    command = [sys.executable, "-m", "sacrebleu", wanted, "-i", found, "-m", "bleu", "chrf", "-w", "10"]
    theirs = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ours = translation_scores.scores(FOUND, WANTED)
    signatures = translation_scores.signatures()
    for name, line in zip(("bleu", "chrf"), theirs, strict=True):
        assert ours[name] == pytest.approx(line["score"], abs=1e-9)
        assert signatures[f"{name}_signature"] == line["signature"]
    assert ours["exact_match"] == 1 / 4


def test_each_group_of_lengths_has_the_scores_of_its_sentences():
    found = translation_scores.by_length(FOUND, WANTED, [7, 8, 4, 2], (4, 6, 9))
    assert found == {
        "bleu_to_4": translation_scores.scores(FOUND[2:], WANTED[2:])["bleu"],
        "bleu_to_9": translation_scores.scores(FOUND[:2], WANTED[:2])["bleu"],
    }
    assert translation_scores.by_length(FOUND, WANTED, [7, 8, 4, 2], ()) == {}


def flags(files):
    return [f"--translations={files[0]}", f"--references={files[1]}"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (FOUND[:2], "found.txt has no translation in line 3"),
        ([*FOUND, "mehr"], "wanted.txt has no reference in line 5"),
    ],
)
def test_files_of_different_length(files, refused, lines, message):
    files[0].write_text("\n".join(lines), encoding="utf-8")
    assert message in refused(score.main, flags(files))


def test_empty_lines_are_named_and_count_as_nothing_and_line_ends_of_another_system_are_no_difference(files, capsys):
    files[0].write_text("\n".join(["", *FOUND[1:]]), encoding="utf-8")
    files[1].write_bytes("\r\n".join([*WANTED, ""]).encode())
    assert score.main(flags(files)) == 0
    printed = capsys.readouterr()
    assert "1 lines of" in printed.err
    assert "the first is line 1" in printed.err
    assert printed.out.startswith(f"bleu {translation_scores.scores(['', *FOUND[1:]], WANTED)['bleu']:.6g}\n")
    assert f"exact_match {1 / 4:.6g}" in printed.out
    assert "nrefs:1" in printed.out.splitlines()[-1]
