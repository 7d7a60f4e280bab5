"""Measures the prose of Python modules and Markdown pages: docstrings, comments, paragraphs.

`python tests/support/prose.py [PATH...]` prints one row per file and the passages to rewrite (`-q`: the totals only).
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
#: Words that usually replace a noun or a precise verb, so that the reader has to work out the meaning.
RIDDLES: Final = re.compile(
    r"\b(what|who|whom|whose|those|that which|found|known|told|tells?|telling|lets? go|letting go|stands?|stood"
    r"|gives? up|given up|(?:is|are|be) about|has it|have it|whoever|whatever)\b",
    re.IGNORECASE,
)
#: Identifiers that name no content: a result, a fact, a message.
VAGUE: Final = frozenset({"found", "known", "told"})
MOST_RIDDLES: Final = 5.0  #: per 1,000 words
LONG: Final = 25  #: words in a sentence
MOST_LONG: Final = 0.05  #: share of sentences


class Prose(NamedTuple):
    """Counts of one file. `passages` are (line, text) of the sentences that count against it."""

    words: int
    riddles: int
    sentences: int
    long: int
    vague: int
    passages: tuple[tuple[int, str], ...]

    def __add__(self, other: object) -> "Prose":
        assert isinstance(other, Prose)
        return Prose(
            self.words + other.words,
            self.riddles + other.riddles,
            self.sentences + other.sentences,
            self.long + other.long,
            self.vague + other.vague,
            self.passages + other.passages,
        )

    @property
    def plain(self) -> bool:
        """Within the limits. One riddle word and one long sentence are within them in a file of any size."""
        return (
            self.riddles <= max(1, MOST_RIDDLES * self.words / 1000)
            and self.long <= max(1, MOST_LONG * self.sentences)
            and not self.vague
        )

    def __str__(self) -> str:
        riddles, long = 1000 * self.riddles / max(1, self.words), self.long / max(1, self.sentences)
        return (
            f"{self.words} words, {riddles:.1f} riddle words per 1,000; {self.sentences} sentences, {long:.1%} above"
            f" {LONG} words; {self.vague} vague identifiers"
        )


def _python(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings and the comments, with their first lines; consecutive comment lines are one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text
    last, first, lines = 0, 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|fmt:|pragma|----|!)", token.string):
            if token.start[0] != last + 1 and lines:
                yield first, "\n".join(lines)
                lines = []
            first, last = (token.start[0] if not lines else first), token.start[0]
            lines.append(token.string.lstrip("#: "))
    if lines:
        yield first, "\n".join(lines)


def _markdown(source: str) -> Iterator[tuple[int, str]]:
    """The paragraphs and list items, without fenced code, tables, headings and tags."""
    first, lines, fence = 1, list[str](), ""
    for number, line in enumerate([*source.splitlines(), ""], start=1):
        text = line.strip()
        mark = text[:3] if text.startswith(("```", "~~~")) else ""
        if fence or mark:
            fence = "" if fence and mark == fence else fence or mark
            text = ""
        elif text.startswith(("|", "#", "![")) or re.fullmatch(r"<[^>]*>", text):
            text = ""
        item = re.match(r"([-*]|\d+\.) ", text)
        if (not text or item) and lines:
            yield first, "\n".join(lines)
            lines = []
        if text:
            first = number if not lines else first
            lines.append(text[item.end() :] if item else text)


def passages(path: Path) -> Iterator[tuple[int, str]]:
    """(line, sentence) of all prose of a file, without code between backquotes."""
    source = path.read_text(encoding="utf-8")
    for line, text in (_python if path.suffix == ".py" else _markdown)(source):
        for paragraph in re.split(r"\n\s*(?:\n|[-*] )", text):
            yield from ((line, sentence) for sentence in _sentences(paragraph))


def _sentences(paragraph: str) -> Iterator[str]:
    """The sentences, without code between backquotes and the targets of links."""
    text = re.sub(r"(?<=\])\([^)\s]*\)", "", re.sub(r"``?[^`]*``?", "`", paragraph))
    yield from (
        " ".join(sentence.split()) for sentence in re.split(r"(?<=[.;:?!])\s+", text) if re.search(r"\w", sentence)
    )


def _bound(node: ast.AST) -> str:
    """The name that a node binds; empty if it binds none."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.alias(asname=str(name)):
            return name
    return ""


def measure(path: Path) -> Prose:
    """The counts of a file."""
    words = riddles = sentences = long = vague = 0
    bad = []
    for line, sentence in passages(path):
        count, hits = len(re.findall(r"[\w'`-]+", sentence)), len(RIDDLES.findall(sentence))
        words, riddles, sentences, long = words + count, riddles + hits, sentences + 1, long + (count > LONG)
        if hits or count > LONG:
            bad.append((line, sentence))
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (name := _bound(node)).strip("_") in VAGUE:
                vague += 1
                bad.append((getattr(node, "lineno", 0), f"identifier {name}"))
    return Prose(words, riddles, sentences, long, vague, tuple(sorted(bad)))


def modules() -> list[Path]:
    """All Python modules of both packages."""
    return sorted(path for root in ("instrumentation", "exporter") for path in (ROOT / root).rglob("*.py"))


if __name__ == "__main__":
    quiet = "-q" in sys.argv
    paths = [Path(each) for each in sys.argv[1:] if each != "-q"] or modules()
    files = [
        file
        for path in paths
        for file in (sorted((*path.rglob("*.py"), *path.rglob("*.md"))) if path.is_dir() else [path])
    ]
    total = Prose(0, 0, 0, 0, 0, ())
    for file in files:
        prose = measure(file)
        total += prose
        if not (quiet or prose.plain):
            print(f"{file}: {prose}")
            print("".join(f"  {line}: {text}\n" for line, text in prose.passages), end="")
    print(f"{len(files)} files: {total}")
