"""An exercise that the page grades: a number that the reader writes, and a hint where it is wrong."""

from __future__ import annotations

import re
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

from IPython.display import HTML

HERE = Path(__file__).resolve()

SCRIPT = HERE.with_suffix(".js").read_text("utf-8")
"""The script that grades: part of each exercise, so that it is graded in a notebook too."""

_serial = count(1)


def graded(question: str, answer: float, hint: str, *, tolerance: float = 0.01) -> HTML:
    """A field for one number, checked in the browser; without JavaScript the question alone.

    Arguments:
        question: what is asked, in words.
        answer: the right number, best worked out by the library.
        hint: what helps, without the answer.
        tolerance: how far from it, relative to it (absolutely where it is 0), still counts.
    """
    if not tolerance > 0:
        raise ValueError(f"tolerance is {tolerance}: it must be positive")
    identity = f"exercise-{next(_serial)}"
    return HTML(
        f'<form class="exercise" data-answer="{float(answer)!r}" data-tolerance="{tolerance!r}" '
        f'data-hint="{escape(hint)}"><label for="{identity}">{escape(question)}</label>'
        f'<span class="exercise-field" hidden><input id="{identity}" type="text" inputmode="text" '
        'autocomplete="off" placeholder="0.25 or 1/4" size="12"> <button type="submit">Check</button>'
        '</span><p class="exercise-said" role="status"></p></form>'
        f"<script>{SCRIPT}</script>"
    )


def exercise(page: str) -> HTML:
    """The graded exercise of a page for its notebook, where code that works out the answer would tell it."""
    text = (HERE.parents[1] / f"{page}.md").read_text("utf-8")
    cells = re.findall(r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)^```$", text, re.S | re.M)
    cell = next(cell for cell in cells if "\ngraded(" in cell)
    names: dict[str, Any] = {}
    exec(cell.replace("\ngraded(", "\nasked = graded("), names)
    return names["asked"]
