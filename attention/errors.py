"""One way to tell a person what went wrong: one sentence, the offending value, the valid ones, what to do."""

import difflib
import sys
from collections.abc import Iterable, Mapping


class UsageError(ValueError):
    """A mistake of the caller's, said in one sentence; command lines print it without a traceback."""


class UnsupportedError(UsageError):
    """A mechanism or implementation that cannot do what was asked; nothing is ever dropped silently."""


def unknown(kind: str, value: object, valid: Iterable[str]) -> UsageError:
    """An error for a name that is none of `valid`, with the nearest valid one suggested.

    Args:
      kind: What the name names, as it reads in a sentence ("attention mechanism").
      value: The name as it was given.
      valid: The names that would have been accepted.

    Returns:
      The error, for the caller to raise.
    """
    valid = sorted(valid)
    nearest = difflib.get_close_matches(str(value), valid, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return UsageError(f"Unknown {kind} {value!r}.{hint} Valid: {', '.join(valid) or 'none'}.")


def moved(programs: Mapping[str, str]) -> None:
    """Ends `python -m OLD`, exit code 2, with a sentence that names the program's new name.

    Packages call it when they are imported, which is before Python looks for the module.
    """
    words = sys.orig_argv
    name = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    if name in programs:
        print(f"python -m {name} is python -m {programs[name]} now; its flags are the same.", file=sys.stderr)
        sys.exit(2)
