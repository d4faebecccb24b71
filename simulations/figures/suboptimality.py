"""The figure of Lemma 6 (suboptimality): its texts and its points."""

from __future__ import annotations

from collections.abc import Iterator

from ..engines import Constant, Decay
from ..evidence import Point
from ..problems import Suite
from ..shared.basins import Basin
from ..shared.runs import rates_of

STEM = "suboptimality"


def curves(suite: Suite) -> Iterator[Point]:
    """The mean gap and its bound against T, for two schedules, from the edge of two balls. The
    gap nearly attains the bound on one ball, but not on the other.
    """
    bowl, slopes = (suite.landscapes[name][0] for name in ("bowl", "slopes"))
    steps = tuple(2**n for n in range(13))
    for basin, rate in ((Basin(bowl, 0.08, 0.07), 0.01), (Basin(slopes, 0.6, 0.5), 0.02)):
        c = 1.5 / basin.pl
        decay = Decay(c, float(round(c / rate)))
        for name, schedule in (("constant", Constant(rate)), ("decay", decay)):
            runs = basin.runs(2, steps[-1], schedule)
            bounds = basin.bounds(rates_of(schedule, steps[-1]), basin.mse("grpo", 2))
            for step in steps:
                at = {"problem": basin.entry.name, "step": step}
                value, gap = runs.expected(step=step), runs.gap(step=step)
                yield Point(STEM, f"{name}: gap", at, value, gap)
                yield Point(STEM, f"{name}: bound", at, float(bounds[step]))
