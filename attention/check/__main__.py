"""Check that mechanisms keep the contract: what holds, what fails, and what does not concern them.

python -m attention.check my.py:Laplacian
python -m attention.check "alibi(learned=True)" gated_delta
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import jax

from attention.check.rules import OF_A_CASE, OF_A_FORM, why_not
from attention.check.subject import Subject, subject_of
from attention.defining import files
from attention.defining.named import mixer_of
from attention.errors import UsageError, brief

HOLDS, FAILS, LEFT = "holds", "FAILS", "–"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; its exit code is 0 if all holds, 1 if a rule is broken, 2 for a mistake."""
    try:
        specs = _parser().parse_args(arguments).specs
        files.allow(specs)
        with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
            broken = sum(_report(spec) for spec in specs)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 1 if broken else 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise UsageError(f"{message[0].upper()}{message[1:]}; --help shows examples.")


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = _Parser("python -m attention.check", description=__doc__, formatter_class=plain, allow_abbrev=False)
    parser.add_argument("specs", nargs="+", metavar="SPEC", help="a name such as alibi, or my.py:Mine of a file")
    return parser


def _report(spec: str) -> int:
    """Prints a line for each rule, and counts those that are broken."""
    mixer = mixer_of(spec)
    case, begun, broken = subject_of(mixer), time.perf_counter(), 0
    forms = ("reference", *case.implementations)
    print(f"{spec}: {type(mixer).__name__} in the forms {', '.join(forms)}; in float64, to 1e-10")
    for verdict, words, reason in _verdicts(case, forms):
        print(f"  {verdict:<6} {words}" + (f" ({reason})" if reason else ""), flush=True)
        broken += verdict == FAILS
    print(f"  {broken} broken, after {time.perf_counter() - begun:.0f} s")
    return broken


def _verdicts(case: Subject, forms: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yields whether each rule holds, its words, and how it is broken or why it does not concern the case."""
    tried = [(rule, [()]) for rule in OF_A_CASE] + [(rule, [(name,) for name in forms]) for rule in OF_A_FORM]
    for rule, calls in tried:
        left = {given: why_not(rule, case, *given) for given in calls}
        found = {given: _fault(rule, case, *given) for given in calls if not left[given]}
        faults = [": ".join([*given, fault]) for given, fault in found.items() if fault]
        reasons = faults or ([left[calls[-1]]] if all(left.values()) else [])
        yield FAILS if faults else LEFT if reasons else HOLDS, _words(rule), "; ".join(reasons)


def _fault(rule: Callable[..., None], *given: object) -> str:
    """Runs a rule, and says in a line how it is broken; '' where it holds."""
    try:
        rule(*given)
    except Exception as error:  # of a user's code, too
        kind = "" if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: "
        return kind + brief(error)
    return ""


def _words(rule: Callable[..., None]) -> str:
    return (rule.__doc__ or rule.__name__).partition("\n")[0].rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
