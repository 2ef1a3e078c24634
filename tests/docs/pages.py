"""What the documents tell a reader to type: commands and Python, each with the mark that stands before it.

Every indented block is a command of a shell, as is every fenced one in `sh` or `bash`; `python` is Python, and what
is neither (`text`, `json`, `yaml`, `toml`) is not typed. A block is run as it stands, but for trainings, which take 2
steps, and sweeps, which have 2 seeds; unless an HTML comment before it says:

    run: 4 steps, FIELD=VALUE    trains so long, with such fields of the config
    long: likewise               the same, by make test-long
    dry-run: WHY                 the config is resolved and the model built as shapes
    not run: WHY                 only what it names is looked up
    fails                        a mistake on purpose: exit code 2

A WHY may end in `, with FIELD=VALUE`. `not run, all of this page: WHY` stands once, on top. `setup: PYTHON` is done
just before the next block, where that is run: what a reader does in another way, such as bringing files of his own.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from markdown_it import MarkdownIt

SHELL, PYTHON, OTHER = ("", "sh", "bash"), ("python",), ("text", "json", "yaml", "toml")
KINDS = ("run", "long", "fails", "dry-run", "not run")
ALL = "not run, all of this page"
COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)
TYPED = re.compile(r"^\s*(?:\$ )?(?:python3?|pip|make|git) ", re.MULTILINE)
ENDS = ("|", "||", "&", "&&", ";", ">", ">>", "<")


class PageError(Exception):
    """A page that breaks the rules above."""


@dataclass(frozen=True)
class Block:
    """What stands in a page to be typed.

    Attributes:
      line: In the page, from 1.
      language: `sh` or `python`.
      text: Without indentation and fences.
      kind: Of `KINDS`.
      why: The reason for not running it.
      changes: From a leaf of the config to the text of its value.
      setup: Python, to be done before.
    """

    line: int
    language: str
    text: str
    kind: str = "run"
    why: str = ""
    changes: dict[str, str] = field(default_factory=dict)
    setup: str = ""

    @property
    def commands(self) -> list[list[str]]:
        """The words of each line, continued ones put together."""
        return commands(self.text)

    @property
    def programs(self) -> list[list[str]]:
        """The words behind `python -m` of every such command, those inside quotes too."""
        shell = self.language != "python"
        return [program for words in self.commands for program in programs(words)] if shell else []


def commands(text: str) -> list[list[str]]:
    """The words of each line of a shell, without comments; operators such as `&&` are words, as is what quotes hold.

    Raises:
      PageError: quotes that are not closed.
    """
    text = re.sub(r"(^|\s)#[^\n]*", r"\1", re.sub(r"\\\n\s*", " ", text))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    found: list[list[str]] = [[]]
    try:
        for word in lexer:
            found += [[]] if set(word) == {"\n"} else []
            found[-1] += [word] if word.strip() else []
    except ValueError as error:
        raise PageError(f"{error} in {text!r}") from error
    return [words for words in found if words]


def programs(words: list[str]) -> Iterator[list[str]]:
    """The words behind `python -m` of all such commands of a line."""
    for place, word in enumerate(words):
        if re.search(r"python3? -m ", word):  # a command in quotes, for another shell
            for inner in commands(word):
                yield from programs(inner)
        elif re.search(r"(^|/)python3?$", word) and words[place + 1 : place + 2] == ["-m"]:
            yield list(takewhile(lambda w: w not in ENDS, words[place + 2 :]))


def blocks(text: str) -> list[Block]:
    """All that a page has to be typed, in order.

    Raises:
      PageError: a mark that is unknown, without its reason or before no block, a language that is unknown, or a command
        in a block that is said to be none.
    """
    found: list[Block] = []
    setup, mark, everywhere = "", None, None
    for token in MarkdownIt("commonmark").parse(text):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "html_block":
            for comment in COMMENT.findall(token.content):
                if comment.startswith(ALL):
                    everywhere = _mark(comment.replace(ALL, "not run", 1), line)
                elif comment.startswith("setup:"):
                    setup += comment.removeprefix("setup:").strip() + "\n"
                elif re.match(r"(run|long|fails|dry|not|no)\b", comment):
                    mark = _mark(comment, line) if not mark else _stray(mark)
        elif token.type in ("fence", "code_block"):
            found += _block(token.info.strip(), token.content, line, mark or everywhere, setup)
            setup, mark = "", None
        elif mark and token.map:
            _stray(mark)
    if setup or mark:
        _stray(mark or ["setup"])
    return found


def _stray(mark: Sequence) -> None:
    raise PageError(f"the mark {mark[0]!r} stands before no block")


def _block(language: str, text: str, line: int, mark: tuple | None, setup: str) -> list[Block]:
    if language in OTHER:
        if mark or setup or TYPED.search(text):
            raise PageError(f"line {line}: a block of {language} with a mark, or with a command")
        return []
    if language not in SHELL + PYTHON:
        raise PageError(f"line {line}: the language {language!r} is none of {', '.join(SHELL[1:] + PYTHON + OTHER)}")
    return [Block(line, language or "sh", text, *(mark or ("run", "", {})), setup)]


def _mark(comment: str, line: int) -> tuple[str, str, dict[str, str]]:
    kind, _, rest = (part.strip() for part in comment.partition(":"))
    if kind not in KINDS:
        raise PageError(f"line {line}: the mark {kind!r} is none of {', '.join(KINDS)}")
    if kind in ("run", "long", "fails"):
        return kind, "", _changes(rest, line)
    why, _, changes = rest.partition(", with ")
    if len(why) < 5:
        raise PageError(f"line {line}: the mark {kind!r} needs a reason")
    return kind, why, _changes(changes, line)


def _changes(text: str, line: int) -> dict[str, str]:
    found = {}
    for part in filter(None, (part.strip() for part in text.split(", "))):
        steps, (name, equals, value) = re.fullmatch(r"\d+ (steps|epochs)", part), part.partition("=")
        if not steps and not (equals and re.fullmatch(r"[\w.]+", name)):
            raise PageError(f"line {line}: {part!r} is neither a number of steps nor FIELD=VALUE")
        found |= {"train.length": part} if steps else {name: value}
    return found
