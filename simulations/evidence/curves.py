"""Curves: measured points and predictions for figures, without decisions.

A point is a functional on a cell, like in a check, with coordinates instead of a statement. Points use the
same blocks and the same store as checks. So a curve costs nothing if a check has drawn the same cell, and a
figure can be drawn again without new samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from scipy.stats import t as student

from ustat_pg.validation import InputError

from .functionals import Linear, Ratio
from .intervals import Interval
from .laws import LawShare
from .measurements import Measurements
from .options import Options, block_of
from .store import Store
from .verdict import Evidence
from .work import Work, environment

if TYPE_CHECKING:
    import pandas as pd

ALPHA = 0.05
"""The error rate of intervals in figures: each is a 95% interval, without decisions."""

MEASURES = ("prediction", "exact", "estimate", "standard_error", "low", "high", "replications")
"""Columns of a curve that are not coordinates."""


@dataclass(frozen=True)
class Point:
    """One point of a figure.

    Arguments:
        figure: the figure's name.
        series: its line in the figure, for example a baseline's name.
        at: its coordinates by name, numbers or words.
        prediction: value of the closed form; None if there is none.
        functional: measured functional; None for a point that is only predicted.
        enumerate: whether to compute its exact value too.
    """

    figure: str
    series: str
    at: Mapping[str, object]
    prediction: float | None = None
    functional: Linear | Ratio | LawShare | None = field(default=None, repr=False)
    enumerate: bool = False

    def __post_init__(self) -> None:
        if self.prediction is None and self.functional is None:
            raise InputError(f"{self.figure}: a point needs a prediction or a functional")
        if self.prediction is not None and not isfinite(self.prediction):
            raise InputError(f"{self.figure}: prediction {self.prediction} is not finite")


def _interval(evidence: Evidence) -> Interval:
    n = evidence.replications
    if n < 2 or not isfinite(evidence.estimate):
        return Interval(-inf, inf)
    half = float(student.ppf(1 - ALPHA / 2, n - 1)) * evidence.standard_error
    return Interval(evidence.estimate - half, evidence.estimate + half)


def measurements_of(
    points: Sequence[Point], options: Options, drawn: Mapping[str, int] | None = None
) -> tuple[Measurements, dict[str, int]]:
    """What is measured for points, and the replications of each cell: where draws are so dear that verdicts
    take several looks, at least those that verdicts have ``drawn``, by cell.
    """
    functionals = [point.functional for point in points if point.functional is not None]
    wanted = [p.functional for p in points if p.functional is not None and p.enumerate]
    measured = Measurements(functionals, options, enumerated=wanted)
    size = options.drawn
    replications = {
        name: min(int(cell.shown(size.point_blocks) * block_of(cell)), size.point_most)
        for name, cell in measured.cells.items()
    }
    for name, number in (drawn or {}).items():
        if name in replications and measured.cells[name].looks > 1:
            replications[name] = max(replications[name], number)
    return measured, replications


def run_points(
    points: Sequence[Point],
    options: Options,
    store: Store,
    executor: Executor | None = None,
    drawn: Mapping[str, int] | None = None,
) -> pd.DataFrame:
    """Measure the points that the store lacks, and return all points as a tidy frame.

    Arguments:
        points: points of one figure or several.
        options: size (how many blocks each point gets), engine, seed, workers.
        store: store of finished blocks.
        executor: executor of the blocks (default: threads).
        drawn: the replications of verdicts, by cell.

    Returns:
        one row for each point: figure, series, its coordinates, prediction, exact, estimate,
        standard_error, low, high (a 95% interval), replications.
    """
    import pandas as pd

    measured, replications = measurements_of(points, options, drawn)
    with environment(options, executor) as pool:
        work = Work(store, options, pool)
        work.run([*measured.exact_tasks.values(), *measured.tasks(replications)], "curves")
        known, sums = measured.exact(work), measured.drawn(work, replications)
    rows = []
    for point in points:
        row: dict[str, Any] = {"figure": point.figure, "series": point.series, **point.at}
        row["prediction"] = point.prediction
        if point.functional is not None:
            if point.enumerate and measured.why_not_exact(point.functional) is None:
                row["exact"] = point.functional.exact(known)
            if sums:
                # Its interval is for verdicts: figures show one of their own.
                evidence = point.functional.evidence(sums, ALPHA, sums)
                interval = _interval(evidence)
                row |= {"low": interval.low, "high": interval.high}
                kept = ("estimate", "standard_error", "replications")
                row |= {name: getattr(evidence, name) for name in kept}
        rows.append(row)
    return tidy([pd.DataFrame(rows)])


def tidy(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Rows of points together, the columns of their coordinates before those of what was measured."""
    import pandas as pd

    held = [frame for frame in frames if len(frame)]
    none = pd.DataFrame(columns=["figure", "series"])
    frame = pd.concat(held, ignore_index=True) if held else none
    places = [name for name in frame.columns if name not in MEASURES]
    return frame.reindex(columns=[*places, *MEASURES])
