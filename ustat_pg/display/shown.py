"""The views of a record for people and programs, and the lines and colours of a terminal."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from html import escape
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import attrs

from ..validation import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Shown", "axes_or_new", "coloured", "colours", "plain", "rows", "width"]

GOOD, BAD, OPEN = "32", "31", "33"
"""Green, red and yellow, by their numbers in terminals."""

VERDICTS = {"CONFIRMED": GOOD, "HELD": GOOD, "REFUTED": BAD, "FAILED": BAD, "INCONCLUSIVE": OPEN}
"""The colour of a claim's verdict."""

RIVALS = {"REFUTED": GOOD, "SURVIVED": BAD, "NOT DISTINGUISHABLE": OPEN, "NOT TESTED": OPEN}
"""The colour of a wrong formula's verdict."""

_MOST_SHOWN = 16
"""The most numbers of a field that are printed; for more, their count is printed."""

COLOURED = re.compile("(\x1b\\[3[123]m[A-Z ]+\x1b\\[0m)")
"""A verdict in its colour."""


def width() -> int | None:
    """The characters of a line on the terminal of standard output; None if it is not a terminal."""
    return get_terminal_size().columns if sys.stdout.isatty() else None


def colours() -> bool:
    """Whether standard output is a terminal with colours, and NO_COLOR is not set: https://no-color.org."""
    asked = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return asked and sys.stdout.isatty()


def coloured(text: str, kinds: dict[str, str]) -> str:
    """The text, with verdicts in colour on a terminal.

    Arguments:
        text: text for standard output.
        kinds: colours by verdict, ``VERDICTS`` or ``RIVALS``.
    """
    if not colours():
        return text
    words = "|".join(kinds)
    return re.sub(rf"\b({words})\b", lambda m: f"\x1b[{kinds[m[1]]}m{m[1]}\x1b[0m", text)


def plain(value: Any) -> Any:
    """A value of JSON's types: records and mappings as objects, arrays and frames as lists, and None for a
    number that is not finite.

    >>> plain({"errors": (0.5, math.inf)})
    {'errors': [0.5, None]}
    """
    if isinstance(value, Shown):
        return value.to_dict()
    if is_dataclass(value) or attrs.has(type(value)):
        return {name: plain(getattr(value, name)) for name in _names(value)}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "to_dict"):
        return plain(value.to_dict("records"))
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _names(record: Any) -> list[str]:
    """The fields of a record."""
    return [
        entry.name
        for entry in (fields(record) if is_dataclass(record) else attrs.fields(type(record)))
    ]


def rows(values: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """A line for each value that exists, with its printed name."""
    known = {names[name]: values[name] for name in names if values.get(name) is not None}
    shown = {text: f"{v:.10g}" if isinstance(v, float) else v for text, v in known.items()}
    return "\n".join(f"{text:42} {value}" for text, value in shown.items())


def axes_or_new(axes: Axes | None = None) -> Axes:
    """Matplotlib's axes to draw on: the given axes, or those of a new figure.

    Raises:
        InputError: Matplotlib is not installed.
    """
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ImportError:
        raise InputError("a picture needs matplotlib: pip install 'ustat_pg[figures]'") from None
    return pyplot.figure(figsize=(6, 3.6), layout="constrained").add_subplot()


def _written(value: Any) -> str:
    """The printed form of a field; for many numbers, their count."""
    value, shape = plain(value), []
    if isinstance(value, float):
        return f"{value:.10g}"
    inner = value
    while isinstance(inner, list) and inner:
        shape.append(len(inner))
        inner = inner[0]
    if math.prod(shape) > _MOST_SHOWN:
        return f"{' x '.join(map(str, shape))} numbers"
    return " ".join(map(_short, value)) if shape else str(value)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"[{' '.join(map(_short, value))}]"
    return f"{value + 0.0:.4g}" if isinstance(value, float) else str(value)


class Shown:
    """A result: ``str`` is the text of its command and of notebooks; ``to_dict`` is the output of ``--json``.

    A record without a command has a line for each field.
    """

    def __str__(self) -> str:
        return "\n".join(f"{name:20} {_written(getattr(self, name))}" for name in _names(self))

    def to_dict(self) -> dict[str, Any]:
        """The record as a dict for JSON."""
        return {name: plain(getattr(self, name)) for name in _names(self)}

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"
