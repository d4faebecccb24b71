"""Planted effects, which a run must refute before it is believed; what is true must be confirmed.

A coin, whose errors take two values, goes through the draws, blocks, merging, intervals, plan and
decider of the claims. What is true of it must be confirmed, what is planted must be refuted, by
enumeration and by simulation, and an interval must hold at its rate, worked out over all outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from math import exp, isclose, log, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.stats import binom, chi2, kstwo, norm

from ..checks import (
    Evidence,
    Forecast,
    Interval,
    RivalVerdict,
    Statement,
    Verdict,
    at_most,
    attained,
    decide,
    equal,
    positive,
    replications_needed,
)
from ..checks.planning import MOST
from ..engines import (
    Cell,
    Distance,
    Estimator,
    GradientCell,
    MomentSums,
    Projection,
    SquaredError,
    Training,
)
from ..engines.runs.cell import BINS, TrainingQuantity
from ..problems import SoftmaxBandit
from ..results import CheckResult, ClaimResult, Control, Findings
from ..validation import InputError
from .blocks import Block
from .chi_squares import ChiSquares, TransformOf
from .claim import Check, Claim
from .functionals import (
    Eigenvalue,
    EverySample,
    Functional,
    LawDistance,
    LawExcess,
    Linear,
    LogSlope,
    Ratio,
    mean_of,
)
from .measurements import Measurements
from .options import Options
from .pits import Pit
from .plan import alpha_of, make_plan
from .runner import run_claims
from .store import Memory
from .work import Work, environment

__all__ = ["PLANTED", "run_controls"]

PLANT = "an effect planted"

PLANTED = 0.02
"""The planted effect, as a share of the value: simulation must refute it."""

SMALLEST = 1e-6
"""The planted effect that enumeration must refute."""

FALSE_ALARMS = 1e-3
"""The most that all claims together may err."""

ALPHA, TOSSES = 0.05, 4_000_000
"""Rate and sample size at which an interval's own rate is worked out."""

UNLIKELY = 1e-9
"""Probability below which draws are not taken for those of the coin."""

SIZES = (30_000, 7, 1_000, 34_529)
"""Unequal blocks of the coin: a merge that forgets their sizes is seen."""

SEAMS = (1 << 14, 1 << 32)
"""Replications at which a block's numbers could begin again: a block that runs past one is the blocks
before and after it.
"""

AROUND = (-100, -97, 0, 1, 600)
"""Where the blocks around a seam begin and end."""

MOST_ALIKE = 32_768
"""The most replications of a block whose halves are compared."""

BLOCKS, LANES = 64, 256
"""Blocks whose means are compared, and the replications of each."""

OUTPUTS_OF_RUNS = 1_000_000
"""Outputs of whole runs that may be drawn to compare addresses."""


class Coin:
    """One prompt with two answers, of which the first, of chance p, has reward 1.

    With baseline 0 and G = 1 the score is (1-p) u or -p u, ‖u‖² = 2, the gradient p (1-p) u, and so
    ‖ĝ - g‖² is 2 (1-p)⁴ with chance p, else 2 p² (1-p)².
    """

    p = 0.4
    high, low = 2 * (1 - p) ** 4, 2 * p**2 * (1 - p) ** 2
    mean = p * high + (1 - p) * low
    problem = SoftmaxBandit.tabular(
        [1.0], np.log([[p, 1 - p]]), np.array([[[1.0], [0.0]]]), np.ones((1, 2, 1))
    )
    error = SquaredError(Estimator("vanilla"))

    @classmethod
    def cell(cls, group_size: int = 1) -> GradientCell:
        """The coin as a cell; the error of G tosses is that of one over G."""
        return GradientCell(cls.problem, group_size)

    @classmethod
    def once(cls) -> Linear:
        """The mean error of one toss."""
        return mean_of(cls.cell(), cls.error)

    @classmethod
    def less(cls, constant: float) -> Linear:
        """The same less a number."""
        return Linear(cls.cell(), ((cls.error, 1.0),), -constant)

    @classmethod
    def ratio(cls) -> Ratio:
        """The error over what it would be with heads and tails exchanged; its mean is not 1."""
        other = Linear(cls.cell(), ((cls.error, -1.0),), cls.high + cls.low)
        return Ratio(cls.once(), other, cls.high + cls.low - cls.mean)

    @classmethod
    def slope(cls) -> LogSlope:
        """The slope of the error on log G, -1."""
        points = cls.once(), mean_of(cls.cell(2), cls.error)
        return LogSlope((0.0, log(2)), points, (cls.mean, cls.mean / 2))

    @classmethod
    def sums(cls, heads: int, tosses: int) -> dict[str, Any]:
        """The sums of so many tosses with so many heads."""
        share = heads / tosses
        mean = share * cls.high + (1 - share) * cls.low
        products = tosses * share * (1 - share) * (cls.high - cls.low) ** 2
        sums = MomentSums(tosses, np.array([mean]), np.array([[products]]))
        return {cls.cell().name: ((cls.error,), sums)}


def run_controls(
    claims: Sequence[Claim], options: Options, executor: Executor | None = None
) -> tuple[Control, ...]:
    """What a run must refute and what it must not, by the engine, seed and decider of its claims.

    Arguments:
        claims: claims of the run: their shares of the false alarms are added up, and their whole
            runs drawn for the comparison of addresses.
        options: options of the run; by enumeration alone there are no intervals to control.
        executor: executor of the run's blocks.
    """
    controls: dict[str, Callable[[], Iterator[str]]] = {
        "planted effects": lambda: _planted(options, executor),
        "verdicts": _verdicts,
        "false alarms": lambda: _false_alarms(claims),
    }
    if options.simulates:
        controls |= {
            "intervals": _intervals,
            "draws and sums": lambda: _drawn(claims, options, executor),
        }
    return tuple(_control(name, failures) for name, failures in controls.items())


def _control(name: str, failures: Callable[[], Iterator[str]]) -> Control:
    try:
        said = "; ".join(failures())
    except InputError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # What cannot be asked has not held.
        said = f"{type(error).__name__}: {error}"
    return Control(name, not said, said)


# Planted effects, by the runner.


def _claim(effect: float) -> Claim:
    """What is true of the coin, with an effect planted in each statement."""
    mean, off = Coin.mean, 1 + effect
    swapped = Coin.high + Coin.low - mean
    drop = effect * mean or -0.1 * mean
    bound = mean * (1 - effect if effect else 1.1)

    def same(value: float) -> Statement:
        return equal(off * value, {PLANT: (1 + PLANTED) * off * value})

    table: dict[str, tuple[Functional, Statement]] = {
        "mean": (Coin.once(), same(mean)),
        "ratio": (Coin.ratio(), same(mean / swapped)),
        "slope": (Coin.slope(), same(-1.0)),
        "order": (Coin.less(mean + drop), positive(abs(drop), [PLANT], scale=mean)),
        "bound": (Coin.once(), at_most(bound, 0.9 * bound, {PLANT: 0.9 * mean})),
        "attained": (
            Coin.once(),
            attained(mean * (1 - effect), 0.99 * mean * (1 - effect), {PLANT: 0.9 * mean}),
        ),
    }
    checks = []
    for name, (functional, statement) in table.items():
        # Each check has a rival of its own, which it is planned to refute.
        own = {f"{PLANT} in the {name}": region for region in statement.rivals.values()}
        checks.append(Check(name, "made-up", functional, replace(statement, rivals=own)))
    return Claim("mse", tuple(f"{PLANT} in the {name}" for name in table), tuple(checks))


def _planted(options: Options, executor: Executor | None) -> Iterator[str]:
    """The coin's own claim is confirmed, and each statement refuted with an effect planted in it."""
    # A run that may draw little says so of its claims; the coin gets what it needs.
    how = replace(options, size="full", progress=False)

    def settled(effect: float, by: Options) -> ClaimResult:
        return run_claims([_claim(effect)], by, Memory(), executor).claims[0]

    true, wrong = settled(0.0, how), settled(PLANTED, how)
    hardly = settled(SMALLEST, replace(how, engine="exact"))
    for check in true.checks:
        for kind, found in check.found.items():
            if found.verdict != Verdict.CONFIRMED:
                yield f"a true {check.name} is {found.verdict.value} by {kind}"
    if true.verdict != Verdict.CONFIRMED:
        yield f"a true claim is {true.verdict.value}"
    for effect, claim in ((PLANTED, wrong), (SMALLEST, hardly)):
        for check in claim.checks:
            for kind, found in check.found.items():
                if found.verdict != Verdict.REFUTED:
                    yield (
                        f"a {check.name} that is off by {effect:g} is {found.verdict.value} by {kind}"
                    )
        if claim.verdict != Verdict.REFUTED:
            yield f"a claim that is off by {effect:g} is {claim.verdict.value}"


# The decider, on evidence made up.


def _verdicts() -> Iterator[str]:
    """What is open is INCONCLUSIVE, of a check and of its claim; no rival is left out."""
    asked = Check("open", "made-up", Coin.once(), equal(1.0, {"planted": 2.0}))
    coincides = Check("same", "made-up", Coin.once(), equal(1.0, {"planted": 1.0}))
    identity = EverySample(Coin.cell(), ((Coin.error, 1.0),), limit=1e-9)
    sample = Check("identity", "made-up", identity, equal(0.0, scale=0.0))
    sharp, wide = (Evidence(1.0, Interval(1 - h, 1 + h), h / 5, 1000, ALPHA) for h in (0.1, 1.2))

    def of(check: Check, *evidence: Evidence) -> ClaimResult:
        results = []
        for number, found in enumerate(evidence):
            by = {
                kind: Findings.of(found, decide(check.statement, found))
                for kind in ("exact", "simulation")
            }
            results.append(
                CheckResult.of(f"{check.name} {number}", "made-up", check.statement, by, None)
            )
        return ClaimResult.of("mse", ("planted",), results, simulates=True)

    cases = {
        "a narrow interval about the truth": (of(asked, sharp), Verdict.CONFIRMED),
        "an interval that holds a rival": (of(asked, sharp, wide), Verdict.INCONCLUSIVE),
        "a rival that coincides": (of(coincides, sharp), Verdict.INCONCLUSIVE),
    }
    for what, (claim, verdict) in cases.items():
        if claim.verdict != verdict:
            yield f"with {what} a claim is {claim.verdict.value}"
    if of(asked, wide).rivals[0].verdict != RivalVerdict.SURVIVED:
        yield "a rival that an interval holds did not survive"
    for value, verdict in ((1e-10, Verdict.CONFIRMED), (1e-8, Verdict.REFUTED)):
        sums = {Coin.cell().name: ((Coin.error,), MomentSums.of([[value], [value]]))}
        found = decide(sample.statement, identity.evidence(sums, ALPHA, sums)).verdict
        if found != verdict:
            yield f"an identity that is {value} off is {found.value}"


def _false_alarms(claims: Sequence[Claim]) -> Iterator[str]:
    """The rates of all checks add up to the suite's at most."""
    spent = sum(
        alpha_of(claim) * sum(check.functional.errs for check in claim.checks) for claim in claims
    )
    if spent > FALSE_ALARMS * (1 + 1e-9):
        yield f"the checks may err at {spent:.2g} together, which must not exceed {FALSE_ALARMS:g}"


# Intervals, by all outcomes.


def _intervals() -> Iterator[str]:
    """A true statement is refuted with probability alpha at most, whatever comes of the tosses."""
    mean, swapped = Coin.mean, Coin.high + Coin.low - Coin.mean
    for what, functional, value in (
        ("mean", Coin.once(), mean),
        ("ratio", Coin.ratio(), mean / swapped),
    ):
        centre, far = round(TOSSES * Coin.p), round(20 * sqrt(TOSSES))
        below, above = (
            centre + sign * _first(partial(_refuted, functional, equal(value), centre, sign), far)
            for sign in (-1, 1)
        )
        rate = float(binom.cdf(below, TOSSES, Coin.p) + binom.sf(above - 1, TOSSES, Coin.p))
        if rate > ALPHA:
            yield f"the interval of a {what} at the rate {ALPHA:g} misses with probability {rate:.2g}"
    yield from _forecasts()
    yield from _slopes()
    yield from _eigenvalues()
    yield from _laws()


def _forecasts() -> Iterator[str]:
    """An interval made for a rare head, or for a rare tail, holds at its rate for any other coin too;
    and what is planned for a half-width gives it, as a hundredth less would not.
    """
    n, chances, margin = 30, np.array([0.03, 0.1, 0.5, 0.9, 0.97]), 0.01
    shares = np.arange(n + 1) / n
    for mean in (0.01, 0.99):
        forecast = Forecast(mean, mean * (1 - mean), 0.0, 1.0)
        found = [
            forecast.interval(n, share, share * (1 - share) * n / (n - 1), ALPHA)
            for share in shares.tolist()
        ]
        missed = np.array([[not each.contains(p) for p in chances.tolist()] for each in found])
        rates = np.sum(binom.pmf(np.arange(n + 1)[:, None], n, chances) * missed, axis=0)
        if rates.max() > ALPHA:
            yield (
                f"the interval of a mean expected at {mean:g} misses one of "
                f"{chances[rates.argmax()]:g} with probability {rates.max():.2g}, not {ALPHA:g}"
            )
        planned = replications_needed(margin, forecast, ALPHA)
        one, less = (forecast.half_width(n, ALPHA) for n in (planned, planned - planned // 100))
        if not one <= margin < less:
            yield f"half-widths of {one:.3g} are planned for {margin:g}"


def _refuted(functional: Functional, statement: Statement, heads: int, sign: int, by: int) -> bool:
    """Whether so many heads more or fewer refute a statement."""
    evidence = functional.evidence(
        Coin.sums(heads + sign * by, TOSSES), ALPHA, Coin.sums(heads, TOSSES)
    )
    return decide(statement, evidence).verdict == Verdict.REFUTED


def _first(holds: Callable[[int], bool], most: int) -> int:
    """The first number at which it holds, from which on it does."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _slopes() -> Iterator[str]:
    """A slope's interval reaches as far as those of its points, at half the rate each."""
    slope = Coin.slope()
    heads = round(TOSSES * Coin.p)
    one = Coin.sums(heads, TOSSES)
    sums = one | {Coin.cell(2).name: one[Coin.cell().name]}
    first, last = (point.evidence(sums, ALPHA / 2, sums).interval for point in slope.points)
    low, high = (log(last.low / first.high) / log(2), log(last.high / first.low) / log(2))
    found = slope.evidence(sums, ALPHA, sums).interval
    if found.low > low + 1e-9 or found.high < high - 1e-9:
        yield "the interval of a slope is narrower than those of its points"


def _eigenvalues() -> Iterator[str]:
    """Of three equal entries the larger eigenvalue is their double: its interval is that of each, doubled."""
    sums = Coin.sums(round(TOSSES * Coin.p), TOSSES)
    found = Eigenvalue(((Coin.once(),) * 3,), (1.0,), 1).evidence(sums, ALPHA, sums).interval
    entry = Coin.once().evidence(sums, ALPHA / 3, sums).interval
    if found.low > 2 * entry.low + 1e-9 or found.high < 2 * entry.high - 1e-9:
        yield "the interval of an eigenvalue is narrower than those of its matrix"


def _laws() -> Iterator[str]:
    """The bands of laws hold at their rate: by Kolmogorov's law, and by Massart's inequality."""
    n, cell = TOSSES // 100, SimpleNamespace(name="laws")
    pits = [SimpleNamespace(label=label, weights=()) for label in ("one", "other")]
    known: Any = cell
    distance, excess = LawDistance(known, pits[0]), LawExcess(known, *pits)  # type: ignore[arg-type]
    even = np.full(BINS, n / BINS)

    def off(functional: Functional, by: int) -> bool:
        moved = even.copy()
        moved[0] += by
        moved[-1] -= by
        counts: Any = {"one": moved, "other": even}
        sums: Any = {"laws": ((), MomentSums(n, np.zeros(0), np.zeros((0, 0)), counts))}
        evidence = functional.evidence(sums, ALPHA, sums)
        return decide(equal(0.0, scale=1.0), evidence).verdict == Verdict.REFUTED

    band = _first(lambda by: off(distance, by), n // 2) / n
    if float(kstwo.sf(band, n)) > ALPHA:
        yield f"the band of a law at the rate {ALPHA:g} misses more often"
    band = _first(lambda by: off(excess, by), n // 2) / n
    if 2 * exp(-n * band**2 / 2) > ALPHA:
        yield f"the band between two laws at the rate {ALPHA:g} misses more often"


# Draws, blocks and their merging.


def _drawn(claims: Sequence[Claim], options: Options, executor: Executor | None) -> Iterator[str]:
    with environment(options, executor) as pool:
        work = Work(Memory(), replace(options, progress=False), pool)
        yield from _plans(options)
        yield from _sums(work)
        yield from _cells(work)
        for prompts in (1, 3):
            # No two groups of 16 out of 100 answers are alike by chance.
            rewards = np.linspace(0.0, 1.0, 100 * prompts).reshape(prompts, 100, 1)
            problem = SoftmaxBandit.tabular(
                np.full(prompts, 1 / prompts), np.sin(7 * rewards[..., 0]), rewards, 0 * rewards + 1
            )
            cell = GradientCell(problem, 16, prompts)
            yield from _addresses(cell, (Coin.error,), work, MOST_ALIKE)
            yield from _seams(cell, work)
        yield from _runs(claims, work)


def _block(cell: Cell, quantities: Any, work: Work, first: int, n: int, seed: int = 0) -> Block:
    options = work.options
    engine = cell.engine(options.engine)
    return Block(cell, tuple(quantities), engine, options.seed + seed, first, n, options.device)


def _sums(work: Work) -> Iterator[str]:
    """Sums of a coin's blocks are those of its heads, and these are as many as they should be."""
    cell, total = Coin.cell(), sum(SIZES)
    starts = np.cumsum((0, *SIZES[:-1])).tolist()
    parts = [
        _block(cell, (Coin.error,), work, first, n) for first, n in zip(starts, SIZES, strict=True)
    ]
    whole = _block(cell, (Coin.error,), work, 0, total)
    work.run([*parts, whole], "controls")
    for what, sums in (("merged blocks", work.sums(parts)), ("a block", work.sums([whole]))):
        mean = float(sums.mean[0])
        heads = round(total * (mean - Coin.low) / (Coin.high - Coin.low))
        expected = Coin.sums(heads, total)[cell.name][1]
        # The sample's variance with divisor n - 1, over n.
        share = heads / total
        error = (Coin.high - Coin.low) * sqrt(share * (1 - share) / (total - 1))
        named = {cell.name: ((Coin.error,), sums)}
        found = Coin.once().evidence(named, ALPHA, named)
        if sums.n != total or not isclose(mean, float(expected.mean[0]), rel_tol=1e-12):
            yield f"the mean of {what} is not that of their tosses"
        elif not isclose(found.standard_error, error, rel_tol=1e-9):
            yield (
                f"the standard error of {what} is {found.standard_error / error:.3g} times that of "
                "their tosses"
            )
        deviation = (heads - total * Coin.p) / sqrt(total * Coin.p * (1 - Coin.p))
        if abs(deviation) > norm.isf(UNLIKELY / 2):
            yield f"{heads} heads in {total} tosses of chance {Coin.p}, {deviation:.1f} deviations off"
    few = MomentSums.of([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    if not np.allclose(few.covariance, [[1 / 3, -1 / 3], [-1 / 3, 1 / 3]], rtol=1e-12, atol=0):
        yield "the covariance of a small sample is biased"
    # One and three times these two are 3, 1 and 1.
    other = SquaredError(Estimator("constant", 0.5))
    both = Linear(cell, ((Coin.error, 1.0), (other, 3.0)))
    if not isclose(both.moments({cell.name: ((Coin.error, other), few)})[2], 4 / 3, rel_tol=1e-12):
        yield "the variance of a sum forgets the covariance of its terms"
    ends = zip(cell.ends(Coin.error), cell.ends(other), strict=True)
    if not np.allclose(both.range, [one + 3 * more for one, more in ends], rtol=1e-12, atol=0):
        yield "the range of a sum is not that of its terms"


def _plans(options: Options) -> Iterator[str]:
    """Pilots draw for no verdict; a rival is planned for on problems of each origin that has it."""
    measured = Measurements([Coin.once()], options)
    name = Coin.cell().name
    pilot, after = (wave[name] for wave in (measured.pilot_tasks, measured.next_tasks))
    if min(pilot.first, after.first) < MOST:
        yield f"pilots draw from replication {pilot.first} on, which verdicts read too"
    statement = equal(Coin.mean, {PLANT: (1 + PLANTED) * Coin.mean})
    origins = ("made-up", "generated", "real")
    checks = tuple(Check(origin, origin, Coin.once(), statement) for origin in origins)
    roomy = replace(options, size="full")
    plan = make_plan(Claim("mse", (PLANT,), checks), Coin.sums(400, 1000), roomy)
    for origin in origins:
        # What is too much work on real data is reported, and this is little.
        if PLANT not in plan.required[origin]:
            yield f"a rival on {origin} problems is planned for nowhere"


def _cells(work: Work) -> Iterator[str]:
    """No two cells share their draws; nor do the replications of one whose words NumPy draws."""
    asked = (TransformOf((1.0,), 1.0),)
    yield from _addresses(ChiSquares(), asked, work, MOST_ALIKE)
    blocks = [_block(ChiSquares(number), asked, work, 0, 64) for number in (0, 1)]
    work.run(blocks, "controls")
    first, second = (work.sums([block]).mean for block in blocks)
    if np.array_equal(first, second):
        yield "two cells share their draws"


def _seams(cell: GradientCell, work: Work) -> Iterator[str]:
    """A block over a seam is its parts merged: their number, means, and products of two quantities."""
    grpo, oracle = Estimator("grpo"), Estimator("oracle")
    # With more than one prompt another body draws and measures.
    other = Distance(grpo, oracle) if cell.batch_size == 1 else Projection(grpo)
    quantities = SquaredError(grpo), other
    for seam in SEAMS:
        ends = [seam + by for by in AROUND]
        parts = [
            _block(cell, quantities, work, start, stop - start) for start, stop in pairwise(ends)
        ]
        whole = _block(cell, quantities, work, ends[0], ends[-1] - ends[0])
        work.run([*parts, whole], "controls")
        merged, one = work.sums(parts), work.sums([whole])
        same = [
            np.allclose(getattr(merged, part), getattr(one, part), rtol=1e-9, atol=0)
            for part in ("n", "mean", "products")
        ]
        if not all(same):
            yield f"a block over replication {seam} is not its parts merged"


def _addresses(
    cell: Cell, quantities: Any, work: Work, most: int, together: int = 1
) -> Iterator[str]:
    """No replications at a distance of a power of two share their draws, nor two halves of a block,
    nor two seeds.

    Arguments:
        together: replications that are compared at once, a power of two: those of short runs may be
            alike one by one.
    """
    starts = [0, *(together << k for k in range(64 - together.bit_length()))]
    alone = {
        f"replication {first}": _block(cell, quantities, work, first, together) for first in starts
    }
    alone |= {f"seed +{by}": _block(cell, quantities, work, 0, together, by) for by in (1, 2**32)}
    sizes = [together << k for k in range((most // together).bit_length())]
    nested = [_block(cell, quantities, work, 0, n) for n in sizes]
    work.run([*alone.values(), *nested], "controls")
    kind = type(cell).__name__
    found = {what: work.sums([block]).mean for what, block in alone.items()}
    for (one, first), (other, second) in combinations(found.items(), 2):
        if np.array_equal(first, second):
            yield f"{kind}: {one} and {other} share their draws"
            break
    means = [work.sums([block]).mean for block in nested]
    for n, half, mean in zip(sizes, means, means[1:], strict=False):
        if np.allclose(half, mean, rtol=1e-13, atol=0):
            yield f"{kind}: replications from {n} to {2 * n} of a block are those from 0 to {n} again"
            break
    yield from _spread(cell, quantities, work)


def _spread(cell: Cell, quantities: Any, work: Work) -> Iterator[str]:
    """Means of blocks are as far apart as the variance in them says: replications that share a part of
    their draws are not alike, but their mean varies more.
    """
    blocks = [_block(cell, quantities, work, k * LANES, LANES) for k in range(BLOCKS)]
    work.run(blocks, "controls")
    sums = [work.sums([block]) for block in blocks]
    variance = np.mean([each.covariance[0, 0] for each in sums])
    between = LANES * np.var([each.mean[0] for each in sums], ddof=1)
    law = chi2(BLOCKS - 1)
    low, high = law.ppf(UNLIKELY / 2), law.isf(UNLIKELY / 2)
    if not low <= (BLOCKS - 1) * between / variance <= high:
        yield (
            f"{type(cell).__name__}: means of {LANES} replications vary {between / variance:.2g} times "
            "as much as independent ones would"
        )


def _runs(claims: Sequence[Claim], work: Work) -> Iterator[str]:
    """The same of the claims' least whole runs with one prompt a step and with several."""
    functionals = [check.functional for claim in claims for check in claim.checks]
    least: dict[bool, Training] = {}
    for functional in functionals:
        for cell in functional.cells:
            # Few outputs may be alike by chance.
            if isinstance(cell, Training) and cell.outputs >= 100:
                known = least.get(cell.batch_size > 1, cell)
                least[cell.batch_size > 1] = min(known, cell, key=lambda c: (c.outputs, c.name))
    for cell in least.values():
        reading = [f for f in functionals if any(part.name == cell.name for part in f.cells)]
        quantities = Measurements(reading, work.options).pilot_tasks[cell.name].quantities
        most = min(OUTPUTS_OF_RUNS // cell.outputs, MOST_ALIKE)
        yield from _addresses(cell, quantities, work, most, 8)
        # Of any law: its histogram is that of the values whose mean is kept.
        asked = quantities[0]
        assert isinstance(asked, TrainingQuantity)
        pit = Pit(asked.estimator, cell.steps, (1.0,))
        block = _block(cell, (pit,), work, 0, 8)
        work.run([block], "controls")
        sums = work.sums([block])
        middles = (np.arange(BINS) + 0.5) / BINS
        if abs(sums.counts[pit.label] @ middles / sums.n - sums.mean[0]) > 0.5 / BINS:
            yield "the histogram of a law is not that of its values"
