"""How often a true claim is refuted and a rival missed: ``python -m benchmarks.false_alarms``.

On two small cells at G = 2, over seeds 0, 1, 2, ...: the skewed problem of the suite, and one solved
once in a hundred, where most groups say nothing. A normal interval at the same rate stands beside
the empirical Bernstein one that verdicts use.

Then the same of whole laws, by the band of Dvoretzky, Kiefer and Wolfowitz: the gap of runs that start
normal around the optimum, which is Σ wₖ χ²₁ where the return is quadratic; the start's spread is so
small that it is. Beside it stands the limit law of the distance (Kolmogorov 1933).
"""

from __future__ import annotations

import argparse
import sys
from itertools import product

import numpy as np
from scipy.stats import binomtest, kstwobign, norm
from tabulate import tabulate

from simulations.mse import rivals
from simulations.problems import Suite, mse_of, two_valued
from ustat_pg.checks import RivalVerdict, Verdict, decide, equal
from ustat_pg.distributions import WeightedChi2
from ustat_pg.engines import Constant, Estimator, GradientCell, Pit, Training
from ustat_pg.experiment import LawDistance, mean_of
from ustat_pg.predictions import gradient_mse, sup_distance
from ustat_pg.problems import LocationBandit

SPREAD = 1e-3
"""Standard deviation of the start: the third derivative moves the law by about as much, .001 of it."""


def share(count: int, of: int) -> str:
    """A share with its exact binomial 95% interval."""
    interval = binomtest(count, of).proportion_ci(0.95)
    return f"{count / of:.4f} [{interval.low:.4f}, {interval.high:.4f}]"


def of_means(seeds: int) -> list[list[object]]:
    """Rows of false alarms on an MSE."""
    quantity, rows = mse_of("grpo"), list[list[object]]()
    problems = {
        "skewed": Suite().skewed.problem,
        "rarely solved": two_valued([0.97, 0.01, 0.01, 0.01], [0, 1, 0, 0]),
    }
    for (name, problem), alpha in product(problems.items(), (0.05, 0.01)):
        cell, moments = GradientCell(problem, 2), problem.moments()
        functional, true = mean_of(cell, quantity), gradient_mse(moments, "grpo", 2).mse
        statement = equal(true, {"nearest": rivals(moments, 2)["G^2 for G(G-1)"]}, scale=true)
        pilot = cell.measure("cpu", (quantity,), seed=10**9, replications=8_192)
        margin = statement.margin_for(["nearest"])
        pilots = {cell.name: ((quantity,), pilot)}
        planned = functional.needed(pilots, margin, alpha, true)
        # On the second problem the planned number is large; its small samples are the point.
        for n in (100, 1000, planned) if name == "skewed" else (100, 1000):
            alarms = normal = missed = 0
            for seed in range(seeds):
                block = cell.measure("cpu", (quantity,), seed=seed, replications=n)
                evidence = functional.evidence({cell.name: ((quantity,), block)}, alpha, pilots)
                decision = decide(statement, evidence)
                alarms += decision.verdict == Verdict.REFUTED
                missed += decision.rivals["nearest"] != RivalVerdict.REFUTED
                reach = norm.isf(alpha / 2) * evidence.standard_error
                normal += abs(evidence.estimate - true) > reach
            rows.append(row(name, alpha, n, planned, (alarms, normal, missed), seeds))
    return rows


def started(landscape: LocationBandit) -> tuple[LawDistance, tuple[float, ...]]:
    """The law of the gap at the start, on no step at all, and its weights ½ λₖ times the variance."""
    weights = tuple((0.5 * SPREAD**2 * landscape.curvatures).tolist())
    runs = Training(landscape, 2, 1, Constant(0.1), start_scale=SPREAD)
    return LawDistance(runs, Pit(Estimator("grpo"), 0, weights)), weights


def of_laws(seeds: int) -> list[list[object]]:
    """Rows of false alarms on a distribution; the rival has twice the weights."""
    landscapes, rows = Suite().landscapes, list[list[object]]()
    problems = {"one direction": landscapes["bowl"][0], "two directions": landscapes["plane"][0]}
    for (name, entry), alpha in product(problems.items(), (0.05, 0.01)):
        functional, weights = started(entry.problem)
        far = sup_distance(WeightedChi2([2 * w for w in weights]), WeightedChi2(weights))
        statement = equal(0.0, {"twice": far}, scale=1.0, relative_margin=1.0)
        planned = functional.needed({}, statement.margin_for(["twice"]), alpha, 0.0)
        for n in (20, 100, planned):
            alarms = limit = missed = 0
            for seed in range(seeds):
                block = functional.cell.measure(
                    "cpu", functional.quantities, seed=seed, replications=n
                )
                sums = {functional.cell.name: (functional.quantities, block)}
                evidence = functional.evidence(sums, alpha, {})
                decision = decide(statement, evidence)
                alarms += decision.verdict == Verdict.REFUTED
                missed += decision.rivals["twice"] != RivalVerdict.REFUTED
                limit += evidence.estimate * np.sqrt(n) > kstwobign.isf(alpha)
            rows.append(row(name, alpha, n, planned, (alarms, limit, missed), seeds))
    return rows


def row(
    name: str, alpha: float, n: int, planned: int, counts: tuple[int, int, int], seeds: int
) -> list[object]:
    """A row: alarms, those of the other interval, and rivals missed at the planned number."""
    alarms, other, missed = counts
    return [
        name,
        alpha,
        f"{n:,}" + (" (planned)" if n == planned else ""),
        share(alarms, seeds),
        share(other, seeds),
        share(missed, seeds) if n == planned else "",
    ]


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2000)
    seeds = parser.parse_args().seeds
    print(f"{seeds} seeds; shares with exact binomial 95% intervals")
    for rows, what, beside in (
        (of_means(seeds), "problem", "of a normal interval"),
        (of_laws(seeds), "law", "of the limit law"),
    ):
        header = [what, "alpha", "replications", "false alarms", beside, "missed rivals"]
        print("\n" + tabulate(rows, header, tablefmt="github", disable_numparse=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
