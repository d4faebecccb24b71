"""An exercise that the page grades: a number that the reader writes, and a hint where it is wrong."""

from __future__ import annotations

from html import escape
from itertools import count

from IPython.display import HTML

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
    )
