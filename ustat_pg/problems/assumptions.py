"""Whether the assumptions hold for a problem on a region, with the numbers that decide."""

from __future__ import annotations

import math

import numpy as np

from ..validation import InputError, positive, record
from .enclosures import VANISHING_SHARE, Enclosure, Neighbourhood, constants
from .escape import escape_to_infinity
from .location_bandit import LocationBandit
from .softmax_bandit import SoftmaxBandit

__all__ = ["AssumptionCheck", "AssumptionReport", "check_assumptions"]


@record(eq=True)
class AssumptionCheck:
    """One assumption on one problem.

    Arguments:
        number: the paper's.
        statement: what it asks for.
        holds: None where this accuracy does not decide.
        evidence: the number that decides.
        explanation: that number in words.
        where: the worst parameters found, (d,), or None.
    """

    number: int
    statement: str
    holds: bool | None
    evidence: float
    explanation: str
    where: tuple[float, ...] | None = None


@record(eq=True)
class AssumptionReport:
    """What :func:`check_assumptions` found; printed, one line per assumption."""

    checks: tuple[AssumptionCheck, ...]
    region: str

    def __getitem__(self, number: int) -> AssumptionCheck:
        for check in self.checks:
            if check.number == number:
                return check
        raise KeyError(number)

    @property
    def holds(self) -> bool:
        """Whether every assumption was shown to hold."""
        return all(check.holds for check in self.checks)

    def __str__(self) -> str:
        words = {True: "holds", False: "FAILS", None: "not decided"}
        lines = [f"on {self.region}:"]
        for check in self.checks:
            lines.append(
                f"  Assumption {check.number} ({check.statement}) {words[check.holds]}: "
                f"{check.explanation}"
            )
        return "\n".join(lines)


_STATEMENTS = {
    3: "smooth return, bounded score",
    4: "Polyak-Lojasiewicz",
    7: "maximisers convex, Hessian of constant rank",
    9: "weak strong concavity",
}


def _check(
    number: int, holds: bool | None, evidence: float, text: str, where: object = None
) -> AssumptionCheck:
    point = None if where is None else tuple(np.asarray(where, dtype=np.float64).tolist())
    return AssumptionCheck(number, _STATEMENTS[number], holds, float(evidence), text, point)


def _above(found: Enclosure, claimed: float) -> bool | None:
    """Whether a constant is at least what is claimed for it; None where the enclosure is too wide."""
    if found.lower >= claimed:
        return True
    return False if found.upper < claimed else None


def check_assumptions(
    problem: LocationBandit | SoftmaxBandit,
    region: Neighbourhood | float | None = None,
    *,
    smoothness: float | None = None,
    pl: float | None = None,
    weak: float | None = None,
    tolerance: float = 0.01,
    budget: int = 200_000,
) -> AssumptionReport:
    """Whether Assumptions 3, 4, 7 and 9 hold for a problem on a region, with the numbers.

    For a location bandit the answers are proofs but for rounding; what the budget does not decide is
    said to be undecided. For a softmax bandit over all parameters see :func:`escape_to_infinity`.

    Arguments:
        problem: a location bandit, or a softmax bandit on all of its parameters.
        region: region as for :func:`constants`; for a softmax bandit it must be None.
        smoothness, pl, weak: constants to be checked: an L at least ``smoothness.lower`` and so
            on. Without them any positive constant will do.
        tolerance, budget: arguments of :func:`constants`.

    Raises:
        InputError: as for :func:`constants`; a claimed constant that is not positive; a region or a
            claimed constant with a softmax bandit.

    >>> problem = LocationBandit.bump([-1.0, 0.0, 1.0], [-0.7, 0.8, 0.3])
    >>> check_assumptions(problem, 0.5).holds
    True
    >>> bandit = SoftmaxBandit.tabular([1.0], [[0.0, 0.0]], [[[1.0], [0.0]]], [[[1.0], [1.0]]])
    >>> [(c.number, c.holds) for c in check_assumptions(bandit).checks]
    [(3, True), (4, False), (7, False), (9, False)]
    """
    claimed = {"smoothness": smoothness, "pl": pl, "weak": weak}
    for name, value in claimed.items():
        if value is not None:
            positive(name, value)
    if isinstance(problem, SoftmaxBandit):
        if region is not None or any(value is not None for value in claimed.values()):
            raise InputError(
                "a softmax bandit is checked on all of its parameters: no region, no constants"
            )
        return _softmax_report(problem)
    found = constants(problem, region, tolerance=tolerance, budget=budget)
    spread = np.ptp(problem.arms) / problem.tau**2
    score = float(np.linalg.norm(problem.directions, axis=1).max() * spread)
    if problem.second_rewards is not None:
        score = math.hypot(score, 1.0)
    smooth = found.smoothness
    enough: bool | None = True
    if smoothness is not None and smoothness < smooth.upper:
        enough = False if smoothness < smooth.lower else None
    checks = [
        _check(
            3,
            enough,
            smooth.upper,
            f"L in [{smooth.lower:.4g}, {smooth.upper:.4g}]"
            + ("" if smoothness is None else f", {smoothness:g} claimed")
            + f"; ‖score‖ <= {score:.4g}",
            smooth.where,
        )
    ]
    vanishing = VANISHING_SHARE * float(problem.curvatures[0])
    for number, enclosure, letter, claim in (
        (4, found.pl, "μ", pl),
        (7, found.growth, "growth", None),
        (9, found.weak, "μ'", weak),
    ):
        if claim is not None:
            holds = _above(enclosure, claim)
        elif enclosure.lower > 0:
            holds = True
        else:
            holds = False if enclosure.upper <= vanishing else None
        text = f"{letter} in [{enclosure.lower:.4g}, {enclosure.upper:.4g}]"
        text += "" if claim is None else f", {claim:g} claimed"
        if number == 7:
            rank = problem.identifiable.shape[1]
            text = (
                f"2 gap/distance² >= {enclosure.lower:.4g}: "
                + ("one maximiser" if holds else "perhaps more than one maximiser")
                + f" up to {problem.d - rank} flat directions, rank {rank}, "
                f"least curvature {problem.curvatures[0]:.4g}"
            )
        checks.append(_check(number, holds, enclosure.value, text, enclosure.where))
    ball = found.region
    where = f"the ball of radius {ball.radius:g} about {np.round(ball.centre, 4).tolist()}"
    return AssumptionReport(tuple(checks), where)


def _softmax_report(problem: SoftmaxBandit) -> AssumptionReport:
    policy = problem.policy
    mean = problem.mean_rewards[problem.context_probs > 0]
    diameter = float(policy.diameters(np.ones(problem.mean_rewards.shape, bool)).max())
    smooth = float(np.ptp(mean, axis=1).max()) * diameter**2
    checks = [_check(3, True, smooth, f"L <= {smooth:.4g}, ‖score‖ <= {diameter:.4g} everywhere")]
    region = "all parameters"
    if not np.ptp(mean, axis=1).any():
        text = "the return is constant: every parameter is a maximiser"
        return AssumptionReport((*checks, *(_check(n, True, 0.0, text) for n in (4, 7, 9))), region)
    ray = escape_to_infinity(problem)
    if ray is None:
        text = "no ray separates the best arms: the optimum may be interior, nothing is proved"
        return AssumptionReport(
            (*checks, *(_check(n, None, math.nan, text) for n in (4, 7, 9))), region
        )
    far = policy.theta + ray.steps[-1] * ray.direction
    ratios = ", ".join(
        f"{ratio:.2g} at t = {t:g}" for t, ratio in zip(ray.steps, ray.ratios, strict=True)
    )
    unattained = (
        f"the supremum is not attained: the gap is {ray.gaps[0]:.2g} at t = {ray.steps[0]:g}, "
        f"{ray.gaps[-1]:.2g} at t = {ray.steps[-1]:g}, and 0 at no parameters"
    )
    checks += [
        _check(
            4,
            False,
            ray.ratios[-1],
            f"‖∇J‖²/(2 gap) tends to 0 at infinity: {ratios}; it is at most "
            f"{diameter**2 / 2:.3g} gap; {unattained}",
            far,
        ),
        _check(7, False, ray.gaps[-1], f"there is no maximiser: {unattained}", far),
        _check(9, False, ray.gaps[-1], f"there is no maximiser to point to: {unattained}", far),
    ]
    return AssumptionReport(tuple(checks), region)
