"""A figure as data, and how it becomes files that are equal byte for byte whenever it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "Picture", "save"]


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


FORMATS = ("svg", "png", "pdf")

_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def save(
    picture: Picture, figure: Figure, folder: Path, formats: Sequence[str] = ("svg", "png")
) -> Iterator[Path]:
    """Write the figure in these formats: no dates, no versions, no names that change."""
    targets = {name: folder / f"{picture.name}.{name}" for name in formats}
    for name, target in targets.items():
        if name == "svg":
            target.write_text(_svg(picture, figure), encoding="utf-8", newline="\n")
        else:
            figure.savefig(target, dpi=300, metadata=_METADATA[name])
        yield target


def _svg(picture: Picture, figure: Figure) -> str:
    buffer = BytesIO()
    about = {"Date": None, "Creator": None, "Title": picture.title}
    figure.savefig(buffer, format="svg", metadata=about)
    # What a screen reader says of the drawing, where the page around it says nothing.
    described = f"</title>\n <desc>{escape(picture.alt)}</desc>"
    return buffer.getvalue().decode().replace("</title>", described, 1)
