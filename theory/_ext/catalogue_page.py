"""The catalogue's pages, made from its data when the site is built.

The tables of ``catalogue`` and ``estimators``, and a page ``catalogue/NAME`` of each framework.
"""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from ustat_pg.catalogue import Family, Framework, Row, catalogue, short_name
from ustat_pg.catalogue.records import as_text
from ustat_pg.commands.explain import explain

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

SHOWN = {"pass-at-k": "pass-at-k:2", "bayes": "bayes:1,1", "shrinkage": "shrinkage:0.5,0.5"}
"""Numbers for the families that need some."""

UNSHOWN = ("count-table", "loo-table")
"""Families whose numbers are the user's own."""

RATES = (0.05, 0.2, 0.5, 0.8, 0.95)
SIZES = (2, 4, 8, 16)


def numbers(name: str) -> list[str]:
    """The table of w and noise of one estimator, as Markdown; rows of ones alone are left out."""
    head = " | ".join(f"p = {p:g}" for p in RATES)
    lines = ["", f"| `{name}` | {head} |", "|---" * (len(RATES) + 1) + "|"]
    rows: dict[str, list[float]] = {}
    for size in SIZES:
        answers = [explain(name=name, group_size=size, pass_rates=[p]) for p in RATES]
        rows[f"w, G = {size}"] = [answer.mean_factor[0] for answer in answers]
        rows[f"noise over RLOO's, G = {size}"] = [answer.noise_to_rloo for answer in answers]
    for label in sorted(rows, key=lambda label: label[0] == "n"):
        values = [f"{value:.3g}" for value in rows[label]]
        if set(values) != {"1"}:
            lines.append(f"| {label} | {' | '.join(values)} |")
    return lines if len(lines) > 3 else []


def anchor(name: str) -> str:
    """The target of an estimator: of a name with numbers, that of its family."""
    return f"estimator-{name.partition(':')[0]}"


def section(family: Family, *, closed: bool) -> list[str]:
    """One estimator under its five headings."""
    lines = [
        "",
        f"({anchor(family.name)})=",
        f"### {family.title[0].upper()}{family.title[1:]}",
        "",
        f"`{family.name}`: {family.formula}",
    ]
    for heading, key in HEADINGS.items():
        lines += ["", f"**{heading}.** {getattr(family, key)}"]
    if closed and family.name not in UNSHOWN:
        best = family.name == "best"  # of one prompt it would be the oracle
        lines += [] if best else numbers(SHOWN.get(family.name, family.name))
    called = catalogue().called(family.name)
    if called:
        names = dict.fromkeys(
            f"[{framework.title}]({FOLDER}/{framework.name}.md) `{row.written() or 'always'}`"
            for framework, row in called
        )
        lines += ["", "Shipped as " + "; ".join(names) + "."]
    return lines


def cells(framework: Framework, row: Row) -> list[str]:
    known = row.estimator or row.other or ""
    name = f"[{known}](#{anchor(known)})"
    if row.factor != "1":
        name += f" times {row.factor}"
    options = ", ".join(
        f"`{short_name(option)}` = {' or '.join(values)}" for option, values in row.when.items()
    )
    divisor = "" if row.ddof is None else ("G" if row.ddof == 0 else "G-1")
    return [
        options or "any other",
        row.name,
        name,
        divisor,
        f"{row.epsilon:g}" if row.epsilon else "",
        row.one_output,
        row.equal_rewards,
        framework.checked(row),
    ]


def estimators() -> str:
    """Every estimator, those with a closed form first, and every way to add up a loss."""
    known = catalogue()
    lines = ["## Tables by the number of successes"]
    for family in known.families.values():
        lines += section(family, closed=True)
    lines += ["", "## What is no such table", ""]
    lines += [
        "Lengths, other prompts, other networks, earlier steps or what the other outputs of the group are "
        "enter these. What is said of them is said in words; `ustat_pg.compare` enumerates any advantage "
        "function on a small problem, and `ustat_pg.testing.climbed_reward` the reward that it climbs."
    ]
    for family in known.others.values():
        lines += section(family, closed=False)
    lines += ["", "(aggregations)=", "## How losses add up", ""]
    lines += ["| name | what | effect |", "|---|---|---|"]
    for record in known.aggregations.values():
        lines.append(f"| {record.name} | {record.title} | {record.says} |")
    return "\n".join(lines)


def frameworks() -> str:
    """The frameworks, each with the link to its page."""
    lines = ["| framework | read at | options | rows | run |", "|---" * 5 + "|"]
    for record in catalogue().frameworks.values():
        names = " or ".join(f"`{name}`" for name in (record.name, *record.aliases))
        entries = [
            f"[{record.title}]({FOLDER}/{record.name}.md), {names}",
            f"{record.repository}@{record.commit}",
            len(record.options),
            len(record.rows),
            sum(not row.read for row in record.rows) or "none",
        ]
        lines.append(f"| {' | '.join(map(str, entries))} |")
    return "\n".join(lines)


def releases(record: Framework) -> list[str]:
    """What was otherwise in earlier releases, the latest change first."""
    if not record.earlier:
        return []
    lines = ["", "## Its releases", ""]
    lines += [
        f"All above is of {record.release}. Releases before one of these had its defaults and lacked its "
        "options and values, beside what the lines over it say; a slip is of the releases from the next line "
        f"on alone. `{record.name}==VERSION` asks for a release.",
        "",
        "| before | defaults | not there yet | otherwise |",
        "|---" * 4 + "|",
    ]
    for entry in record.earlier:
        defaults = (
            f"`{short_name(name)}={as_text(value)}`" for name, value in entry.defaults.items()
        )
        absent = (f"`{short_name(name)}`" for name in entry.absent)
        parts = (entry.before, ", ".join(defaults), ", ".join(absent), entry.says or entry.refused)
        lines.append(f"| {' | '.join(parts)} |")
    return lines


def framework_page(record: Framework) -> str:
    """The page of one framework."""
    lines = [f"# {record.title}", ""]
    lines += [
        f"`{record.name}` in [the catalogue](../catalogue.md), read at {record.repository}@{record.commit}.",
        "",
        "## What its options compute",
        "",
        "The first row that fits holds. *Divisor* and ε are those of a deviation or mean that divides; "
        "*one* and *equal* are the advantages of a group of one output, and of one of equal rewards. "
        "*Checked* says when the framework's own function was last run beside the row.",
        "",
        "| options | its name | here | divisor | ε | one | equal | checked |",
        "|---" * 8 + "|",
    ]
    lines += [f"| {' | '.join(cells(record, row))} |" for row in record.rows]
    lines += [f"\n- {note}" for note in record.notes]
    sources = dict.fromkeys(f"`{row.source}`" for row in record.rows)
    lines += ["", f"Read in {', '.join(sources)}.", "", "## Its options", ""]
    lines += ["| option | default | values | acts on |", "|---" * 4 + "|"]
    kinds = {kind: record.of_kind(kind) for kind in catalogue().kinds}
    for kind, options in kinds.items():
        for option in options:
            names = " or ".join(f"`{name}`" for name in (option.name, *option.aliases))
            default = "none: to be given" if option.default is None else f"`{option.default}`"
            means = option.means or {}
            values = [
                f"`{value}`" + (f" ([{means[value]}](#aggregations))" if value in means else "")
                for value in (*option.values, *option.unrun) or means
            ]
            lines.append(f"| {names} | {default} | {', '.join(values)} | {kind} |")
    lines += [
        f"\n*{kind[0].upper()}{kind[1:]}*: {catalogue().kinds[kind]}."
        for kind, options in kinds.items()
        if options
    ]
    return "\n".join(lines + releases(record)) + "\n"


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
        mark, made = MARKS[page]
        source[0] = source[0].replace(mark, made())


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", write)
    app.connect("source-read", fill)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
