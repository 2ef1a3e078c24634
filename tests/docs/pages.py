"""What the documents tell a reader to type: commands and Python, as Sybil finds them, with the mark before each.

A fenced block of `sh`, `bash` or `python` is run as it stands; `text`, `json`, `yaml` and `toml` are not typed.
Trainings take 2 steps and sweeps have 2 seeds, unless an HTML comment before the block says otherwise:

    run: 4 steps, FIELD=VALUE    trains so long, with such fields of the config
    long: likewise               the same, in the long form of the test alone
    dry-run: WHY                 the config is resolved and the model is built as shapes
    not run: WHY                 what it names is looked up, and no more
    fails                        a mistake on purpose: exit code 2

A WHY may end in `, with FIELD=VALUE`. `not run, all of this page: WHY` stands once, on top. Sybil's own
`invisible-code-block: python` does what a reader does in another way, such as bringing files; it is run where the next
visible block is.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

from sybil import Document, Example, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, FencedCodeBlockLexer

TYPED, OTHER = ("sh", "bash", "python"), ("text", "json", "yaml", "toml")
KINDS = ("run", "long", "fails", "dry-run", "not run")
ALL = ", all of this page"
ENDS = ("|", "||", "&", "&&", ";", ">", ">>", "<")
FENCED = FencedCodeBlockLexer(r"[^\n]*")
INVISIBLE = DirectiveInHTMLCommentLexer("invisible-code-block", "python")
MARK = DirectiveInHTMLCommentLexer(rf"(?:run|long|fails|dry[\w-]*|not[ -]\w+)(?:{ALL})?")


class PageError(Exception):
    """A page that breaks the rules above."""


@dataclass(frozen=True)
class Mark:
    """How far a block is run, and with which leaves of the config."""

    kind: str = "run"
    changes: dict[str, str] = field(default_factory=dict)
    whole_page: bool = False


@dataclass(frozen=True)
class Block:
    """What stands in a page to be typed, and what is done before it."""

    line: int
    language: str
    text: str
    mark: Mark
    examples: tuple[Example, ...]

    @property
    def commands(self) -> list[list[str]]:
        """The words of each line, continued ones put together."""
        return commands(self.text) if self.language != "python" else []

    @property
    def programs(self) -> list[list[str]]:
        """The words behind `python -m` of every such command, those inside quotes too."""
        return [program for words in self.commands for program in programs(words)]


def commands(text: str) -> list[list[str]]:
    """The words of each line of a shell, without comments; operators such as `&&` are words, as is what quotes hold.

    Raises:
      PageError: quotes that are not closed.
    """
    text = re.sub(r"(^|\s)#[^\n]*", r"\1", re.sub(r"\\\n\s*", " ", text))
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    lines: list[list[str]] = [[]]
    try:
        for word in lexer:
            lines += [[]] if set(word) == {"\n"} else []
            lines[-1] += [word] if word.strip() else []
    except ValueError as error:
        raise PageError(f"{error} in {text!r}") from error
    return [words for words in lines if words]


def programs(words: list[str]) -> Iterator[list[str]]:
    """The words behind `python -m` of all such commands of a line."""
    for place, word in enumerate(words):
        if re.search(r"python3? -m ", word):  # a command in quotes, for another shell
            for inner in commands(word):
                yield from programs(inner)
        elif re.search(r"(^|/)python3?$", word) and words[place + 1 : place + 2] == ["-m"]:
            yield list(takewhile(lambda w: w not in ENDS, words[place + 2 :]))


def blocks(text: str, name: str = "page.md") -> list[Block]:
    """All that a page has to be typed, in order; the Python of one page shares its names.

    Raises:
      PageError: an unknown mark, a mark without its reason or before no block, or an unknown language.
    """
    document, made, waiting, everywhere = Document(text, name), [], [], Mark()
    for parser in (code, hidden, marks):
        for region in parser(document):
            document.add(region)
    for example in document:
        if isinstance(example.parsed, Mark) and example.parsed.whole_page:
            everywhere = example.parsed
            continue
        waiting.append(example)
        if "language" not in example.region.lexemes:
            continue
        mark, invisible = _before(waiting, everywhere, text)
        if (language := example.region.lexemes["language"]) in TYPED:
            made.append(Block(example.line, language, example.parsed, mark, (*invisible, example)))
        waiting = []
    if waiting:
        raise PageError(f"line {waiting[0].line}: the mark stands before no block")
    return made


def _before(waiting: list[Example], mark: Mark, text: str) -> tuple[Mark, list[Example]]:
    """The mark that stands right before a block, and the invisible blocks since the visible one before."""
    for first, second in pairwise(waiting):
        between = text[first.region.end : second.region.start].replace("-->", "").strip()
        if isinstance(first.parsed, Mark) and (between or isinstance(second.parsed, Mark)):
            raise PageError(f"line {first.line}: the mark stands before no block")
    *before, block = waiting
    language = block.region.lexemes["language"]
    if language not in TYPED and (before or language not in OTHER or re.search(r"^(python|pip) ", block.parsed, re.M)):
        raise PageError(f"line {block.line}: a block of {language!r} with a mark or a command, or an unknown language")
    own = [example.parsed for example in before if isinstance(example.parsed, Mark)]
    return (own or [mark])[0], [example for example in before if not isinstance(example.parsed, Mark)]


def code(document: Document) -> Iterator[Region]:
    """Parser of the visible blocks."""
    for region in FENCED(document):
        region.lexemes["language"] = region.lexemes["language"].strip()
        region.parsed, region.evaluator = region.lexemes["source"], PythonEvaluator()
        yield region


def hidden(document: Document) -> Iterator[Region]:
    """Parser of the invisible blocks."""
    for region in INVISIBLE(document):
        region.parsed, region.evaluator = region.lexemes["source"], PythonEvaluator()
        yield region


def marks(document: Document) -> Iterator[Region]:
    """Parser of the marks.

    Raises:
      PageError: a mark that breaks the rules.
    """
    for region in MARK(document):
        region.parsed, region.evaluator = _mark(**region.lexemes), lambda example: None
        yield region


def _mark(directive: str, arguments: str, source: str) -> Mark:
    kind, whole_page = directive.removesuffix(ALL), directive.endswith(ALL)
    if kind not in KINDS:
        raise PageError(f"the mark {kind!r} is none of {', '.join(KINDS)}")
    if kind in ("run", "long", "fails"):
        return Mark(kind, _changes(arguments))
    why, _, changes = arguments.partition(", with ")
    if len(why) < 5:
        raise PageError(f"the mark {kind!r} needs a reason")
    return Mark(kind, _changes(changes), whole_page)


def _changes(text: str) -> dict[str, str]:
    made = {}
    for item in filter(None, (item.strip() for item in text.split(", "))):
        steps, (name, equals, value) = re.fullmatch(r"\d+ (steps|epochs)", item), item.partition("=")
        if not steps and not (equals and re.fullmatch(r"[\w.]+", name)):
            raise PageError(f"{item!r} is neither a number of steps nor FIELD=VALUE")
        made |= {"train.length": item} if steps else {name: value}
    return made
