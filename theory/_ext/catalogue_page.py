"""The tables of the page ``catalogue``, made from their data when the site is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ustat_pg.catalogue import Family, Framework, Row, catalogue, short_name
from ustat_pg.commands.explain import explain

if TYPE_CHECKING:
    from sphinx.application import Sphinx

MARK = "<!-- the tables -->"
"""The mark in place of the tables."""

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


def section(family: Family, *, closed: bool) -> list[str]:
    """One estimator under its five headings."""
    lines = [
        "",
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
            f"{framework.title} `{row.written() or 'always'}`" for framework, row in called
        )
        lines += ["", "Shipped as " + "; ".join(names) + "."]
    return lines


def cells(framework: Framework, row: Row) -> list[str]:
    name = f"`{row.estimator}`" if row.estimator else f"*{row.other}*"
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


def tables() -> str:
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
    lines += ["", "## How losses add up", "", "| name | what | effect |", "|---|---|---|"]
    for record in known.aggregations.values():
        lines.append(f"| {record.name} | {record.title} | {record.says} |")
    lines += ["", "## Frameworks and their options", ""]
    lines += [
        "The first row that fits holds. *Divisor* and ε are those of a deviation or mean that divides; "
        "*one* and *equal* are the advantages of a group of one output, and of one of equal rewards. "
        "*Checked* says when the framework's own function was last run beside the row, on every group "
        "of 2 to 8 with rewards 0 and 1 and on batches of graded, negative and unequal ones; what could "
        "not be run without its cluster or its critic was read only."
    ]
    for record in known.frameworks.values():
        lines += [
            "",
            f"### {record.title}",
            "",
            f"`{record.name}`, {record.repository}@{record.commit}.",
        ]
        lines += [
            "",
            "| options | its name | here | divisor | ε | one | equal | checked |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [f"| {' | '.join(cells(record, row))} |" for row in record.rows]
        lines += [f"\n- {note}" for note in record.notes]
        for kind, says in known.kinds.items():
            names = ", ".join(f"`{option.name}`" for option in record.of_kind(kind))
            if names and kind != "advantage":
                lines += ["", f"*{kind[0].upper()}{kind[1:]}* ({says}): {names}."]
        sources = ", ".join(
            f"`{source}`" for source in dict.fromkeys(row.source for row in record.rows)
        )
        lines += ["", f"Read in {sources}."]
    return "\n".join(lines) + "\n"


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    if page == "catalogue":
        source[0] = source[0].replace(MARK, tables())


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
