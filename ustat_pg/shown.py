"""What a person sees: lines as wide as a terminal, verdicts in colour, records in a notebook."""

from __future__ import annotations

import os
import re
import sys
from html import escape
from shutil import get_terminal_size

__all__ = ["Shown", "coloured", "colours", "width"]

GOOD, BAD, OPEN = "32", "31", "33"
"""Green, red and yellow, as terminals number them."""

VERDICTS = {"CONFIRMED": GOOD, "HELD": GOOD, "REFUTED": BAD, "FAILED": BAD, "INCONCLUSIVE": OPEN}
"""The colour of a claim's verdict."""

RIVALS = {"REFUTED": GOOD, "SURVIVED": BAD, "NOT DISTINGUISHABLE": OPEN, "NOT TESTED": OPEN}
"""The colour of a wrong formula's verdict."""

COLOURED = re.compile("(\x1b\\[3[123]m[A-Z ]+\x1b\\[0m)")
"""A verdict in its colour."""


def width() -> int | None:
    """Characters of a line on the terminal behind standard output; None where there is none."""
    return get_terminal_size().columns if sys.stdout.isatty() else None


def colours() -> bool:
    """Whether standard output is a terminal with colours, and none asks for none: https://no-color.org."""
    asked = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return asked and sys.stdout.isatty()


def coloured(text: str, kinds: dict[str, str]) -> str:
    """The text, on a terminal with its verdicts in colour.

    Arguments:
        text: for standard output.
        kinds: colours by verdict, ``VERDICTS`` or ``RIVALS``.
    """
    if not colours():
        return text
    words = "|".join(kinds)
    return re.sub(rf"\b({words})\b", lambda m: f"\x1b[{kinds[m[1]]}m{m[1]}\x1b[0m", text)


class Shown:
    """A record that a notebook shows as its command prints it."""

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
