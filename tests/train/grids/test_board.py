"""A terminal shows a sweep's means so far below its lines; a log has only the lines."""

import sys
from pathlib import Path

from train.grids.board import UP, Board

SWEEP = Path("sweep")
RUNS = [SWEEP / name / f"seed{seed}" for name in ("attention=super", "attention=dot_product") for seed in range(2)]


def shown(board, *values):
    for run, value in zip(RUNS, values, strict=False):
        with board.below():
            board.add(run, "accuracy", value)
            print("a line")


def test_means_so_far_stay_below_the_lines_of_a_terminal_alone(monkeypatch, capsys):
    shown(Board(RUNS, SWEEP), 0.5, 0.75)
    assert capsys.readouterr().out == "a line\na line\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    shown(Board(RUNS, SWEEP), 0.5, 0.75)
    title = "So far, the mean accuracy ± standard deviation over the finished seeds:\n"
    other = f"attention=dot_product  {'–':18}  0 of 2\n"
    assert capsys.readouterr().out == (
        f"a line\n{title}attention=super        {'0.5':18}  1 of 2\n{other}"
        f"{UP.format(3)}a line\n{title}attention=super        {'0.625 ± 0.18':18}  2 of 2\n{other}"
    )


def test_it_fits_a_small_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "6")
    runs = [SWEEP / f"{'long' * 20}{n}" / "seed0" for n in range(30)]
    board = Board(runs, SWEEP)
    board.add(runs[0], "accuracy", 0.5)
    lines = board.lines()
    assert max(map(len, lines)) < 40
    assert len(lines) <= 4
    assert lines[-1].startswith("and ")


def test_what_runs_shows_the_latest_message_of_its_log(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    log, board = tmp_path / "run.log", Board(RUNS, SWEEP)
    for said in ("", "step 5/20 train: loss 2,\n  accuracy 0.5\n", "step 9/20\x1b[2J: loss 1\n"):
        log.write_text(said, encoding="utf-8")
        board.watch({"super": log})
        board.watch({"super": log})
    board.watch({"super": tmp_path / "moved"})
    said = ("starting", "step 5/20 train: loss 2,", r"step 9/20\x1b[2J: loss 1", "starting")
    assert capsys.readouterr().out == f"\n{UP.format(1)}".join(f"super: {line}" for line in said) + "\n"
