"""``python -m simulations new STEM``: a claim to start from, which runs as it is."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from ustat_pg.paper import RESULTS
from ustat_pg.validation import InputError

__all__ = ["ROOT", "write"]

ROOT = Path(__file__).resolve().parents[1]

_BEFORE = '    "gradient_mse_lm": Result('
"""The line behind a new result in ``ustat_pg/paper.py``: the language models come last."""

_ENTRY = """\
    "$stem": Result(
        "$label",
        "TODO: the statement in one sentence.",
        "$title",
        assumptions="TODO: what it needs. Not in the paper.",
    ),
"""

_INDEX = ("theory/index.md", "\nnetworks\nlanguage_models\n")
"""The list of all results as pages, and what stands behind a new one in its table of contents."""

_README = ("README.md", "<!-- end -->")
"""The table of verdicts, and the line behind it."""

TITLE = "TODO: the statement in a few plain words"

_CLAIM = '''\
"""$label: TODO: the result in one sentence, and its formula:

MSE = tr Σ/G + (σ² tr F + ‖g‖²)/(G(G-1)).

A skeleton: it asks grpo's error at one prompt, which is Theorem 2. Put your own quantity, prediction and
rivals in its place; a rival is a formula that someone could take for yours.

Falsified by an error whose interval misses the prediction.

Cost: TODO; `python -m simulations plan $stem` says how many replications it takes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.checks import equal
from ustat_pg.engines import GradientCell
from ustat_pg.experiment import Check, Point, mean_of
from ustat_pg.experiment.figure import Axis, Figure
from ustat_pg.predictions import gradient_mse

from .problems import BanditEntry, Suite, mse_of

STEM = "$stem"

FIRST_ORDER = "no second-order term"
RIVALS = (FIRST_ORDER,)


def _check(entry: BanditEntry, group_size: int) -> Check:
    """The mean of a quantity on a cell, and what it is predicted to be."""
    prediction = gradient_mse(entry.problem, "grpo", group_size)
    cell = GradientCell(entry.problem, group_size)
    wrong = {FIRST_ORDER: prediction.mse - prediction.second_order_term}
    return entry.check(
        f"G={group_size}: grpo", mean_of(cell, mse_of("grpo")), equal(prediction.mse, wrong)
    )


def checks(suite: Suite) -> Iterator[Check]:
    """The result at every group size of the suite, on problems of one prompt."""
    return (_check(entry, size) for entry in suite.single_prompts for size in suite.group_sizes)


FIGURES = (
    Figure(
        STEM,
        "TODO: a few words",
        "TODO: the figure in one sentence, for who cannot see it: a line falls with the group size.",
        STEM,
        y=Axis("mean squared error", scale="log"),
        lines=("grpo",),
        by="problem",
    ),
)


def curves(suite: Suite) -> Iterator[Point]:
    """The points of the figure: what is predicted, and what is measured, against G."""
    for entry, _ in suite.shown:
        for group_size in suite.curve_sizes:
            value = gradient_mse(entry.problem, "grpo", group_size).mse
            cell = GradientCell(entry.problem, group_size)
            at = {"problem": entry.name, "group_size": group_size}
            yield Point(STEM, "grpo", at, value, mean_of(cell, mse_of("grpo")))
'''


class _Page(Template):
    """A page has dollar signs of its own."""

    delimiter = "@"


_PAGE = r"""---
file_format: mystnb
kernelspec:
  name: python3
---

# @heading

*@label · stem `@stem` · TODO: exact, or not*

## Statement

TODO: the result, and what it needs.

$$
\MSE = \frac{\tr \Sigma}{G} + \frac{\sigma^2 \tr F + \norm{g}^2}{G (G-1)} .
$$

## Derivation

TODO.

## On numbers

```{code-cell} ipython3
from simulations.problems import two_valued
from ustat_pg.predictions import gradient_mse

problem = two_valued([0.25] * 4, [1, 0, 0, 0])
gradient_mse(problem, "grpo", 4)
```

## Figure

:::{figure} ../figures/@stem.svg
:alt: TODO: what is seen.

TODO: what it means.
:::

```{code-cell} ipython3
:tags: [hide-input]

from slider import slider


def numbers(size):
    return {"error of grpo": gradient_mse(problem, "grpo", size).mse}


slider("Group size G", [2, 4, 8, 16], numbers, start=4)
```

## Break it

TODO: each rival's number beside the right one.

## What `verify` checks

*Rivals, and why they are wrong.*

- `no second-order term`: TODO, a line like this for each rival of the claim.

:::{dropdown} What is asked, how closely, and what is not
*Asked.* TODO.

*Own error.* TODO: none, where the formula is exact.

*Not asked.* TODO.
:::

## In practice

- TODO: what a reader should do otherwise.

:::{admonition} Exercise
TODO: a question with one number for an answer.
:::

```{code-cell} ipython3
:tags: [remove-input]

from exercise import graded

graded("TODO: the question?", gradient_mse(problem, "grpo", 2).mse, "TODO: a hint.")
```

:::{dropdown} Answer
TODO.
:::
"""

NEXT = """\
{file} asks what Theorem 2 does, until you put your own result in its place. Written too:

  {paper}: its statement, the entry {stem!r}
  {page}: its page, with the parts that the tests ask for
  {index}, {readme}: a row each, with the few plain words{more}

What is left to write, and to run:

  grep -n TODO {file} {paper} {page} {index} {readme}
  python -m simulations verify {stem} --engine exact    enumerate it
  python -m simulations plan {stem}                     what simulation will cost
  python -m simulations mutants --list    which functions no planted error touches

CONTRIBUTING.md, "Add a claim", says what else belongs to one; the tests ask for it.
"""


def write(stem: str, label: str | None = None, title: str = TITLE, root: Path = ROOT) -> str:
    """Write a claim, its entry among the results, its page and its rows; returns what to do next.

    A stem that is no module's name or not new is refused, and a label that is another result's.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", stem) or keyword.iskeyword(stem):
        raise InputError(
            f"stem is {stem!r}: it must be a module's name, of small letters, digits and _"
        )
    file, paper = root / "simulations" / f"{stem}.py", root / "ustat_pg" / "paper.py"
    page = root / "theory" / f"{stem}.md"
    taken = next((each for each in (file, file.parent / stem, page) if each.exists()), paper)
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
    entry = Template(_ENTRY).substitute(words) + _BEFORE
    row = f"| {label} | {title} | TODO: the run's verdict | and its evidence |\n{end}"
    written = {
        file: Template(_CLAIM).substitute(words),
        page: _Page(_PAGE).substitute(words),
        paper: _replaced(paper, _BEFORE, entry),
        index: _listed(_replaced(index, at, f"\n{stem}{at}"), words, index),
        readme: _replaced(readme, end, row),
    }
    # Nothing is written before all of it is known to find its place.
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    names = ("file", "page", "paper", "index", "readme")
    places = {
        name: path.relative_to(root).as_posix() for name, path in zip(names, written, strict=True)
    }
    more = " (--title; now TODO)" if title == TITLE else ""
    return NEXT.format(stem=stem, more=more, **places)


def _replaced(path: Path, old: str, new: str) -> str:
    """A file's text with what stands there once replaced."""
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
