"""The decider, which compares a statement and its rivals with the evidence on one quantity.

A statement gives the region of a quantity: a point (equal), below a bound (at most), or above zero (order). A
    rival is a wrong formula with another region. Evidence is an estimate with an interval; for enumerated
    evidence the interval is its rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf, isfinite, isnan, nan
from typing import Any

from scipy.special import ndtri

from .intervals import ANYWHERE, Interval
from .planning import MISS_RATE

ROUNDING = 1e-9
"""The distance, relative to a statement's scale, below which values count as equal."""

PLAN_ERROR = 1.2
"""The factor by which a half-width may exceed the planned one, because a pilot's variance is an estimate."""


class Verdict(StrEnum):
    """The verdict on a check or on a claim."""

    CONFIRMED = "CONFIRMED"
    REFUTED = "REFUTED"
    INCONCLUSIVE = "INCONCLUSIVE"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The joint verdict: REFUTED if one is, else INCONCLUSIVE if one is, else CONFIRMED.

    >>> worst([Verdict.CONFIRMED, Verdict.INCONCLUSIVE]).value
    'INCONCLUSIVE'
    """
    heard = set(verdicts)
    grave = (Verdict.REFUTED, Verdict.INCONCLUSIVE)
    return next((verdict for verdict in grave if verdict in heard), Verdict.CONFIRMED)


class RivalVerdict(StrEnum):
    """The verdict on a wrong formula: NOT DISTINGUISHABLE if it gives the prediction's value, NOT TESTED if
    no check tests it (the design does not fit the problem, or nothing can be enumerated).
    """

    REFUTED = "REFUTED"
    SURVIVED = "SURVIVED"
    NOT_DISTINGUISHABLE = "NOT DISTINGUISHABLE"
    NOT_TESTED = "NOT TESTED"


@dataclass(frozen=True)
class Statement:
    """The region of a quantity, and the region according to each rival.

    Arguments:
        prediction: expected value; NaN if the formula does not give a number.
        region: values that the statement allows.
        rivals: values that each rival allows, by its name.
        scale: unit of rounding and margins; positive or 0.
        margin: the half-width that an interval needs where no rival needs a smaller one.
        floor: the rounding error of the quantity itself, whatever the statement's scale.
    """

    prediction: float
    region: Interval
    rivals: Mapping[str, Interval] = field(default_factory=dict)
    scale: float = 1.0
    margin: float = inf
    floor: float = 0.0

    @property
    def coherent(self) -> bool:
        """Whether the prediction is a number in its own region, up to rounding.

        A prediction of the wrong sign, or a bound that is below its own prediction, is refuted
        whatever the evidence says.
        """
        return isfinite(self.prediction) and self.region.widened(self.tolerance).contains(
            self.prediction
        )

    @property
    def two_sided(self) -> bool:
        """Whether the region ends on both sides."""
        return isfinite(self.region.low) and isfinite(self.region.high)

    @property
    def tolerance(self) -> float:
        """Differences below this are rounding."""
        return max(ROUNDING * self.scale, self.floor)

    def gap(self, rival: str) -> float:
        """The distance of the prediction from the rival's region."""
        return self.rivals[rival].distance(self.prediction)

    def distinguishable(self, rival: str) -> bool:
        """Whether the rival differs from the statement here. It does not if it is nearer than three
        times the prediction's possible error.

        A rival has the same error as the prediction, so the two regions are then as far apart as each
        is wide.
        """
        apart = 2 * self.region.half_width if self.two_sided else 0.0
        if apart and self.rivals[rival].meets(self.region):
            return False
        return self.gap(rival) > max(self.tolerance, apart * (1 - ROUNDING))

    def coarser(self, times: float) -> Statement:
        """The statement with the half-width multiplied by ``times``.

        A one-sided statement does not change, because an interval must lie inside its region.
        """
        return replace(self, margin=times * self.margin) if self.two_sided else self

    def margin_for(self, rivals: Collection[str]) -> float:
        """The half-width that an interval needs: half the gap to the nearest of these rivals."""
        gaps = [self.gap(r) / 2 for r in rivals if self.distinguishable(r)]
        return min([self.margin, *gaps])


def _no_number(rivals: Collection[str]) -> Statement:
    """The statement of a formula that gives no number: not coherent, and no rival differs from it."""
    return Statement(nan, ANYWHERE, dict.fromkeys(rivals, ANYWHERE), 0.0)


def equal(
    prediction: float,
    rivals: Mapping[str, float] | None = None,
    *,
    scale: float | None = None,
    relative_margin: float = 0.1,
    digits: float = 0.0,
) -> Statement:
    """The quantity is the prediction; each rival names another number."""
    # A rival from the same approximation has the same error.
    points = {n: Interval(v - digits, v + digits) for n, v in (rivals or {}).items() if isfinite(v)}
    size = abs(prediction) if scale is None else scale
    if not isfinite(prediction) or not isfinite(size):
        return _no_number(points)
    slack = max(digits, ROUNDING * size)
    return Statement(
        prediction,
        Interval(prediction - slack, prediction + slack),
        points,
        size,
        max(relative_margin * size, digits),
    )


def positive(prediction: float, rivals: Collection[str], *, scale: float) -> Statement:
    """The quantity is positive, of the predicted size; each rival says that it is not positive.

    A prediction that is not positive by more than rounding is refuted.
    """
    if not isfinite(prediction) or not isfinite(scale):
        return _no_number(rivals)
    below = Interval(-inf, 0.0)
    # A rounding error of 0 does not count as positive.
    region = Interval(2 * ROUNDING * scale, inf)
    margin = max(prediction / 2, 0.0)
    return Statement(prediction, region, dict.fromkeys(rivals, below), scale, margin)


def at_most(
    bound: float, prediction: float, rivals: Mapping[str, float] | None = None
) -> Statement:
    """The quantity is below the bound; each rival is a tighter bound, false here.

    Arguments:
        bound: the upper bound.
        prediction: the quantity's own value; refuted if it is above the bound. The difference is the
            slack.
        rivals: tighter bounds by name; those that are NaN are omitted.
    """
    if not isfinite(bound) or not isfinite(prediction):
        return _no_number(rivals or ())
    known = {name: value for name, value in (rivals or {}).items() if not isnan(value)}
    tighter = {name: Interval(-inf, value) for name, value in known.items()}
    slack = bound - prediction
    region = Interval(-inf, bound + ROUNDING * abs(bound))
    return Statement(prediction, region, tighter, abs(bound), max(slack / 2, 0.0))


def attained(
    bound: float,
    prediction: float,
    rivals: Mapping[str, float] | None = None,
    *,
    ratio: float = 1.05,
    relative_margin: float = 0.0,
) -> Statement:
    """The quantity lies below the bound, and the bound is at most ``ratio`` times the quantity; each
    rival makes the same statement about another bound.

    Arguments:
        bound: the upper bound.
        prediction: the quantity's own value; refuted if the bound is not attained by it.
        rivals: other bounds by name; those that are not finite are omitted.
        ratio: a number above 1.
        relative_margin: the required half-width, in units of the bound, if half the width of the allowed
            region is less and no rival needs less.
    """

    def between(value: float) -> Interval:
        # A bound below 0 allows nothing above it.
        return Interval(min(value / ratio, value), value + ROUNDING * abs(value))

    others = {name: between(value) for name, value in (rivals or {}).items() if isfinite(value)}
    if not isfinite(bound) or not isfinite(prediction):
        return _no_number(others)
    size = abs(bound)
    margin = size * max((1 - 1 / ratio) / 2, relative_margin)
    return Statement(prediction, between(bound), others, size, margin)


@dataclass(frozen=True)
class Evidence:
    """An engine's evidence about a quantity.

    Arguments:
        estimate: its value.
        interval: an interval that misses the truth with probability at most alpha.
        standard_error: Monte Carlo standard error; 0 if enumerated.
        replications: 0 if enumerated.
        alpha: the allotted false-alarm rate; 0 if enumerated.
        rounding: discrepancies up to this are indistinguishable from rounding.

    If the estimate is not finite, its interval is the whole line.
    """

    estimate: float
    interval: Interval
    standard_error: float = 0.0
    replications: int = 0
    alpha: float = 0.0
    rounding: float = 0.0

    def __post_init__(self) -> None:
        if not isfinite(self.estimate) and self.interval != ANYWHERE:
            raise ValueError(f"an estimate of {self.estimate} in {self.interval}")

    @classmethod
    def between(cls, estimate: float, low: float, high: float, *rest: Any, **more: Any) -> Evidence:
        """Evidence with an interval between two ends; an end that is NaN gives no bound.

        Arguments:
            estimate: its value.
            low, high: the ends.
            rest, more: the other fields.
        """
        if not isfinite(estimate):
            return cls(nan, ANYWHERE, *rest, **more)
        interval = Interval(-inf if isnan(low) else low, inf if isnan(high) else high)
        return cls(estimate, interval, *rest, **more)

    @classmethod
    def unknown(cls, replications: int, alpha: float) -> Evidence:
        """Evidence without information."""
        return cls(nan, ANYWHERE, inf, replications, alpha)

    @classmethod
    def enumerated(cls, value: float, statement: Statement) -> Evidence:
        """Evidence without sampling error, with the rounding that the statement allows."""
        slack = statement.tolerance
        return cls.between(value, value - slack, value + slack, rounding=slack)

    @property
    def smallest_discrepancy(self) -> float:
        """A discrepancy of this size is detected with probability 1 - the miss rate."""
        seen = self.interval.half_width - float(ndtri(MISS_RATE)) * self.standard_error
        return max(seen, self.rounding)


@dataclass(frozen=True)
class Decision:
    """The verdicts on a statement and on its rivals."""

    verdict: Verdict
    rivals: Mapping[str, RivalVerdict]


def decide(
    statement: Statement, evidence: Evidence, required: Collection[str] | None = None
) -> Decision:
    """REFUTED if the interval or the prediction itself misses the statement's region; CONFIRMED
    if it meets the region, excludes each required rival and is narrow enough, or, for a one-sided
    statement, lies inside the region; else INCONCLUSIVE.

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
    if not statement.coherent or not evidence.interval.meets(allowed):
        return Decision(Verdict.REFUTED, verdicts)
    # An estimate or rounding error that is not finite is no evidence.
    sound = isfinite(evidence.estimate) and isfinite(statement.tolerance)
    enough = sound and (
        evidence.interval.half_width
        <= max(PLAN_ERROR * statement.margin_for(required), 2 * statement.tolerance)
        if statement.two_sided
        else evidence.interval.inside(statement.region.widened(2 * statement.tolerance))
    )
    excluded = all(verdicts[name] != RivalVerdict.SURVIVED for name in required)
    verdict = Verdict.CONFIRMED if enough and excluded else Verdict.INCONCLUSIVE
    return Decision(verdict, verdicts)
