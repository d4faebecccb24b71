"""The course: stars in the sidebar, the way through its pages, slides, and its exercises with solutions.

All of it is read from the table of the first page and from the pages themselves, as they are built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, Tag
from docutils import nodes
from sphinx.application import Sphinx

ROW = re.compile(r"^\| (?:this one|\[\w+\]\((\w+)\.md\)) \|(.*?)\|(.*?)\|$", re.M)
"""A row of the course's table: a page, and what of it is read in 30 and in 90 minutes."""

STAR = re.compile(r"★ \[[^]]*\]\((\w+)\.md\)|\[[^]]*\]\((\w+)\.md\) ★")

SECTIONS = {
    "statement": "Statement",
    "derivation": "Derivation",
    "numbers": "On numbers",
    "figure": "Figure",
    "break it": "Break it",
    "practice": "In practice",
}
"""The sections that the table names, by their headings."""

FULL = 20.0
"""The lines that a slide has room for."""

HEIGHTS = {"figure": 14.0, "form": 4.0, "img": 12.0, "table": 8.0}
"""The lines that parts of a page take, other than text."""


class Course:
    """What the first page says of the course.

    Attributes:
        starred: the pages that it does not need.
        rows: its pages in order, each with what is read in 30 and in 90 minutes.
    """

    def __init__(self, text: str) -> None:
        self.starred = {one or other for one, other in STAR.findall(text)}
        self.rows = {page or "index": (short, long) for page, short, long in ROW.findall(text)}

    def beside(self, page: str) -> tuple[str | None, str | None]:
        """The pages before and after a page of the course, on the way of 30 minutes where it is on it."""
        pages = list(self.rows)
        short = [name for name in pages if self.rows[name][0].strip()]
        way = [*short, pages[-1]] if page in short else pages
        place = way.index(page)
        return (way[place - 1] if place else None), (way[place + 1 : place + 2] or [None])[0]


def course(app: Sphinx) -> Course:
    return Course((Path(app.srcdir) / "index.md").read_text("utf-8"))


def lead(
    app: Sphinx, page: str, template: str, context: dict[str, Any], document: nodes.document | None
) -> None:
    """Stars in the sidebar of a page; before and after it what the course has there."""
    known = course(app)
    if "furo_navigation_tree" in context:
        context["furo_navigation_tree"] = re.sub(
            r'(href="(?:\.\./)*(\w+)\.html">)',
            lambda match: match[1] + "★ " * (match[2] in known.starred),
            context["furo_navigation_tree"],
        )
    if page in known.rows:
        for name, other in zip(("prev", "next"), known.beside(page), strict=True):
            context[name] = other and {
                "title": app.env.titles[other].astext(),
                "link": app.builder.get_relative_uri(page, other),
            }


# ---------------------------------------------------------------- handouts


def sections(app: Sphinx, page: str) -> tuple[str, dict[str, Tag]]:
    """The title of a page, and its sections by their headings, whose anchors are no other page's."""
    soup = BeautifulSoup((Path(app.outdir) / f"{page}.html").read_text("utf-8"), "html.parser")
    article = soup.find("article")
    for link in article.select("a.headerlink, .notebook-link, script:not(.slider + script)"):
        link.decompose()
    for part in article.find_all(True):
        for name in ("id", "for", "aria-labelledby"):
            if name in part.attrs:  # Some are lists of words.
                words = part.get_attribute_list(name)
                part[name] = " ".join(f"{page}-{word}" for word in words)
        if str(part.get("href", "")).startswith("#"):
            part["href"] = f"{page}.html{part['href']}"
    found = {part.h2.get_text().strip(): part for part in article.find_all("section") if part.h2}
    return article.h1.get_text().strip(), found


def height(part: Tag) -> float:
    """The lines that a part of a section takes, about."""
    if "math" in part.get("class", ()):
        return 2.0 + 1.5 * part.get_text().count("\\\\")
    lines = sum(HEIGHTS.get(inner.name, 0.0) for inner in [part, *part.find_all(True)])
    if pre := part.find_all("pre"):
        return lines + sum(0.8 * (box.get_text().count("\n") + 1) for box in pre)
    return lines + 0.4 + len(part.get_text()) / 100


def slides(app: Sphinx, known: Course) -> Iterator[str]:
    """The slides of the course: what is read of its pages in 90 minutes, folded parts left out."""
    for page, (_, long) in known.rows.items():
        wanted = [SECTIONS[word] for word in re.findall("|".join(SECTIONS), long)]
        if not wanted:
            continue
        title, found = sections(app, page)
        for heading in wanted:
            shown: list[str] = []
            filled = 1.0
            for part in found[heading].find_all(True, recursive=False)[1:]:
                for fold in part.select("details:not(.slider-table)"):
                    fold.decompose()
                if part.name == "details":
                    continue
                if shown and filled + height(part) > FULL:
                    yield f"<h2>{title}: {heading.lower()}</h2>{''.join(shown)}"
                    shown, filled = [], 1.0
                shown.append(str(part))
                filled += height(part)
            yield f"<h2>{title}: {heading.lower()}</h2>{''.join(shown)}"


def solutions(app: Sphinx) -> Iterator[str]:
    """Exercises of all pages with their answers: numbers as the library works them out in their cells."""
    for page in app.env.toctree_includes["index"]:
        if 'class="exercise"' not in (Path(app.outdir) / f"{page}.html").read_text("utf-8"):
            continue
        title, found = sections(app, page)
        part = found["Exercises"]
        part.h2.string = title
        for form in part.find_all("form"):
            asked, answer = form.label.get_text(), float(form["data-answer"])
            form.name, form.attrs = "p", {}
            form.string = f"{asked} {answer:.6g}"
        for fold in part.find_all("details"):
            fold["open"] = ""
        yield str(part)


def handouts(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Two pages made from the others: slides, and exercises with solutions."""
    known = course(app)
    if not known.rows:
        return
    for name, title, parts in (
        ("slides", "Slides of the course", slides(app, known)),
        ("solutions", "Exercises with solutions", solutions(app)),
    ):
        body = "\n".join(f'<section class="sheet">{part}</section>' for part in parts)
        head = f"<h1>{title}</h1>"
        body = f'{head}<div class="{name}">{body}</div>'
        yield name, {"title": title, "body": body, "has_maths_elements": True}, "page.html"


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("html-page-context", lead, priority=900)
    app.connect("html-collect-pages", handouts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
