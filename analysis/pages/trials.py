"""The page of a table of trials: claims, the accuracies of mechanisms, and their costs."""

import html
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import trials
from analysis.pages import shell
from analysis.pictures import style
from analysis.pictures import trials as pictures
from analysis.trials import BASELINE
from attention.errors import in_line
from train.data.trials import parse as parse_trial
from train.grids.trial_table import TrialTable

SHOWN = (BASELINE, "linear", "gated_delta")  # have curves on every page
STRONG = 0.55  # share of the way from chance to 1 above which letters are light
ALONE = f"Nothing is compared: no cell has a baseline that was made alike. Add {BASELINE} to the command."
COSTS = {"parameters": "parameters", "forward_flops_per_example": "operations, thousand", "cache_bytes": "cache, bytes"}


def page(table: TrialTable, asked: Sequence[str], remarks: Sequence[str] = ()) -> str:
    """Makes the page.

    Args:
      table: The cells.
      asked: The mechanisms that the page is about; others are shown for comparison.
      remarks: Further remarks on the table.
    """
    specs = pictures.ordered(table)
    claims = [claim for spec in asked if spec != BASELINE for claim in _claims(table, spec)]
    figures = [pictures.curves(table, [*dict.fromkeys([*asked, *SHOWN])])] if table.trials else []
    if any("cache_bytes" in row for row in table.rows if row["trial"] in pictures.RECALL):
        figures.insert(0, pictures.frontier(table, asked))
    texts = {
        "TITLE": f"Trials: {html.escape(', '.join(asked))}",
        "CLAIMS": "\n".join(claims) or f"<li>{ALONE}</li>",
        "BASELINE": BASELINE,
        "TRIALS": "\n".join(f"<dt>{trial}</dt><dd>{html.escape(_task(of))}</dd>" for trial, of in table.trials.items()),
        "HEAT": _heat(table, specs, asked),
        "FIGURES": "\n".join(f'<div class="scroll">{style.svg(figure)}</div>' for figure in figures),
        "COSTS": _costs(table, specs),
        "NOTES": "\n".join(f"<li>{html.escape(note)}</li>" for note in [*_notes(table), *remarks]),
    }
    return shell.filled(Path(__file__).with_suffix(".html"), {}, **texts)


def _task(of: Mapping[str, Any]) -> str:
    """Takes a trial's description from the first paragraph of its docstring."""
    trial = parse_trial(of["settings"]["data.source"])
    return " ".join(inspect.getdoc(type(trial)).partition("\n\n")[0].split())


def _claims(table: TrialTable, spec: str) -> Iterator[str]:
    for trial, size, verdict in trials.judge(table, spec):
        kind = {"better": "better", "worse": "worse"}.get(verdict.words, "")
        yield f'<li class="{kind}">{html.escape(trials.sentence(spec, BASELINE, trial, size, verdict))}</li>'


def _heat(table: TrialTable, specs: Sequence[str], asked: Sequence[str]) -> str:
    """Writes the map: a row for each mechanism, a cell for each trial and size."""
    columns = [(trial, name) for trial in table.trials for name in trials.sizes(table, trial)]
    heads = "".join(f"<th>{_button(trial, trials.size_of(name))}</th>" for trial, name in columns)
    lines = [f"<thead><tr><th>{_button('mechanism', '')}</th>{heads}</tr></thead><tbody>"]
    for spec in specs:
        cells = "".join(_cell(table, trial, name, spec) for trial, name in columns)
        lit = ' class="lit"' if spec in asked else ""
        lines.append(f"<tr{lit}><th>{html.escape(spec)}</th>{cells}</tr>")
    chance = "".join(f"<td>{100 * table.trials[trial]['chance']:.0f}</td>" for trial, _ in columns)
    return "\n".join([*lines, f"</tbody><tfoot><tr><th>chance</th>{chance}</tr></tfoot>"])


def _button(title: str, size: str) -> str:
    return f"<button>{html.escape(title)}{f'<br>at {size}' if size else ''}</button>"


def _cell(table: TrialTable, trial: str, name: str, spec: str) -> str:
    found = trials.reached(trials.find(table, trial, spec), name)
    if found is None:
        reasons = [row.get("reason", "") for row in table.rows if (row["trial"], row["spec"]) == (trial, spec)]
        return f'<td class="none" title="{html.escape(reasons[0] if reasons else "not tried")}">–</td>'
    shade = pictures.above_chance(found.mean, table.trials[trial]["chance"])
    (low, high), (least, most) = found.interval, found.share
    about = (
        f"{spec} in {trial}: mean {100 * found.mean:.1f} %, 95 % interval {100 * low:.1f} to {100 * high:.1f}; "
        f"{found.solved} of {found.seeds} seeds solved it, so {100 * least:.0f} to {100 * most:.0f} % of seeds do"
    )
    strong = " strong" if shade > STRONG else ""
    ends = f"<small> {100 * low:.0f}–{100 * high:.0f}</small>" if high > low else ""
    return (
        f'<td class="heat{strong}" style="--shade:{100 * shade:.0f}%" data-value="{found.mean:.5f}" '
        f'title="{html.escape(about)}">{100 * found.mean:.0f}{ends}<br>'
        f"<small>{f'{found.solved}/{found.seeds} solve' if found.solved else '&nbsp;'}</small></td>"
    )


def _costs(table: TrialTable, specs: Sequence[str]) -> str:
    heads = "".join(f'<th colspan="{len(COSTS)}">{html.escape(trial)}</th>' for trial in table.trials)
    kinds = "".join(f"<th>{title}</th>" for title in COSTS.values()) * len(table.trials)
    lines = [f"<thead><tr><th></th>{heads}</tr><tr><th>mechanism</th>{kinds}</tr></thead><tbody>"]
    for spec in specs:
        rows = [trials.find(table, trial, spec) for trial in table.trials]
        cells = "".join(f"<td>{_cost(row, name)}</td>" for row in rows for name in COSTS)
        lines.append(f"<tr><th>{html.escape(spec)}</th>{cells}</tr>")
    return "\n".join([*lines, "</tbody>"])


def _cost(row: Mapping[str, Any], name: str) -> str:
    if name not in row:
        return "–"
    return f"{row[name] / (1000 if name.startswith('forward') else 1):,.0f}"


def _notes(table: TrialTable) -> Iterator[str]:
    for trial, of in table.trials.items():
        yield in_line(f"{trial}: " + ", ".join(f"{name} {value}" for name, value in of["settings"].items() if value))
    cells = [row for row in table.rows if "accuracy" in row]
    for said, so in {
        "Chose the lowest or the highest rate, so another may be better": lambda row: trials.is_at_edge(table, row),
        "Still rose over the last fifth of training": trials.is_rising,
        "Had seeds that diverged, which count as chance": lambda row: row["diverged"] > 0,
    }.items():
        if found := [f"{row['spec']} in {row['trial']}" for row in cells if so(row)]:
            yield f"{said}: {', '.join(found)}."
    yield from dict.fromkeys(f"{row['spec']}, {row['trial']}: {row['reason']}" for row in table.rows if "reason" in row)
    yield from table.remarks()
    made: dict[str, list[str]] = {}
    for call in table.made:
        versions = ", ".join(f"{name} {version}" for name, version in call["versions"].items())
        made.setdefault(f"{call['devices']} with {versions}", []).append(call["git"])
    for how, revisions in made.items():
        yield f"Made on {how}, at {', '.join(dict.fromkeys(revisions))}."
