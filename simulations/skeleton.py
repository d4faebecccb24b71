"""``python -m simulations new STEM``: a claim to start from, which runs as it is (``templates``)."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from ustat_pg.validation import InputError

from .paper import RESULTS

__all__ = ["ROOT", "write"]

ROOT = Path(__file__).resolve().parents[1]

_BEFORE = '    "gradient_mse_lm": Result('
"""The line behind a new result in ``simulations/paper.py``: the language models come last."""

_ENTRY = """\
    "@stem": Result(
        "@label",
        "TODO: the statement in one sentence.",
        "@title",
        assumptions="TODO: what it needs. Not in the paper.",
    ),
"""

_INDEX = ("theory/index.md", "\nnetworks\nlanguage_models\n")
"""The list of all results as pages, and what follows a new one in its table of contents."""

_README = ("README.md", "<!-- end -->")
"""The table of verdicts, and the line behind it."""

_TEMPLATES = Path(__file__).with_name("templates")

TITLE = "TODO: the statement in a few plain words"

NEXT = """\
{file} asks what Theorem 2 does, until you put your own result in its place. Written too:

  {figure}: its figure, and the points of it
  {paper}: its statement, the entry {stem!r}
  {page}: its page, with the parts that the tests ask for
  {index}, {readme}: a row each, with the few plain words{more}

What is left to write, and to run:

  grep -n TODO {file} {figure} {paper} {page} {index} {readme}
  python -m simulations verify {stem} --engine exact    enumerate it
  python -m simulations plan {stem}                     what simulation will cost
  python -m simulations mutants --list    which functions no planted error touches

CONTRIBUTING.md, "Add a claim", says what else belongs to one; the tests ask for it.
"""


class _Text(Template):
    """Text with @ before what is filled in: a page has dollar signs of its own."""

    delimiter = "@"


def write(stem: str, label: str | None = None, title: str = TITLE, root: Path = ROOT) -> str:
    """Write a claim, its entry among the results, its page and its rows; returns what to do next.

    A stem that is no module's name or not new is refused, and a label that is another result's.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", stem) or keyword.iskeyword(stem):
        raise InputError(
            f"stem is {stem!r}: it must be a module's name, of small letters, digits and _"
        )
    file, paper = root / "simulations" / f"{stem}.py", root / "simulations" / "paper.py"
    page, figure = root / "theory" / f"{stem}.md", file.parent / "figures" / file.name
    taken = next((path for path in (file, file.parent / stem, page) if path.exists()), paper)
    if stem in RESULTS or taken != paper:
        raise InputError(f"stem {stem!r} is taken: see {taken}")
    labels = {result.label for result in RESULTS.values()}
    if label is None:
        label = next(name for n in range(1, 1000) if (name := f"Beyond {n}") not in labels)
    if label in labels or not re.fullmatch(r"[\w ().,-]+", label):
        raise InputError(f"label is {label!r}: it must be a new one, of letters, digits and spaces")
    if not title or set(title) & set('"\\|\n'):
        raise InputError(f"title is {title!r}: it must be words, without quotes, \\ and |")
    heading = title[0].upper() + title[1:]
    words = {"stem": stem, "label": label, "title": title, "heading": heading}
    index, at = root / _INDEX[0], _INDEX[1]
    readme, end = root / _README[0], _README[1]
    entry = _Text(_ENTRY).substitute(words) + _BEFORE
    row = f"| {label} | {title} | TODO: the run's verdict | and its evidence |\n{end}"
    written = {
        file: _filled("claim.txt", words),
        figure: _filled("figure.txt", words),
        page: _filled("page.txt", words),
        paper: _replaced(paper, _BEFORE, entry),
        index: _listed(_replaced(index, at, f"\n{stem}{at}"), words, index),
        readme: _replaced(readme, end, row),
    }
    # Nothing is written before all of it is known to find its place.
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    names = ("file", "figure", "page", "paper", "index", "readme")
    places = {
        name: path.relative_to(root).as_posix() for name, path in zip(names, written, strict=True)
    }
    more = " (--title; now TODO)" if title == TITLE else ""
    return NEXT.format(stem=stem, more=more, **places)


def _filled(name: str, words: dict[str, str]) -> str:
    """A template's text with these words."""
    return _Text((_TEMPLATES / name).read_text(encoding="utf-8")).substitute(words)


def _replaced(path: Path, old: str, new: str) -> str:
    """A file's text with a passage replaced that occurs once."""
    source = path.read_text(encoding="utf-8")
    if source.count(old) != 1:
        raise InputError(
            f"{path} has no place for a new result: {old.strip()!r} must be there once"
        )
    return source.replace(old, new)


def _listed(source: str, words: dict[str, str], path: Path) -> str:
    """The index with a row behind the last of its table of results."""
    rows = re.findall(r"^\| .*\]\(\w+\.md\) \| \w+ \d+ \| .*\n", source, re.MULTILINE)
    if not rows:
        raise InputError(f"{path} has no table of results")
    new = "| ★ [{heading}]({stem}.md) | {label} | {title} |\n".format(**words)
    return source.replace(rows[-1], rows[-1] + new)
