"""A slider whose every position is computed while the page is built."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

from IPython.display import HTML

SCRIPT = Path(__file__).with_suffix(".js").read_text("utf-8")
"""The script that moves it: part of each slider, so that it moves in a notebook too."""

_serial = count(1)


def _text(value: object) -> str:
    """A number with four digits, anything else as it is written."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}"


def _picture(figure: Any, alt: str) -> str:
    import matplotlib.pyplot as plt

    stream = io.BytesIO()
    with plt.rc_context({"svg.fonttype": "path", "svg.hashsalt": "ustat_pg"}):
        figure.savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    return f'<img alt="{escape(alt)}" src="data:image/svg+xml;base64,{data}">'


def slider(
    label: str,
    values: Sequence[float],
    numbers: Callable[[Any], Mapping[str, object]],
    picture: Callable[[Any], Any] | None = None,
    *,
    start: float | None = None,
    alt: str = "",
) -> HTML:
    """Show numbers, and a picture if wanted, for one of several values that the reader chooses.

    Without a touch the page shows the start; without JavaScript the start and a table of all.

    Arguments:
        label: what is moved, in words, as ``"Group size G"``.
        values: the positions, in the order of the slider; numbers or strings.
        numbers: from a value, named results; the same names at every value.
        picture: from a value, a Matplotlib figure; the same axes at every value, please.
        start: the value shown first; the first one where it is None.
        alt: what the picture shows, in words; the value is added to it.
    """
    table = [{name: _text(result) for name, result in numbers(v).items()} for v in values]
    initial = 0 if start is None else list(values).index(start)
    identity = f"slider-{next(_serial)}"
    frames = []
    for index, (value, row) in enumerate(zip(values, table, strict=True)):
        drawn = (
            "" if picture is None else _picture(picture(value), f"{alt}; {label}: {_text(value)}")
        )
        terms = "".join(
            f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in row.items()
        )
        hidden = "" if index == initial else " hidden"
        frames.append(
            f'<div class="slider-frame" data-value="{escape(_text(value))}"{hidden}>'
            f"<dl>{terms}</dl>{drawn}</div>"
        )
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in [label, *table[0]])
    body = "".join(
        f'<tr><th scope="row">{escape(_text(value))}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row.values())
        + "</tr>"
        for value, row in zip(values, table, strict=True)
    )
    shown = escape(_text(values[initial]))
    html = (
        f'<div class="slider" role="group" aria-labelledby="{identity}-label">'
        f'<div class="slider-control"><label for="{identity}"><span id="{identity}-label">'
        f"{escape(label)}</span> = "
        f'<output for="{identity}" aria-live="polite">{shown}</output></label>'
        f'<input type="range" id="{identity}" min="0" max="{len(values) - 1}" step="1" '
        f'value="{initial}" aria-valuetext="{shown}" aria-labelledby="{identity}-label" '
        f'autocomplete="off" hidden></div>'
        f"{''.join(frames)}"
        f'<details class="slider-table" open><summary>All values</summary><div class="slider-scroll">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details></div>"
        f"<script>{SCRIPT}</script>"
    )
    return HTML(html)
