"""Controls: planted effects that a run must refute, and true statements that it must not refute.

A coin, with errors of two values, goes through the draws, blocks, merging, intervals, plan and decider of the
claims. True statements about it must be confirmed and planted ones refuted, by enumeration and by simulation;
an interval must have its error rate, computed over all outcomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import reduce
from itertools import chain
from math import isfinite, log, nan, sqrt
from typing import Any

import numpy as np
from scipy.stats import binom, chi2, norm

from ustat_pg.engines import Cell, Estimator, GradientCell, MomentSums, SquaredError
from ustat_pg.problems import SoftmaxBandit
from ustat_pg.validation import InputError

from ..engines import Training
from ..engines.runs.cell import BINS
from .blocks import Block
from .chi_squares import ChiSquares, TransformOf
from .claim import Check, Claim
from .findings import KINDS, ORIGINS, CheckResult, Findings
from .functionals import (
    Eigenvalue,
    EverySample,
    Functional,
    Linear,
    LogSlope,
    Ratio,
    Sums,
    mean_of,
)
from .intervals import Forecast, Interval
from .measurements import Measurements
from .options import Options
from .pits import Pit
from .plan import Plan, make_plan
from .planning import MOST, replications_needed
from .results import ClaimResult, Control
from .runner import run_claims
from .store import Memory
from .verdict import Evidence, Verdict, at_most, attained, decide, equal, positive
from .work import Work, environment

PLANT, PLANTED, SMALLEST = "an effect planted", 0.02, 1e-6
"""The planted effect, as a share of the value, and a smaller one that enumeration must refute."""

FALSE_ALARMS = 1e-3
"""The largest error rate of all claims together."""

ALPHA, TOSSES = 0.05, 2_000
"""The rate and the sample size at which an interval's own error rate is computed."""

FAR = round(2.5 * sqrt(TOSSES))
"""The deviation of heads from their mean that fewer than one in a million runs exceed."""

UNLIKELY = 1e-9
"""The probability below which draws do not count as independent."""

SIZES = (30_000, 7, 1_000, 34_529)
"""Unequal blocks of the coin, which expose a merge that ignores their sizes."""

BLOCKS, LANES = 64, 256
"""The number of blocks whose means are compared, and their replications."""

P = 0.4
"""The probability of the coin's reward. With baseline 0 and G = 1 the score is (1-p) u or -p u, ‖u‖² = 2."""

HIGH, LOW = 2 * (1 - P) ** 4, 2 * P**2 * (1 - P) ** 2
MEAN = P * HIGH + (1 - P) * LOW
COIN = SoftmaxBandit.tabular(
    [1.0], np.log([[P, 1 - P]]), np.array([[[1.0], [0.0]]]), np.ones((1, 2, 1))
)
CELL, ERROR = GradientCell(COIN, 1), SquaredError(Estimator("vanilla"))
ONCE = mean_of(CELL, ERROR)
RATIO = Ratio(ONCE, Linear(CELL, ((ERROR, -1.0),), HIGH + LOW), HIGH + LOW - MEAN)
"""The error divided by its value with heads and tails exchanged."""
EXCHANGED = MEAN / (HIGH + LOW - MEAN)
MAY_BE_NOTHING = Linear(CELL, ((ERROR, 1.0),), -0.99 * MEAN)
"""A mean above 0, with an interval after so many tosses that includes 0."""


class _Lost(Linear):
    """A mean that draws measure and an enumeration does not find."""

    def exact(self, sums: Sums) -> float:
        return nan


class _Looked(GradientCell):
    """The coin with several looks."""

    looks = 3


def run_controls(
    claims: Sequence[Claim], options: Options, executor: Executor | None = None
) -> tuple[Control, ...]:
    """Check what a run must and must not refute, with the engine, seed and decider of its claims.

    Arguments:
        claims: the claims of the run: the shares of their false alarms are summed, and their whole
            runs are drawn for the comparison of addresses.
        options: options of the run; with enumeration only there are no intervals to control.
        executor: executor of the run's blocks.
    """
    controls: dict[str, Callable[[], Iterator[str]]] = {
        "planted effects": lambda: _planted(options, executor),
        "verdicts": lambda: chain(_verdicts(), _no_numbers(options, executor)),
        "false alarms": lambda: _false_alarms(claims),
    }
    if options.simulates:
        controls["intervals"] = _intervals
        controls["draws and sums"] = lambda: _drawn(claims, options, executor)
    return tuple(_control(name, failures) for name, failures in controls.items())


def _control(name: str, failures: Callable[[], Iterator[str]]) -> Control:
    try:
        message = "; ".join(failures())
    except InputError:
        raise
    except Exception as error:
        # A control that cannot run counts as failed.
        message = f"{type(error).__name__}: {error}"
    return Control(name, not message, message)


def _planted(options: Options, executor: Executor | None) -> Iterator[str]:
    """The coin's claim is confirmed, and each kind of statement refuted with an effect planted in it."""
    # A run with few draws reports this for its claims; the coin gets all draws that it needs.
    how = replace(options, size="full", progress=False)
    for effect, by in ((0.0, how), (PLANTED, how), (SMALLEST, replace(how, engine="exact"))):
        claim = run_claims([_claim(effect)], by, Memory(), executor).claims[0]
        verdicts = {c.name: f.verdict for c in claim.checks for f in c.findings.values()}
        for what, verdict in {**verdicts, "claim": claim.verdict}.items():
            if verdict != (Verdict.REFUTED if effect else Verdict.CONFIRMED):
                yield f"a {what} that is off by {effect:g} is {verdict.value}"


def _claim(effect: float) -> Claim:
    """True statements about the coin, with an effect planted in each."""
    off, drop = 1 + effect, effect * MEAN or -0.1 * MEAN
    bound, least = MEAN * (1 - effect if effect else 1.1), MEAN * (1 - effect)
    slope = LogSlope((0.0, log(2)), (ONCE, mean_of(GradientCell(COIN, 2), ERROR)), (MEAN, MEAN / 2))
    below = Linear(CELL, ((ERROR, 1.0),), -MEAN - drop)
    too_small = {PLANT: 0.9 * MEAN}
    table: dict[str, tuple[Functional, Any]] = {
        "order": (below, positive(abs(drop), [PLANT], scale=MEAN)),
        "bound": (ONCE, at_most(bound, 0.9 * bound, too_small)),
        "attained": (ONCE, attained(least, 0.99 * least, too_small)),
    }
    for name, estimated, value in (
        ("mean", ONCE, MEAN), ("ratio", RATIO, EXCHANGED), ("slope", slope, -1.0),
    ):  # fmt: skip
        table[name] = estimated, equal(off * value, {PLANT: (1 + PLANTED) * off * value})
    made = []
    for name, (functional, statement) in table.items():
        # Each check has a rival of its own, which it is planned to refute.
        planted = {f"{PLANT} in the {name}": region for region in statement.rivals.values()}
        made.append(Check(name, "made-up", functional, replace(statement, rivals=planted)))
    return Claim("mse", tuple(f"{PLANT} in the {name}" for name in table), tuple(made))


def _no_numbers(options: Options, executor: Executor | None) -> Iterator[str]:
    """A claim stays open if one value is NaN, even if its other checks are confirmed."""
    true, how = _claim(0.0), replace(options, engine="exact", progress=False)
    for what, functional in (
        ("mean", _Lost(CELL, ((ERROR, 1.0),))),
        ("ratio", Ratio(ONCE, Linear(CELL, ((ERROR, 0.0),)))),
        ("slope", LogSlope((0.0, 1.0), (ONCE, Linear(CELL, ((ERROR, -1.0),))), (MEAN, MEAN))),
    ):
        check = Check("no number", "made-up", functional, equal(1.0))
        claim = replace(true, checks=(*true.checks, check))
        verdict = run_claims([claim], how, Memory(), executor).claims[0].verdict
        if verdict != Verdict.INCONCLUSIVE:
            yield f"a claim with a {what} that is no number is {verdict.value}"
    # The coin's mean is known, and a divisor or an argument of a logarithm may be 0.
    sums = _tossed(round(TOSSES * P))
    slope = LogSlope((0.0, 1.0), (ONCE, MAY_BE_NOTHING), (MEAN, 0.01 * MEAN))
    for what, ends in (
        ("ratio", Ratio(ONCE, MAY_BE_NOTHING).evidence(sums, ALPHA, sums).interval),
        ("slope", slope.evidence(sums, ALPHA, sums).interval),
    ):
        if isfinite(ends.low):
            yield f"a {what} of what may be 0 is at least {ends.low:.3g}"


def _verdicts() -> Iterator[str]:
    """An undecided check makes its claim INCONCLUSIVE, and every rival is judged where distinguishable."""
    sharp, wide = (Evidence(1.0, Interval(1 - h, 1 + h), h / 5, 1000, ALPHA) for h in (0.1, 1.2))
    nothing = Evidence.between(nan, 0.9, 1.1, 0.02, 1000, ALPHA)
    near, far = 1.05, 2.0
    for what, found, wanted in (
        ("a narrow interval", [(far, sharp)], "CONFIRMED, its rival REFUTED"),
        ("a wide interval", [(far, wide)], "INCONCLUSIVE, its rival SURVIVED"),
        ("a value that is no number", [(far, nothing)], "INCONCLUSIVE, its rival SURVIVED"),
        ("a check left open", [(far, sharp), (far, wide)], "INCONCLUSIVE, its rival SURVIVED"),
        ("a rival in its place", [(1.0, sharp)], "INCONCLUSIVE, its rival NOT DISTINGUISHABLE"),
        (
            "a rival near on one origin",
            [(far, sharp), (near, sharp)],
            "INCONCLUSIVE, its rival SURVIVED",
        ),
        (
            "a rival near on real data",
            [(far, sharp)] * 2 + [(near, sharp)],
            "CONFIRMED, its rival REFUTED",
        ),
    ):
        results = []
        for origin, (value, evidence) in zip(ORIGINS, found, strict=False):
            statement = equal(1.0, {PLANT: value})
            decision = decide(statement, evidence, [PLANT] if value == far else ())
            kinds = dict.fromkeys(KINDS, Findings.of(evidence, decision))
            results.append(CheckResult.of(origin, origin, statement, kinds, None))
        claim = ClaimResult.of("mse", (PLANT,), results, simulates=True)
        outcome = f"{claim.verdict.value}, its rival {claim.rivals[0].verdict.value}"
        if outcome != wanted:
            yield f"with {what} a claim is {outcome}"
    identity, zero = EverySample(CELL, ((ERROR, 1.0),), limit=1e-9), equal(0.0, scale=0.0)
    for value, verdict in ((1e-10, Verdict.CONFIRMED), (1e-8, Verdict.REFUTED)):
        sums = {CELL.name: ((ERROR,), MomentSums.of([[value], [value]]))}
        statement = Check("identity", "made-up", identity, zero).statement
        if decide(statement, identity.evidence(sums, ALPHA, sums)).verdict != verdict:
            yield f"an identity that is {value} off is not {verdict.value}"


def _false_alarms(claims: Sequence[Claim]) -> Iterator[str]:
    """The sum of the rates of all checks and looks is at most the suite's, and looks end."""
    spent = sum(
        Plan.of(claim).alpha * max((cell.looks for cell in check.functional.cells), default=1)
        for claim in claims
        for check in claim.checks
        if check.functional.errs
    )
    if spent > FALSE_ALARMS * (1 + 1e-9):
        yield f"the checks may err at {spent:.2g} together, which must not exceed {FALSE_ALARMS:g}"
    check = Check("mean", "made-up", mean_of(_Looked(COIN, 1), ERROR), equal(MEAN))
    plan, looks = Plan.of(Claim("mse", (), (check,)), replications={CELL.name: 1}), 1
    while plan.look_again([check.name]) and looks <= _Looked.looks:
        looks += 1
    drawn = plan.replications[CELL.name]
    if (looks, drawn) != (_Looked.looks, 2 ** (_Looked.looks - 1)):
        yield f"{looks} looks of {_Looked.looks} are taken, the last at {drawn} times the first's draws"


def _tossed(heads: int, tosses: int = TOSSES) -> dict[str, Any]:
    share = heads / tosses
    products = tosses * share * (1 - share) * (HIGH - LOW) ** 2
    mean = np.array([share * HIGH + (1 - share) * LOW])
    return {CELL.name: ((ERROR,), MomentSums(tosses, mean, np.array([[products]])))}


def _intervals() -> Iterator[str]:
    """A true statement is refuted with probability at most alpha whatever the tosses give, also for a coin
    that was not expected. The plan for a half-width reaches it, and 1% fewer draws would not.
    """
    centre = round(TOSSES * P)
    heads, pilot = np.arange(centre - FAR, centre + FAR), _tossed(centre)
    intervals = [ONCE.evidence(_tossed(n), ALPHA, pilot) for n in heads.tolist()]
    refuted = [decide(equal(MEAN), interval).verdict == Verdict.REFUTED for interval in intervals]
    rate = float(binom.pmf(heads, TOSSES, P) @ np.array(refuted))
    if rate > ALPHA:
        yield f"the interval of a mean at the rate {ALPHA:g} misses with probability {rate:.2g}"
    # This ratio is an increasing function of one mean, and so are the ends of its interval.
    for place in (0, FAR, -1):
        found = RATIO.evidence(_tossed(int(heads[place])), ALPHA, pilot).interval
        ends, of_mean = ([one.low, one.high] for one in (found, intervals[place].interval))
        if not np.allclose(ends, [end / (HIGH + LOW - end) for end in of_mean], rtol=1e-9, atol=0):
            yield f"the interval of a ratio is {ends}, which its mean's does not give"
    n, means, margin = 30, np.array([0.03, 0.1, 0.5, 0.9, 0.97]), 0.01
    shares = (np.arange(n + 1) / n).tolist()
    for mean in (0.01, 0.99):
        forecast = Forecast(mean, mean * (1 - mean), 0.0, 1.0)
        reach = [forecast.interval(n, s, s * (1 - s) * n / (n - 1), ALPHA) for s in shares]
        missed = np.array(
            [[not interval.contains(p) for p in means.tolist()] for interval in reach]
        )
        rates = (binom.pmf(np.arange(n + 1)[:, None], n, means) * missed).sum(axis=0)
        if rates.max() > ALPHA:
            yield f"the interval of a mean expected at {mean:g} misses with probability {rates.max():.2g}"
        planned = replications_needed(margin, forecast, ALPHA)
        one, less = (forecast.half_width(n, ALPHA) for n in (planned, planned - planned // 100))
        if not one <= margin < less:
            yield f"half-widths of {one:.3g} are planned for {margin:g}"
    # The larger eigenvalue of a 2 x 2 matrix of equal entries is twice the entry.
    sums = _tossed(centre)
    greatest = Eigenvalue(((ONCE,) * 3,), (1.0,), 1).evidence(sums, ALPHA, sums).interval
    entry = ONCE.evidence(sums, ALPHA / 3, sums).interval
    if greatest.low > 2 * entry.low + 1e-9 or greatest.high < 2 * entry.high - 1e-9:
        yield "the interval of an eigenvalue is narrower than those of its matrix"


Place = tuple[int, int, int]
"""The first replication of a block, the number of them, and the offset of the seed."""


def _drawn(claims: Sequence[Claim], options: Options, executor: Executor | None) -> Iterator[str]:
    """Draws, including those of pilots, have their own addresses, and their blocks merge."""
    transform = (TransformOf((1.0,), 1.0),)
    with environment(options, executor) as pool:
        work = Work(Memory(), replace(options, progress=False), pool)
        yield from _plans(options)
        yield from _sums(work)
        one, other = (_blocks(ChiSquares(n), transform, work, [(0, 64, 0)])[0] for n in (0, 1))
        if np.array_equal(one.mean, other.mean):
            yield "two cells share their draws"
        yield from _addresses(ChiSquares(), transform, work)
        for prompts in (1, 3):
            # Two groups of 16 out of 100 answers are never equal by chance.
            rewards = np.linspace(0.0, 1.0, 100 * prompts).reshape(prompts, 100, 1)
            problem = SoftmaxBandit.tabular(
                np.full(prompts, 1 / prompts), np.sin(7 * rewards[..., 0]), rewards, 0 * rewards + 1
            )
            yield from _addresses(GradientCell(problem, 16, prompts), (ERROR,), work)
        yield from _runs(claims, work)


def _blocks(cell: Cell, quantities: Any, work: Work, places: Sequence[Place]) -> list[MomentSums]:
    """The sums of a cell's blocks."""
    options, engine = work.options, cell.engine(work.options.engine)
    blocks = [
        Block(cell, tuple(quantities), engine, options.seed + seed, first, count, options.device)
        for first, count, seed in places
    ]
    work.run(blocks, "controls")
    return [work.sums([block]) for block in blocks]


def _plans(options: Options) -> Iterator[str]:
    """Pilot draws enter no verdict, and plans include a rival on problems of each origin that has it."""
    first = Measurements([ONCE], options).pilot_tasks[CELL.name].first
    if first < MOST:
        yield f"pilots draw from replication {first} on, which verdicts read too"
    for effect, where in ((PLANTED, set(ORIGINS)), (SMALLEST, {*ORIGINS} - {"real"})):
        statement = equal(MEAN, {PLANT: (1 + effect) * MEAN})
        claim = Claim("mse", (PLANT,), tuple(Check(o, o, ONCE, statement) for o in ORIGINS))
        plan = make_plan(claim, _tossed(400, 1000), replace(options, size="full"))
        # On real data a rival that takes too much work is only reported.
        planned = {origin for origin, rivals in plan.required.items() if PLANT in rivals}
        for origin in sorted(planned ^ where):
            found = "planned for" if origin in planned else "planned for nowhere"
            yield f"a rival {effect:g} off on {origin} problems is {found}"


def _sums(work: Work) -> Iterator[str]:
    """Sums of a coin's blocks equal those from its heads, and the number of heads is plausible."""
    total, starts = sum(SIZES), np.cumsum((0, *SIZES[:-1])).tolist()
    places = [(first, n, 0) for first, n in zip(starts, SIZES, strict=True)]
    *parts, whole = _blocks(CELL, (ERROR,), work, [*places, (0, total, 0)])
    for what, sums in (("merged blocks", reduce(MomentSums.merge, parts)), ("a block", whole)):
        heads = round(total * (float(sums.mean[0]) - LOW) / (HIGH - LOW))
        named = {CELL.name: ((ERROR,), sums)}
        error = ONCE.evidence(named, ALPHA, named).standard_error
        # The sample's variance with divisor n - 1, divided by n.
        known = (HIGH - LOW) * sqrt(heads / total * (1 - heads / total) / (total - 1))
        expected = _tossed(heads, total)[CELL.name][1].mean
        if sums.n != total or not np.allclose(sums.mean, expected, rtol=1e-12, atol=0):
            yield f"the mean of {what} is not that of their tosses"
        elif abs(error / known - 1) > 1e-9:
            yield f"the standard error of {what} is {error / known:.3g} times that of their tosses"
        deviation = (heads - total * P) / sqrt(total * P * (1 - P))
        if abs(deviation) > norm.isf(UNLIKELY / 2):
            yield f"{heads} heads in {total} tosses of chance {P}, {deviation:.1f} deviations off"
    few = MomentSums.of([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    other = SquaredError(Estimator("constant", 0.5))
    both = Linear(CELL, ((ERROR, 1.0), (other, 3.0)))
    # The coefficients 1 and 3 on these two give the values 3, 1 and 1.
    if abs(both.moments({CELL.name: ((ERROR, other), few)})[2] - 4 / 3) > 1e-12:
        yield "the variance of a sum of two is not that of its values"
    ends = np.array(CELL.ends(ERROR)) + 3 * np.array(CELL.ends(other))
    if not np.allclose(both.range, ends, rtol=1e-12, atol=0):
        yield "the range of a sum is not that of its terms"


def _addresses(cell: Cell, quantities: Any, work: Work, together: int = 1) -> Iterator[str]:
    """Replications whose numbers differ by a power of two share no draws, nor do seeds; a block is its parts
    merged; and means of blocks differ as much as their variance predicts, so no part is shared.
    """
    kind = type(cell).__name__
    starts = [0, *(together << k for k in range(64 - together.bit_length()))]
    places = [*((s, together, 0) for s in starts), (0, together, 1), (0, together, 1 << 32)]
    alone = {one.mean.tobytes() for one in _blocks(cell, quantities, work, places)}
    if len(alone) < len(places):
        yield f"{kind}: replications or seeds share their draws"
    places = [*((k * LANES, LANES, 0) for k in range(BLOCKS)), (0, 2 * LANES, 0)]
    *spread, both = _blocks(cell, quantities, work, places)
    apart = np.abs(spread[0].merge(spread[1]).products - both.products).max()
    if not apart <= 1e-9 * np.abs(both.products).max():
        yield f"{kind}: a block is not its parts merged"
    between = LANES * np.var([one.mean[0] for one in spread], ddof=1)
    share = between / np.mean([one.covariance[0, 0] for one in spread])
    law = chi2(BLOCKS - 1)
    if not law.ppf(UNLIKELY / 2) <= (BLOCKS - 1) * share <= law.isf(UNLIKELY / 2):
        yield f"{kind}: means of {LANES} replications vary {share:.2g} times as much as independent ones"


def _runs(claims: Sequence[Claim], work: Work) -> Iterator[str]:
    """The same for the claims' smallest whole runs, with one prompt per step and with several."""
    functionals = [check.functional for claim in claims for check in claim.checks]
    cells = [
        c for f in functionals for c in f.cells if isinstance(c, Training) and c.outputs >= 100
    ]
    for several in (False, True):
        several_cells = [cell for cell in cells if (cell.batch_size > 1) == several]
        if not several_cells:
            continue
        cell = min(several_cells, key=lambda c: (c.outputs, c.name))
        reading = [f for f in functionals if any(part.name == cell.name for part in f.cells)]
        quantities: Any = Measurements(reading, work.options).pilot_tasks[cell.name].quantities
        yield from _addresses(cell, quantities, work, 8)
        # For every law, the histogram is that of the values whose mean is stored.
        pit = Pit(quantities[0].estimator, cell.steps, (1.0,))
        (sums,) = _blocks(cell, (pit,), work, [(0, 8, 0)])
        middles = (np.arange(BINS) + 0.5) / BINS
        if abs(sums.counts[pit.label] @ middles / sums.n - sums.mean[0]) > 0.5 / BINS:
            yield "the histogram of a law is not that of its values"
