"""Exercises that grade themselves: a number or a function that the reader writes, with a hint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
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


def checked(
    written: Callable[..., Any],
    library: Callable[..., Any],
    inputs: Iterable[tuple[Any, ...]],
    hint: str,
) -> None:
    """Hold a function that the reader writes against the library, at each of the inputs.

    Arguments:
        written: the function; where it still returns ``...`` nothing is held against anything.
        library: takes the same arguments, and knows the answer.
        inputs: arguments of both.
        hint: what helps, without the answer.

    Raises:
        AssertionError: the two differ; the message has the hint.
    """
    for number, given in enumerate(inputs, 1):
        own, right = written(*given), library(*given)
        if own is ...:
            print(f"{written.__name__} is yours to write.")
            return
        if np.shape(own) != np.shape(right) or not np.allclose(own, right, rtol=1e-6, atol=1e-12):
            raise AssertionError(
                f"not yet: at input {number} {written.__name__} gives {own}, "
                f"the library {right}. Hint: {hint}"
            )
    print(f"Right: {written.__name__} agrees with the library at all {number} inputs.")


def cells_of(page: str, call: str) -> list[str]:
    """The cells of a page that end in a call."""
    text = (HERE.parents[1] / f"{page}.md").read_text("utf-8")
    cells = re.findall(r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)^```$", text, re.S | re.M)
    return [cell for cell in cells if f"\n{call}(" in cell]


def exercise(page: str, number: int = 0) -> HTML:
    """A graded exercise of a page for its notebook, where code that works out the answer would tell it."""
    names: dict[str, Any] = {}
    exec(cells_of(page, "graded")[number].replace("\ngraded(", "\nasked = graded("), names)
    return names["asked"]
