"""The catalogue's pages, made from its data by ``_templates/catalogue`` when the site is built.

The tables of ``catalogue`` and ``estimators``, and a page ``catalogue/NAME`` of each framework.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ustat_pg.catalogue import Framework, Row, catalogue, short_name
from ustat_pg.catalogue.options import as_text
from ustat_pg.explanations import explain

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER = "catalogue"
"""Where the pages of frameworks are."""

HEADINGS = {
    "What it is": "what",
    "What it climbs": "climbs",
    "Noise": "noise",
    "Silent groups": "silent",
    "What changes nothing": "nothing",
}

SHOWN = {
    "pass-at-k": "pass-at-k:2",
    "gain-at-k": "gain-at-k:2",
    "bayes": "bayes:1,1",
    "shrinkage": "shrinkage:0.5,0.5",
}
"""Numbers for the families that need some."""

UNSHOWN = ("count-table", "loo-table", "best")
"""Families whose numbers are the user's own; and best, which of one prompt would be the oracle."""

RATES = (0.05, 0.2, 0.5, 0.8, 0.95)
SIZES = (2, 4, 8, 16)


def numbers(name: str) -> dict[str, list[str]]:
    """Rows of w, then of noise, of one estimator over the pass rates; rows of ones alone are left out."""
    weights, noises = {}, {}
    for size in SIZES:
        answers = [explain(name, group_size=size, pass_rates=[p]) for p in RATES]
        weights[f"w, G = {size}"] = [f"{answer.mean_factor[0]:.3g}" for answer in answers]
        noises[f"noise over RLOO's, G = {size}"] = [f"{a.noise_to_rloo:.3g}" for a in answers]
    return {label: row for label, row in (weights | noises).items() if set(row) != {"1"}}


def anchor(name: str) -> str:
    """The target of an estimator: of a name with numbers, that of its family."""
    return f"estimator-{name.partition(':')[0]}"


def shipped(called: Iterable[tuple[Framework, Row]]) -> list[str]:
    """Where an estimator is shipped, each once, with the options that ask for it."""
    names = (
        f"[{framework.title}]({FOLDER}/{framework.name}.md) `{row.written() or 'always'}`"
        for framework, row in called
    )
    return list(dict.fromkeys(names))


def made(template: str, **names: Any) -> str:
    """A template of the catalogue's pages, filled."""
    folder = Path(__file__).resolve().parents[1] / "_templates" / "catalogue"
    pages = Environment(
        loader=FileSystemLoader(folder),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    pages.globals |= {"known": catalogue(), "anchor": anchor, "short_name": short_name}
    return pages.get_template(f"{template}.md.jinja").render(**names)


def estimators() -> str:
    """Every estimator, those with a closed form first, and every way to add up a loss."""
    tables = {
        name: numbers(SHOWN.get(name, name)) for name in catalogue().families if name not in UNSHOWN
    }
    return made(
        "estimators",
        headings=HEADINGS,
        shown=SHOWN,
        rates=RATES,
        numbers={name: table for name, table in tables.items() if table},
        shipped=shipped,
    )


def framework_page(record: Framework) -> str:
    """The page of one framework."""
    from ustat_pg.catalogue.turns import turn_rows

    kinds = {kind: record.of_kind(kind) for kind in catalogue().kinds}
    defaults = {option.name: option.default or "none" for option in record.options.values()}
    rows = turn_rows().get(record.name, ())
    return made(
        "framework",
        record=record,
        kinds=kinds,
        as_text=as_text,
        over_turns=rows,
        defaults=defaults,
    )


def frameworks() -> str:
    """The frameworks, each with the link to its page."""
    return made("frameworks")


MARKS = {
    "catalogue": (
        "*The site has a table here: every framework, its commit and what was run.*",
        frameworks,
    ),
    "estimators": ("*The site has its sections here: every estimator by its name.*", estimators),
}
"""By page, the mark in the place of what is made, and its maker."""


def write(app: Sphinx) -> None:
    """Write the pages of the frameworks beside the sources, where the page that lists them is."""
    folder = Path(app.srcdir) / FOLDER
    rmtree(folder, ignore_errors=True)  # pages of frameworks that are gone would be found
    if folder.with_suffix(".md").exists():
        folder.mkdir()
        for record in catalogue().frameworks.values():
            (folder / f"{record.name}.md").write_text(framework_page(record), "utf-8")


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    if page in MARKS:
        mark, maker = MARKS[page]
        source[0] = source[0].replace(mark, maker())


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write)
    app.connect("source-read", fill)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
