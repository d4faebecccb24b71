"""A pool's constants in the metric of an optimizer's step and in others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...display.shown import Shown, plain
from .constants import ConstantsEstimate, constants
from .printing import plain as digits
from .scored import PLAIN, ScoredPool

if TYPE_CHECKING:
    import pandas as pd

_MOST = 0.5
_RESTS = (
    "\nMost of the noise in this metric is in coordinates of which the training has seen little. "
    "Their v grows at the first\nlarge gradient, so the metric is not fixed there: rely on the floored one."
)
_SHOWN = {"g_star": "G*", "k_crit": "critical budget"}


@dataclass(frozen=True)
class Metrics(Shown):
    """A pool's constants in the metric of a step, in the plain one, and with small v raised to a floor.

    Source: Theorem 7 (group_size), for scores √P s.

    Arguments:
        constants: c1, c2, c3, G* and the critical budget by metric: the pool's own, ``plain``, ``floored``.
        coordinates: the share of coordinates with v below the floor, a thousandth of its median.
        shares: the share of these in E‖s‖², c1, c2 and c3 of the pool's own metric; that of c1 may lie
            outside 0 to 1, because c1 is estimated without bias.
    """

    constants: dict[str, ConstantsEstimate]
    coordinates: float
    shares: dict[str, float]

    def to_frame(self) -> pd.DataFrame:
        """A row for each metric and each estimate, with its interval."""
        import pandas as pd

        frames = [found.to_frame().assign(metric=name) for name, found in self.constants.items()]
        return pd.concat(frames, ignore_index=True)

    def to_dict(self) -> dict[str, Any]:
        """The rows of ``to_frame`` and the shares of small v, as a dict for JSON."""
        shares = {"coordinates": self.coordinates, **self.shares}
        return {"metrics": plain(self.to_frame()), "small_v": plain(shares)}

    def __str__(self) -> str:
        from tabulate import tabulate

        rows = [
            [name, *(_interval(found.estimates[key]) for key in _SHOWN)]
            for name, found in self.constants.items()
        ]
        table = tabulate(rows, ["metric", *_SHOWN.values()], disable_numparse=True)
        rests = self.shares["c3"] > _MOST
        # Adding 0 turns -0 to 0.
        parts = ", ".join(f"{round(s, 2) + 0.0:.0%} of {name}" for name, s in self.shares.items())
        return (
            f"{table}\n\nfloored: with v of at least a thousandth of its median. {self.coordinates:.1%} of "
            f"coordinates have less; they give {parts}." + (_RESTS if rests else "")
        )


def _interval(found: Any) -> str:
    low, high = (digits(end) for end in found.interval)
    return f"{digits(found.value)} [{low}, {high}]"


def metrics(pool: ScoredPool, population: int | None = None) -> Metrics | None:
    """The constants of a pool that was scored for an optimizer, in each metric; None for another pool.

    Arguments:
        pool: a pool of at least two prompts.
        population: as for :func:`~ustat_pg.llm.pool.constants.constants`.
    """
    if not (others := pool.metrics):
        return None
    own, small = constants(pool, population), constants(others["small"], population)
    shares = {
        name: small.estimates[name].value / value if (value := own.estimates[name].value) else 0.0
        for name in ("c1", "c2", "c3")
    }
    norms = others["small"].squared_norms.mean() / pool.squared_norms.mean()
    known = {name: constants(others[name], population) for name in (PLAIN, "floored")}
    return Metrics(
        {pool.metric: own, **known},
        float(pool.config["metric"]["small_share"]),
        {"E‖s‖²": float(norms), **shares},
    )
