"""Adapts pages written for a forge to MkDocs: adds the pages outside docs/, and converts links and lists.

Links lead to the same place as on a forge: to another page, or to a file of the repository at `repo_url`. Without a
`repo_url`, links to files become plain text. A link whose text is a page's file name gets the page's title. A link to a
missing file is an error, and so is an equation that KaTeX would not show. Marks in HTML comments are removed. Drawings
get their sizes, so that the page does not jump while they load.
"""

import posixpath
import re
from pathlib import Path

from markdown_it import MarkdownIt
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "benchmarks/README.md": "measurements.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LINK = re.compile(r"(?<!\\)(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FIGURE = re.compile(r"<!-- (?:figures: .+?|end) -->")
MARK = re.compile(r"^[ ]*<!--(?:.(?!-->))*.?-->[ ]*\n?", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)[^`]+?\1")
FLAG = re.compile(r"<code>(-[^<\s]+)</code>")
DRAWING = re.compile(r'<img alt="[^"]*" src="([^"]+\.svg)"')
SCRIPT = re.compile(r"^\$\$.+|\b([A-Za-zΣ])_([a-z]{1,2})(?![A-Za-z0-9_])|\b(W)\^([A-Z])\b", re.MULTILINE)
SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)pt" height="([\d.]+)pt"')
FITS = 490  # CSS pixels; a wider drawing is illegible when it shrinks to a telephone's width


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Takes the repository's address from `docs/address.txt`; without one, links to source files are plain text."""
    address = (ROOT / "docs/address.txt").read_text(encoding="utf-8").strip()
    config.repo_url, config.repo_name = address or None, address.rpartition("/")[2]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages outside docs/."""
    for source, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Converts a page to Python-Markdown, with links of the site."""
    source = next((path for path, name in OUTSIDE.items() if name == page.file.src_uri), f"docs/{page.file.src_uri}")
    return as_python_markdown(
        with_scripts(relinked(without_marks(markdown), source, page.file.src_uri, config.repo_url or ""))
    )


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keeps flags whole at line ends, and sizes the drawings.

    Raises:
      PluginError: An equation is left as TeX.
    """
    if raw := raw_math(html):
        raise PluginError(
            f"{page.file.src_uri}: this equation would be shown as raw TeX: {raw!r}; put it in a paragraph of its own."
        )
    return DRAWING.sub(lambda match: _sized(match, page.file.src_uri), FLAG.sub(r'<code class="flag">\1</code>', html))


def _sized(image: re.Match[str], page: str) -> str:
    """Adds width and height to a drawing's element, and a class if it is wide."""
    file = ROOT / "docs" / posixpath.dirname(page) / image[1]
    width, height = (round(float(size) * 4 / 3) for size in SIZE.search(file.read_text(encoding="utf-8")).groups())
    return f'{image[0]} width="{width}" height="{height}"' + (' class="wide"' if width > FITS else "")


def raw_math(html: str) -> str:
    """Finds the beginning of a built page's first equation that KaTeX would not show, or ''."""
    text = re.sub(r"<(pre|code)\b.*?</\1>", "", html, flags=re.DOTALL)
    return text[text.index("$$") :][:40] if "$$" in text else ""


def without_marks(text: str) -> str:
    """Removes HTML comments, except in code."""
    return outside_code(text, lambda part: MARK.sub("", FIGURE.sub("", part)))


def with_scripts(text: str) -> str:
    """Makes subscripts of s_ij and superscripts of W^A, except in code and equations."""

    def scripted(match: re.Match[str]) -> str:
        base, low, matrix, high = match.groups()
        return f"{base}<sub>{low}</sub>" if low else f"{matrix}<sup>{high}</sup>" if high else match[0]

    return outside_code(text, lambda part: SCRIPT.sub(scripted, part), inline=True)


def relinked(text: str, source: str, name: str, repository: str) -> str:
    """Replaces links for a forge by links for the site.

    Args:
      source: The page's file in the repository.
      name: The page's name on the site.
      repository: The address of the repository, or ''.

    Raises:
      PluginError: A link leads to a missing file.
    """

    def mended(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if not path or re.match(r"\w+:", path):
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        place = OUTSIDE.get(file, file.removeprefix("docs/") if file.startswith("docs/") else "")
        if not (ROOT / file).exists():
            raise PluginError(f"{source}: the link to {target} leads nowhere")
        if place and not place.endswith(".py"):
            label = f"*{title(file)}*" if label == path.removeprefix("../") and path.endswith(".md") else label
            return f"{image}[{label}]({posixpath.relpath(place, posixpath.dirname(name) or '.')}{hash_}{anchor})"
        return f"[{label}]({repository.rstrip('/')}/blob/main/{file}{hash_}{anchor})" if repository else label

    return outside_code(text, lambda part: LINK.sub(mended, part), inline=True)


def title(file: str) -> str:
    """Reads the first heading of a page's file."""
    return re.search(r"^# (.+)$", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)[1]


def as_python_markdown(text: str) -> str:
    """Indents list contents by four spaces, puts blank lines before lists, and unescapes `|` in tables."""
    lines = text.split("\n")
    shift, blank, rows = [0] * len(lines), set(), set()
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "list_item_open":
            first, last = token.map
            width = len(re.match(r"[\s]*(?:[-*+]|\d+[.)])\s+", lines[first].expandtabs())[0])
            indent = len(lines[first]) - len(lines[first].lstrip())
            for number in range(first + 1, last):
                if lines[number].startswith(" " * width):
                    shift[number] += 4 - (width - indent)
        elif token.type in ("bullet_list_open", "ordered_list_open") and token.map[0] and token.level == 0:
            blank |= {token.map[0]} if lines[token.map[0] - 1].strip() else set()
        elif token.type == "table_open":
            rows |= set(range(*token.map))
            blank |= {token.map[0]} if token.map[0] and lines[token.map[0] - 1].strip() else set()
    converted = []
    for number, line in enumerate(lines):
        line = CODE.sub(lambda match: match[0].replace("\\|", "|"), line) if number in rows else line
        converted += ([""] if number in blank else []) + [" " * shift[number] + line if line.strip() else line]
    return "\n".join(converted)


def outside_code(text: str, change, inline: bool = False) -> str:
    """Applies a change to text outside code blocks and, with `inline`, outside code within a line."""
    lines, code = text.split("\n"), set()
    for token in MarkdownIt("commonmark").parse(text):
        if token.type in ("fence", "code_block"):
            code |= set(range(*token.map))
    pieces, plain = [], []
    for number, line in enumerate([*lines, None]):
        if number in code or line is None:
            piece = "\n".join(plain)
            pieces += [_around_code(piece, change) if inline else change(piece + "\n")[:-1]] if plain else []
            pieces += [] if line is None else [line]
            plain = []
        else:
            plain.append(line)
    return "\n".join(pieces)


def _around_code(text: str, change) -> str:
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], change(CODE.sub(keep, text)))
