"""Drawing of a declared figure, and how it becomes files that are equal byte for byte whenever drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulations.evidence.figure import Axis, Figure, Line, Panel

from . import style
from .style import GREY, LOOKS, Look

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

FORMATS = ("svg", "png", "pdf")

MEASURES = ["value", "estimate", "low", "high"]

ASIDE = 1.035
"""Factor of the abscissa by which points of two series stand apart."""

UNKNOWN = Panel()
"""The panel of a value that no panel is declared for."""

Drawn = tuple["pd.DataFrame", Line, Look]
"""A series' points, what is declared of it, and its look."""


def draw(figure: Figure, source: Any) -> Drawing | None:
    """The figure of these points (or verdicts); None where there is nothing to show."""
    drawing: Drawing | None = (figure.draw or (lambda frame: _render(figure, frame)))(source)
    return drawing


def _render(figure: Figure, frame: pd.DataFrame) -> Drawing | None:
    """Panels of lines by formula, and of points with intervals."""
    if not len(frame):
        return None
    frame = frame.assign(value=frame["prediction"].fillna(frame["exact"]))
    panels = list(_panels(figure, frame))
    rows = -(-len(panels) // 3)
    drawing, axes = style.panels(
        len(panels), figure.height + (rows - 1) * (figure.height - 0.35), rows=rows
    )
    first_column = axes[:: -(-len(panels) // rows)]
    legend: dict[str, Look] = {}
    for letter, axis, (panel, points) in zip("abcdefgh", axes, panels, strict=False):
        axis.set_title((style.mark(letter) if len(panels) > 1 else "") + panel.title, loc="left")
        drawn = _fill(axis, panel, points)
        if panel.y is figure.y and axis not in first_column:
            axis.set_ylabel("")
        entries = {line.label.replace("\n", " "): look for _, line, look in drawn}
        entries |= {curve.label: LOOKS[curve.look] for curve in panel.curves if curve.label}
        if panel.names == "ends":
            style.label_ends(axis, _ends(drawn))
        elif str(panel.names).startswith("outside"):
            legend |= entries
        elif panel.names:
            place: Any = panel.names
            axis.legend(handles=style.handles(entries.items()), loc=place, handlelength=2.8)
    if legend:
        columns = 1 if "right" in figure.names else 2 if len(panels) == 1 else 4
        style.legend(axes[0], list(legend.items()), figure.names, columns)
    return drawing


def _panels(figure: Figure, frame: pd.DataFrame) -> Iterator[tuple[Panel, pd.DataFrame]]:
    """The panels, complete, with their points; one for each value of the figure's column ``by``."""
    pairs = [(panel, frame) for panel in figure.panels]
    if figure.by:
        parts = list(frame.groupby(figure.by, sort=False))
        declared = {panel.of: panel for panel in figure.panels}
        other = declared.get(None, UNKNOWN)
        pairs = [(declared.get(value, other), rows) for value, rows in parts]
    for panel, points in pairs:
        if panel is UNKNOWN:
            title = style.plain(str(points[figure.by].iloc[0]))
        else:
            title = panel.title.format(**points.iloc[0])
        names = figure.names if panel.names is None else panel.names
        lines = panel.lines or figure.lines or (Line(""),)
        x, y = panel.x or figure.x, panel.y or figure.y
        yield replace(panel, title=title, x=x, y=y, lines=lines, names=names), points


def _fill(axis: Axes, panel: Panel, points: pd.DataFrame) -> list[Drawn]:
    assert panel.x is not None
    assert panel.y is not None
    x, log, unit = panel.x.column, panel.y.scale == "log", 1.0
    if panel.over:
        unit = float(points.loc[points["series"] == panel.over, "value"].min())
    points = points.assign(**{name: points[name] / unit + panel.plus for name in MEASURES})
    if log:
        # An error of zero (one arm, equal rewards) has no place there.
        points = points[~(points["value"] <= 0)]
    drawn = list(_series(panel, points, x))
    there = np.unique(np.concatenate([rows[x] for rows, _, _ in drawn]))
    values = np.concatenate([rows["value"] for rows, _, _ in drawn])
    if np.isnan(values).all():
        values = np.concatenate([rows["estimate"] for rows, _, _ in drawn])
    for rows, _, look in drawn:
        if look.width == 1.0 and "pool_low" in rows:
            # A band is seen whole, unless it would take more room than the lines.
            ends = rows[["pool_low", "pool_high"]].to_numpy().ravel()
            values = np.append(
                values, np.clip(ends, np.nanmin(values) / 1.2, 1.5 * np.nanmax(values))
            )
    for curve in panel.curves:
        heights = np.asarray(curve.values(there), float)
        if curve.through:
            heights *= drawn[0][0]["value"].iloc[0] / heights[0]
        else:
            values = np.append(values, heights)
        axis.plot(there, heights, zorder=1.5, **style.stroke(LOOKS[curve.look]))
    _scale(axis, "x", panel.x, there)
    _scale(axis, "y", panel.y, values)
    floor = axis.get_ylim()[0] / 10 if log else None
    for rows, line, look in drawn:
        _draw_line(axis, x, rows, look, floor, line.aside)
    # An end that is not declared is that of the drawn data.
    for which, limits in (("x", panel.x.limits), ("y", panel.y.limits)):
        if limits != (None, None):
            axis.set(**{f"{which}lim": limits})
    _guide(axis, panel)
    return drawn


def _ends(drawn: Sequence[Drawn]) -> list[tuple[float, str, Sequence[Look]]]:
    """The label of each line's end; lines that end in the same place share one."""
    ends: list[tuple[float, str, Sequence[Look]]] = []
    for rows, line, look in drawn:
        end = float(rows["value"].iloc[-1])
        if ends and abs(ends[-1][0] - end) < 1e-6 * abs(end):
            _, text, looks = ends.pop()
            ends.append((end, f"{text}\n= {line.label}", (*looks, look)))
        elif np.isfinite(end):
            ends.append((end, line.label, (look,)))
    return ends


def _series(panel: Panel, points: pd.DataFrame, x: str) -> Iterator[Drawn]:
    """The panel's series that have points, in order of the abscissa."""
    for line in _lines(panel, points):
        rows = _rows(points, line)
        rows = rows.sort_values(x, kind="stable")
        if panel.precise:
            # By their precision, not by where they lie, or only those that came out too large would
            # be seen.
            vague = ~(rows["high"] - rows["low"] < 2 * rows["value"])
            rows.loc[vague, MEASURES[1:]] = np.nan
        if line.cut:
            rows = rows[(rows["pool_low"] > rows["value"] / 5).cummin()]
        if len(rows):
            look = LOOKS[line.look]
            label = line.label or look.label or style.plain(line.series)
            marker = look.marker if rows["estimate"].notna().any() else ""
            yield rows, replace(line, label=label), replace(look, marker=marker)


def _lines(panel: Panel, points: pd.DataFrame) -> Iterator[Line]:
    """The panel's lines, each of one series and with its look; one without a name is of all series."""
    lines = [line if isinstance(line, Line) else Line(line) for line in panel.lines]
    named = []
    for line in lines:
        rows = _rows(points, line)
        for name in [line.series] if line.series else dict.fromkeys(rows["series"]):
            label = line.label
            if not line.series:
                label = style.plain(label.format(**rows[rows["series"] == name].iloc[0]))
            named.append(replace(line, series=name, label=label))
    for place, line in enumerate(named):
        look = line.look or line.series
        other = style.CYCLE[place % len(style.CYCLE)]
        yield replace(line, look=look if look in LOOKS else other)


def _rows(points: pd.DataFrame, line: Line) -> pd.DataFrame:
    rows = points[points["series"] == line.series] if line.series else points
    for column, value in line.at.items():
        # A file of one problem alone reads as booleans, one of several as words.
        rows = rows[rows[column].astype(str) == str(value)]
    return rows


def _draw_line(
    axis: Axes, x: str, rows: pd.DataFrame, look: Look, floor: float | None, aside: int
) -> None:
    """A series' line with the band of its prediction, if there is one, and its points ``aside`` of their
    place; bands and intervals that would leave a logarithmic axis end at the floor.
    """
    if look.width == 1.0 and "pool_low" in rows and rows["pool_low"].notna().any():
        low, high = (rows[end].clip(lower=floor) for end in ("pool_low", "pool_high"))
        axis.fill_between(rows[x], low, high, color=look.colour, alpha=0.13, lw=0, zorder=1)
    line = rows[rows["value"].notna()]
    if look.dash is not None and len(line):
        zorder = 2 if look.width == 1.0 else 1.5
        axis.plot(line[x], line["value"], zorder=zorder, **style.stroke(look))
    measured = rows[rows["estimate"].notna()]
    if floor is not None:
        # One at or below 0 contradicts the prediction, and has no place on this axis.
        measured = measured[measured["estimate"] > 0]
    style.measured(axis, measured[x] * ASIDE**aside, measured, look, least=floor)


def _scale(axis: Axes, which: str, declared: Axis, values: Any) -> None:
    """Scale, ticks, limits and label of one axis that shows these values."""
    values = values[np.isfinite(values)]
    ticks, log = list(declared.ticks), declared.scale == "log"
    axis.margins(y=0.08)
    if log and which == "y":
        style.decades(axis, values)
    elif log:
        low, high = float(values.min()), float(values.max())
        axis.set_xlim(low / 1.15, high * 1.15)
        ticks = ticks or _sizes(low, high)
        ticks = [tick for tick in ticks if low / 1.15 <= tick <= high * 1.15]
    elif declared.scale == "symlog":
        axis.set_xscale("symlog", linthresh=2, linscale=0.4)
        axis.minorticks_off()
    if log and ticks:
        style.log_axis(axis, which, ticks)
    if isinstance(declared.ticks, Mapping):
        axis.set(**{f"{which}ticks": ticks, f"{which}ticklabels": list(declared.ticks.values())})
    elif ticks and not log:
        labels = [f"{tick:g}" for tick in ticks]
        axis.set(**{f"{which}ticks": ticks, f"{which}ticklabels": labels})
    axis.set(**{f"{which}label": declared.label})


def _sizes(low: float, high: float) -> list[float]:
    """Ticks of group sizes and the like: powers of two, with those of three where these are few."""
    powers = [2.0**n for n in range(-8, 13)]
    return sorted({*powers, *(1.5 * power for power in powers if power > 1 and high <= 8 * low)})


def _guide(axis: Axes, panel: Panel) -> None:
    """Grey lines, bands and words to read the panel by."""
    if panel.band:
        axis.axhspan(*panel.band, color="0.9", lw=0, zorder=0)
    for height in panel.levels:
        axis.axhline(height, color=GREY, lw=0.6, zorder=1)
    for place in panel.uprights:
        axis.axvline(place, color=GREY, lw=0.6, zorder=1)
    for power, *at in panel.slopes:
        style.slope(axis, power, (at[0], at[1]))
    for text, x, height in panel.notes:
        axis.text(x, height, text, transform=axis.get_xaxis_transform(), color=GREY)


_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def missed(points: pd.DataFrame) -> str:
    """How many of the points' intervals exclude what is predicted, in words; "" where there are none."""
    if "prediction" not in points:
        return ""  # a sweep has none
    values = points["prediction"].fillna(points["exact"])
    points = points[values.notna() & np.isfinite(points["low"]) & np.isfinite(points["high"])]
    if not len(points):
        return ""
    outside = ~values[points.index].between(points["low"], points["high"])
    return f"{outside.sum()} of {len(points)} intervals exclude the predicted value."


def save(
    figure: Figure,
    drawing: Drawing,
    folder: Path,
    formats: Sequence[str] = ("svg", "png"),
    said: str = "",
    source: str | None = None,
) -> Iterator[Path]:
    """Write the figure in these formats: no dates, no versions, no names that change.

    Arguments:
        figure: what is declared of it.
        drawing: what Matplotlib has drawn.
        folder: where its files go.
        formats: names of formats.
        said: what else its data say, in words.
        source: the run that it is drawn from. A PNG names the digest of its SVG.
    """
    svg = _svg(figure, drawing, f"{figure.alt} {said}".strip(), source)
    digest = sha256(svg.encode()).hexdigest()
    for name in formats:
        target = folder / f"{figure.name}.{name}"
        if name == "svg":
            target.write_text(svg, encoding="utf-8", newline="\n")
        else:
            about = _METADATA[name] | ({"Source": digest} if name == "png" else {})
            drawing.savefig(target, dpi=300, metadata=about)
        yield target


def _svg(figure: Figure, drawing: Drawing, alt: str, source: str | None) -> str:
    buffer = BytesIO()
    about = {"Date": None, "Creator": None, "Title": figure.title, "Source": source}
    drawing.savefig(buffer, format="svg", metadata=about)
    # A screen reader says this of the drawing, where the page around it says nothing.
    described = f"</title>\n <desc>{escape(alt)}</desc>"
    return buffer.getvalue().decode().replace("</title>", described, 1)
