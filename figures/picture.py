"""A figure as data, and how it becomes files that are equal byte for byte whenever it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Picture", "save"]


@dataclass(frozen=True)
class Picture:
    """One figure.

    Arguments:
        name: name of its files.
        title: a few words, in the SVG's title.
        alt: one sentence: what is seen, true of every run.
        source: the name of its points in the run's curves; None if it is drawn from the verdicts.
        draw: takes those points, or the verdicts, and gives the figure; None if there is nothing
            to show.
        signed: whether points at 0 and below are shown.
    """

    name: str
    title: str
    alt: str
    source: str | None
    draw: Callable[[Any], Figure | None]
    signed: bool = False


def save(picture: Picture, figure: Figure, folder: Path, pixels: bool = True) -> Iterator[Path]:
    """Write the figure as SVG and, unless no pixels are asked for, PNG: no dates, no versions, no
    names that change.
    """
    buffer = BytesIO()
    with style.theme():
        figure.savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None, "Title": picture.title}
        )
        svg = buffer.getvalue().decode()
        # What a screen reader says of the drawing, where the page around it says nothing.
        svg = svg.replace("</title>", f"</title>\n <desc>{escape(picture.alt)}</desc>", 1)
        target = folder / f"{picture.name}.svg"
        target.write_text(svg, encoding="utf-8", newline="\n")
        yield target
        if pixels:
            target = folder / f"{picture.name}.png"
            figure.savefig(target, dpi=300, metadata={"Software": None})
            yield target
