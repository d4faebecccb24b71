"""The one decider: a statement and its rivals against the evidence on one quantity.

A statement says in which region a quantity lies: at a point (equal), below a bound (at most), or
above zero (order). A rival is a wrong formula and says otherwise. Evidence is an estimate with an
interval; enumerated evidence has an interval as wide as its rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isfinite

from scipy.stats import norm

from ..validation import InputError
from .intervals import Interval
from .planning import MISS_RATE

__all__ = [
    "Decision",
    "Evidence",
    "RivalVerdict",
    "Statement",
    "Verdict",
    "at_most",
    "attained",
    "decide",
    "equal",
    "positive",
    "worst",
]

ROUNDING = 1e-9
"""Relative to a statement's scale: closer values are the same number."""


class Verdict(StrEnum):
    """The verdict on a check or on a claim."""

    CONFIRMED = "CONFIRMED"
    REFUTED = "REFUTED"
    INCONCLUSIVE = "INCONCLUSIVE"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of several: REFUTED if one is, else INCONCLUSIVE if one is; CONFIRMED of none.

    >>> worst([Verdict.CONFIRMED, Verdict.INCONCLUSIVE]).value
    'INCONCLUSIVE'
    """
    heard = set(verdicts)
    grave = (Verdict.REFUTED, Verdict.INCONCLUSIVE)
    return next((verdict for verdict in grave if verdict in heard), Verdict.CONFIRMED)


class RivalVerdict(StrEnum):
    """The verdict on a wrong formula: NOT DISTINGUISHABLE where it gives the prediction's own value,
    NOT TESTED where no check speaks of it (a design that does not fit the problem, nothing enumerable).
    """

    REFUTED = "REFUTED"
    SURVIVED = "SURVIVED"
    NOT_DISTINGUISHABLE = "NOT DISTINGUISHABLE"
    NOT_TESTED = "NOT TESTED"


@dataclass(frozen=True)
class Statement:
    """Where a quantity lies, and where each rival says that it lies.

    Arguments:
        prediction: the value expected.
        region: the values that the statement allows.
        rivals: values that each rival allows, by its name.
        scale: what rounding and margins are relative to; positive or 0.
        margin: the half-width asked of an interval where no rival asks for a smaller one.
        floor: the rounding error of the quantity itself, whatever the statement's scale.
    """

    prediction: float
    region: Interval
    rivals: Mapping[str, Interval] = field(default_factory=dict)
    scale: float = 1.0
    margin: float = inf
    floor: float = 0.0

    def __post_init__(self) -> None:
        _finite(self.prediction)

    @property
    def tolerance(self) -> float:
        """Differences below this are rounding."""
        return max(ROUNDING * self.scale, self.floor)

    def gap(self, rival: str) -> float:
        """Distance of the prediction from what the rival allows."""
        return self.rivals[rival].distance(self.prediction)

    def distinguishable(self, rival: str) -> bool:
        """Whether the rival says anything else than the statement here: not if it lies within the
        prediction's own error.
        """
        between = isfinite(self.region.low) and isfinite(self.region.high)
        if between and self.rivals[rival].meets(self.region):
            return False
        return self.gap(rival) > self.tolerance

    def margin_for(self, rivals: Collection[str]) -> float:
        """The half-width that an interval needs: half the gap to the nearest of these rivals."""
        gaps = [self.gap(r) / 2 for r in rivals if self.distinguishable(r)]
        return min([self.margin, *gaps])


def _finite(prediction: float) -> None:
    if not isfinite(prediction):
        raise InputError(f"a prediction is {prediction}: it must be finite")


def equal(
    prediction: float,
    rivals: Mapping[str, float] | None = None,
    *,
    scale: float | None = None,
    relative_margin: float = 0.1,
    digits: float = 0.0,
) -> Statement:
    """The quantity is the prediction; each rival names another number.

    Arguments:
        prediction: the value.
        rivals: values by name; those that are not finite are left out.
        scale: natural size of the quantity where the prediction may be 0.
        relative_margin: the half-width asked for, in units of scale, where no rival asks for less.
        digits: the prediction's own error, and its rivals': half a unit of the last digit where it
            is a printed figure.
    """
    _finite(prediction)
    size = abs(prediction) if scale is None else scale
    # A rival made by the same approximation has the same error.
    points = {n: Interval(v - digits, v + digits) for n, v in (rivals or {}).items() if isfinite(v)}
    slack = max(digits, ROUNDING * size)
    return Statement(
        prediction,
        Interval(prediction - slack, prediction + slack),
        points,
        size,
        max(relative_margin * size, digits),
    )


def positive(prediction: float, rivals: Collection[str], *, scale: float) -> Statement:
    """The quantity is positive, of the size predicted; each rival says that it is not.

    Raises:
        InputError: the prediction is not positive by more than rounding.
    """
    if not prediction > ROUNDING * scale:
        raise InputError(f"an order needs a positive prediction, not {prediction}")
    below = Interval(-inf, 0.0)
    return Statement(
        prediction, Interval(0.0, inf), dict.fromkeys(rivals, below), scale, prediction / 2
    )


def at_most(
    bound: float, prediction: float, rivals: Mapping[str, float] | None = None
) -> Statement:
    """The quantity is below the bound; each rival is a tighter bound, false here.

    Arguments:
        bound: the upper bound.
        prediction: the quantity's own value, at most the bound; their difference is the slack.
        rivals: tighter bounds by name.
    """
    tighter = {name: Interval(-inf, value) for name, value in (rivals or {}).items()}
    slack = bound - prediction
    region = Interval(-inf, bound + ROUNDING * abs(bound))
    return Statement(prediction, region, tighter, abs(bound), max(slack / 2, 0.0))


def attained(
    bound: float,
    prediction: float,
    rivals: Mapping[str, float] | None = None,
    *,
    ratio: float = 1.05,
) -> Statement:
    """The quantity lies below the bound, and the bound is at most ``ratio`` times the quantity; each
    rival is another bound of which it says the same.

    Arguments:
        bound: the upper bound, positive.
        prediction: the quantity's own value.
        rivals: other bounds by name.
        ratio: number above 1.

    Raises:
        InputError: a bound that is not positive and finite, or a ratio of at most 1.
    """
    if not 0 < bound < inf or not ratio > 1:
        raise InputError(
            f"bound is {bound} and ratio {ratio}: the bound must be positive, the ratio above 1"
        )

    def between(value: float) -> Interval:
        return Interval(value / ratio, value + ROUNDING * abs(value))

    others = {name: between(value) for name, value in (rivals or {}).items()}
    return Statement(prediction, between(bound), others, bound, bound * (1 - 1 / ratio) / 2)


@dataclass(frozen=True)
class Evidence:
    """What an engine found out about a quantity.

    Arguments:
        estimate: its value.
        interval: that misses the truth with probability at most alpha.
        standard_error: Monte Carlo standard error; 0 where enumerated.
        replications: 0 where enumerated.
        alpha: the allotted false-alarm rate; 0 where enumerated.
        rounding: discrepancies up to this cannot be told from rounding.
    """

    estimate: float
    interval: Interval
    standard_error: float = 0.0
    replications: int = 0
    alpha: float = 0.0
    rounding: float = 0.0

    @classmethod
    def enumerated(cls, value: float, statement: Statement) -> Evidence:
        """Evidence without sampling error, with the rounding that the statement allows."""
        if not isfinite(value):
            return cls(value, Interval(-inf, inf))
        slack = statement.tolerance
        return cls(value, Interval(value - slack, value + slack), rounding=slack)

    @property
    def smallest_discrepancy(self) -> float:
        """A discrepancy as large as this is seen with probability 1 - the miss rate."""
        seen = self.interval.half_width + float(norm.isf(MISS_RATE)) * self.standard_error
        return max(seen, self.rounding)


@dataclass(frozen=True)
class Decision:
    """The verdicts on a statement and on its rivals."""

    verdict: Verdict
    rivals: Mapping[str, RivalVerdict]


def decide(
    statement: Statement, evidence: Evidence, required: Collection[str] | None = None
) -> Decision:
    """REFUTED if the interval misses the statement's region; CONFIRMED if it meets it, is narrow
    enough to exclude every required rival and, for a one-sided statement, lies inside the region;
    else INCONCLUSIVE.

    Arguments:
        statement: what is claimed.
        evidence: the estimate and its interval.
        required: the rivals this check was planned to exclude; all of them unless given.

    >>> claim = equal(1.0, {"twice": 2.0})
    >>> decide(claim, Evidence(1.01, Interval(0.95, 1.07), 0.01, 1000, 1e-3)).verdict.value
    'CONFIRMED'
    >>> decide(claim, Evidence(2.01, Interval(1.95, 2.07), 0.01, 1000, 1e-3)).verdict.value
    'REFUTED'
    """
    required = statement.rivals if required is None else required
    verdicts = {}
    for name, region in statement.rivals.items():
        if not statement.distinguishable(name):
            verdicts[name] = RivalVerdict.NOT_DISTINGUISHABLE
        elif evidence.interval.meets(region):
            verdicts[name] = RivalVerdict.SURVIVED
        else:
            verdicts[name] = RivalVerdict.REFUTED
    allowed = statement.region.widened(statement.floor)
    if not isfinite(evidence.estimate) or not evidence.interval.meets(allowed):
        # An estimate that is not a number speaks for nothing.
        sound = isfinite(evidence.estimate)
        return Decision(Verdict.REFUTED if sound else Verdict.INCONCLUSIVE, verdicts)
    one_sided = not isfinite(statement.region.low) or not isfinite(statement.region.high)
    enough = (
        evidence.interval.inside(statement.region.widened(2 * statement.tolerance))
        if one_sided
        else evidence.interval.half_width
        <= max(statement.margin_for(required), 2 * statement.tolerance) * (1 + 1e-9)
    )
    excluded = all(verdicts[name] != RivalVerdict.SURVIVED for name in required)
    verdict = Verdict.CONFIRMED if enough and excluded else Verdict.INCONCLUSIVE
    return Decision(verdict, verdicts)
