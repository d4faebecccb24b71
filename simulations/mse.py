"""Theorem 2: MSE of grpo at one prompt = tr Σ/G + (σ² tr F + ‖g‖²) / (G (G-1)), exactly.

Checked on single prompts: the MSE of grpo and of its peers; the covariance along a fixed random
direction; unbiasedness along it; and the explicit bound on the second-order term, of which the
exact term is at most half.

Falsified by an enumerated MSE that differs by more than rounding, or a simulated one whose interval
misses the prediction. Small G is sharpest: at G = 2 the two orders are of equal size.

Cost: half a million groups for most checks, a few million for the nearest rivals.
"""

from __future__ import annotations

from collections.abc import Iterator

from ustat_pg.checks import at_most, equal
from ustat_pg.engines import Distance, Estimator, GradientCell, Projection, SquaredProjection
from ustat_pg.engines.gradients.cell import direction
from ustat_pg.experiment import Check, Claim, Point, mean_of
from ustat_pg.moments import Moments
from ustat_pg.predictions import explicit_bound, gradient_covariance, gradient_mse

from .problems import BanditEntry, Suite, mse_of

STEM = "mse"

PEERS = ("vanilla", "oracle", "minimum-variance", "group-mean")

TIGHTER = "explicit bound: a quarter of it"


def rivals(m: Moments, group_size: int) -> dict[str, float]:
    """The wrong values of grpo's MSE at one prompt."""
    pairs = group_size * (group_size - 1)
    first = float(m.norm_squared_advantage[0] - m.gradient_sq[0]) / group_size
    noise = float(m.reward_variance[0] * m.fisher_trace[0])
    mean_square = float((m.reward_variance[0] + m.value[0] ** 2) * m.fisher_trace[0])
    g2 = float(m.gradient_sq[0])
    return {
        "no second-order term": first,
        "G^2 for G(G-1)": first + (noise + g2) / group_size**2,
        "||g||^2 missing": first + noise / pairs,
        "sigma2 replaced by E z^2": first + (mean_square + g2) / pairs,
        "sigma2 tr F missing": first + g2 / pairs,
        "explicit bound taken as the value": first + explicit_bound(m, group_size),
        "Sigma without - g g^T": first + g2 / group_size + (noise + g2) / pairs,
    }


def claim(suite: Suite) -> Claim:
    """Every single prompt at every group size; peers and covariance at the smallest G."""
    checks: list[Check] = []
    for entry in suite.single_prompts:
        checks += [_grpo(entry, group_size) for group_size in suite.group_sizes]
        checks += _peers(entry, suite.group_sizes[0])
    names = (*rivals(suite.single_prompts[0].problem.moments(), 2), TIGHTER)
    return Claim(STEM, names, tuple(checks))


def _grpo(entry: BanditEntry, group_size: int) -> Check:
    """The theorem's formula, with its rivals."""
    moments = entry.problem.moments()
    value = gradient_mse(moments, "grpo", group_size).mse
    return entry.check(
        f"G={group_size}: grpo",
        mean_of(GradientCell(entry.problem, group_size), mse_of("grpo")),
        equal(value, rivals(moments, group_size), scale=value),
    )


def _peers(entry: BanditEntry, group_size: int) -> Iterator[Check]:
    """The other baselines; grpo's covariance and mean along a direction; its explicit bound."""
    moments, cell = entry.problem.moments(), GradientCell(entry.problem, group_size)
    at, predicted = f"G={group_size}", gradient_mse(moments, "grpo", group_size)
    for baseline in PEERS:
        value = gradient_mse(moments, baseline, group_size).mse
        scale = max(value, predicted.vanilla_mse / 10)
        error = mean_of(cell, mse_of(baseline))
        yield entry.check(f"{at}: {baseline}", error, equal(value, scale=scale))
    grpo, unit = Estimator("grpo"), direction(entry.problem, 0)
    along = float(unit @ gradient_covariance(moments, "grpo", group_size) @ unit)
    squared, mean = mean_of(cell, SquaredProjection(grpo)), mean_of(cell, Projection(grpo))
    yield entry.check(f"{at}: covariance along a direction", squared, equal(along))
    unbiased = equal(0.0, scale=along**0.5)
    yield entry.check(f"{at}: unbiased along a direction", mean, unbiased)
    second, bound = predicted.second_order_term, explicit_bound(moments, group_size)
    # Half the bound is attained by a coin: below it only where there is room to see.
    tighter = {TIGHTER: bound / 4} if second > 0.3 * bound else {}
    limit = bound / 2 if second < 0.45 * bound else bound
    yield entry.check(
        f"{at}: explicit bound" + (", half of it" if limit < bound else ""),
        mean_of(cell, Distance(grpo, Estimator("oracle"))),
        at_most(limit, second, tighter),
    )


def curves(suite: Suite) -> Iterator[Point]:
    """MSE against G of no baseline, grpo, the oracle and the minimum-variance baseline."""
    for entry, batch in suite.shown:
        moments = entry.problem.moments()
        for group_size in suite.curve_sizes:
            cell = GradientCell(entry.problem, group_size, batch)
            at = {"problem": entry.name, "group_size": group_size, "batch_size": batch}
            for baseline in ("vanilla", "grpo", "oracle", "minimum-variance"):
                value = gradient_mse(moments, baseline, group_size, batch).mse
                yield Point("mse", baseline, at, value, mean_of(cell, mse_of(baseline)))
