"""What the documents tell a reader to type: commands and Python, as Sybil finds them, with the mark before them.

A fenced block of `sh`, `bash` or `python` is run as it stands; `text`, `json`, `yaml` and `toml` are not typed.
Trainings take 2 steps and sweeps have 2 seeds, unless an HTML comment right before the block says otherwise:

    run: 4 steps, FIELD=VALUE    trains so long, with such fields of the config
    long: likewise               the same, in the long form of the test alone
    dry-run: WHY                 the config is resolved and the model is built as shapes
    not run: WHY                 what it names is looked up, and no more
    needs: PACKAGE               run where this Python package is installed
    fails                        a mistake on purpose: exit code 2

A WHY may end in `, with FIELD=VALUE`. `not run, all of this page: WHY` stands once, on top. Sybil's
`invisible-code-block: python` does what a reader does in another way, such as bringing files; it is run with the next
visible block.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

from sybil import Document, Example
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, FencedCodeBlockLexer

TYPED, OTHER = ("sh", "bash", "python"), ("text", "json", "yaml", "toml")
KINDS, WITH_REASON = ("run", "long", "fails", "dry-run", "not run", "needs"), ("dry-run", "not run")
ENDS = ("|", "||", "&", "&&", ";", ">", ">>", "<")
LEXERS = (FencedCodeBlockLexer(r"[^\n]*"), DirectiveInHTMLCommentLexer("invisible-code-block", "python"))
MARK = re.compile(r"^ *<!-- (?!figures|end)([a-z -]+)(, all of this page)?(?:: (.+))? -->\n+", re.MULTILINE)


class PageError(Exception):
    """Raised for a page that breaks the rules above, or asks for what cannot be done."""


@dataclass(frozen=True)
class Mark:
    """How far a block is run, and with which fields of the config."""

    kind: str = "run"
    changes: dict[str, str] = field(default_factory=dict)
    package: str = ""


@dataclass(frozen=True)
class Block:
    """A block of a page to be typed, and what is done before it."""

    line: int
    language: str
    text: str
    mark: Mark
    examples: list[Example]

    @property
    def commands(self) -> list[list[str]]:
        """The words of all lines, with continued lines joined."""
        lines = joined(self.text).splitlines() if self.language != "python" else []
        return [words for line in lines if (words := shlex.split(line, comments=True))]

    @property
    def programs(self) -> Iterator[tuple[str, list[str]]]:
        """The modules after `python -m` with their arguments, also within quotes; variables count as 1."""
        for line in re.findall(r"python3? -m ([^\n]+)", joined(self.text) if self.language != "python" else ""):
            whole = re.sub(r"\$\w+", "1", line if line.count("'") % 2 == 0 else line.rpartition("'")[0])
            module, *arguments = takewhile(lambda word: word not in ENDS, shlex.split(whole, comments=True))
            yield module, arguments


def joined(text: str) -> str:
    """Joins the continued lines of a shell's text."""
    return re.sub(r"\\\n\s*", " ", text)


def blocks(text: str, name: str = "page.md") -> list[Block]:
    """Lists the blocks of a page in order; the Python of a page shares its names."""
    document, made, invisible = Document(text, name), [], []
    for region in (region for lexer in LEXERS for region in lexer(document)):
        region.parsed, region.evaluator = region.lexemes["source"], PythonEvaluator()
        document.add(region)
    marks = {match.end(): match for match in MARK.finditer(text)}
    whole_page = [marks.pop(end) for end, match in list(marks.items()) if match[2]]
    common = read_mark(whole_page[0]) if whole_page else Mark()
    for example in document:
        invisible.append(example)
        if (language := example.region.lexemes.get("language")) is None:
            continue
        mark = read_mark(marks.pop(example.start)) if example.start in marks else common
        if language in TYPED:
            made.append(Block(example.line, language, example.parsed, mark, invisible))
        elif language not in OTHER:
            raise PageError(f"line {example.line}: a block of {language!r}")
        invisible = []
    if marks:
        raise PageError(f"{next(iter(marks.values()))[0]!r} stands before no block")
    return made


def read_mark(match: re.Match[str]) -> Mark:
    """Reads the mark in a comment."""
    kind, _, text = match.groups(default="")
    if kind == "needs":
        return Mark(kind, package=text)
    if kind not in KINDS:
        raise PageError(f"the mark {kind!r} is none of {', '.join(KINDS)}")
    if kind in WITH_REASON:
        why, _, text = text.partition(", with ")
        if not why:
            raise PageError(f"the mark {kind!r} needs a reason")
    changes = {}
    for item in filter(None, text.split(", ")):
        name, equals, value = ("train.length", "=", item) if re.fullmatch(r"\d+ steps", item) else item.partition("=")
        if not equals:
            raise PageError(f"{item!r} is neither a number of steps nor FIELD=VALUE")
        changes[name] = value
    return Mark(kind, changes)
