"""Figures as data: a claim declares axes, panels and lines for its points; ``figures`` draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Axis:
    """One axis.

    Arguments:
        label: text beside it.
        column: the coordinate of the points that it shows; an ordinate has none.
        scale: linear, log or symlog.
        ticks: places, or texts by place; the renderer's choice unless given.
        limits: its ends; None for an end that the data set.
    """

    label: str
    column: str = ""
    scale: str = "linear"
    ticks: Mapping[float, str] | Sequence[float] = ()
    limits: tuple[float | None, float | None] = (None, None)


GROUP_SIZE = Axis("group size G", "group_size", "log")
RATE_OF_SUCCESS = Axis(
    "pass rate p",
    "pass_rate",
    ticks={0: "0", 0.25: "1/4", 0.5: "1/2", 0.75: "3/4", 1: "1"},
    limits=(0, 1),
)


@dataclass(frozen=True)
class Line:
    """One series: a line through predictions or enumerated values, points where it is measured.

    Arguments:
        series: its name in the points; "" declares a line of each series, in order.
        label: its name in the figure; unless given, that of the table of looks, else the series'.
            With series "" ``{column}`` stands in it for a coordinate of its points.
        look: a name in ``figures.style.LOOKS``; the series' unless given, where it has one there,
            else the next of a cycle.
        at: coordinates of its points, where the series alone does not tell them.
        aside: how far beside their place its points stand, in steps; keeps intervals apart.
        cut: whether the line ends where its band reaches below a fifth of it.
    """

    series: str
    label: str = ""
    look: str = ""
    at: Mapping[str, object] = field(default_factory=dict)
    aside: int = 0
    cut: bool = False


@dataclass(frozen=True)
class Curve:
    """A formula, drawn over the abscissae of a panel's points.

    Arguments:
        values: the ordinates at an array of abscissae.
        label: its name in the legend; none unless given.
        look: a name in ``figures.style.LOOKS``.
        through: whether it is scaled to begin where the panel's first line does.
    """

    values: Callable[[Any], Any]
    label: str = ""
    look: str = "rival"
    through: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel.

    Arguments:
        title: text above it, in which ``{column}`` stands for a coordinate of its points.
        of: the value of the figure's column ``by`` that it shows; any unless given.
        x, y, lines, names: the figure's own unless given.
        curves: formulas.
        levels: ordinates of thin horizontal lines.
        uprights: abscissae of thin vertical lines.
        band: ends of a grey horizontal band.
        slopes: guides on logarithmic axes: power, and where in the panel, from 0 to 1.
        notes: words in grey: text, abscissa, height in the panel from 0 to 1.
        plus: constant that is added to all values.
        over: series whose least prediction is the unit.
        precise: whether points whose interval is wider than twice the line are left out.
    """

    title: str = ""
    of: object = None
    x: Axis | None = None
    y: Axis | None = None
    lines: Sequence[Line | str] = ()
    names: str | None = None
    curves: Sequence[Curve] = ()
    levels: Sequence[float] = ()
    uprights: Sequence[float] = ()
    band: tuple[float, float] | None = None
    slopes: Sequence[tuple[int, float, float]] = ()
    notes: Sequence[tuple[str, float, float]] = ()
    plus: float = 0.0
    over: str = ""
    precise: bool = False


@dataclass(frozen=True)
class Figure:
    """One figure: panels of lines by formula and of points with 95% intervals.

    Arguments:
        name: name of its files.
        title: a few words, in the SVG's title.
        alt: one sentence on what is seen, true of every run.
        source: the name of its points in the run's curves; None if it is drawn from the verdicts.
        x: abscissa.
        y: ordinate, written beside the first panel.
        lines: what is drawn, in order, series by their names where that is enough; every series of
            the points unless given.
        by: column of the points with a panel for each value; unless given, each panel shows all.
        panels: the panels; of values of ``by`` that none is of, the title is the value.
        names: where series are named: "ends" of the lines, or Matplotlib's place of a legend.
        height: in inches, of one row of panels.
        draw: draws the figure from its points (or the verdicts) in place of the renderer.
        counted: whether it says how many intervals exclude the predicted value, which it shows.
    """

    name: str
    title: str
    alt: str
    source: str | None
    x: Axis = GROUP_SIZE
    y: Axis = Axis("")
    lines: Sequence[Line | str] = ()
    by: str = ""
    panels: Sequence[Panel] = (Panel(),)
    names: str = ""
    height: float = 2.5
    draw: Callable[[Any], Any] | None = None
    counted: bool = True
