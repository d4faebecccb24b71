"""How often a true claim is refuted and a rival missed: ``python -m benchmarks.false_alarms``.

On two small cells at G = 2, over seeds 0, 1, 2, ...: the skewed problem of the suite, and one solved
once in a hundred, where most groups say nothing. A normal interval at the same rate stands beside
the empirical Bernstein one that verdicts use.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product

from scipy.stats import binomtest, norm
from tabulate import tabulate

from simulations.mse import rivals
from simulations.problems import Suite, mse_of, two_valued
from ustat_pg.checks import RivalVerdict, Verdict, decide, equal
from ustat_pg.engines import Cell, get_engine
from ustat_pg.experiment import mean_of
from ustat_pg.predictions import gradient_mse


def share(count: int, of: int) -> str:
    """A share with its exact binomial 95% interval."""
    interval = binomtest(count, of).proportion_ci(0.95)
    return f"{count / of:.4f} [{interval.low:.4f}, {interval.high:.4f}]"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2000)
    seeds = parser.parse_args().seeds
    engine, quantity, rows = get_engine("cpu"), mse_of("grpo"), []
    problems = {
        "skewed": Suite().skewed.problem,
        "rarely solved": two_valued([0.97, 0.01, 0.01, 0.01], [0, 1, 0, 0]),
    }
    for (name, problem), alpha in product(problems.items(), (0.05, 0.01)):
        cell, moments = Cell(problem, 2), problem.moments()
        functional, true = mean_of(cell, quantity), gradient_mse(moments, "grpo", 2).mse
        statement = equal(true, {"nearest": rivals(moments, 2)["G^2 for G(G-1)"]}, scale=true)
        pilot = engine.measure(cell, (quantity,), seed=10**9, replications=100_000)
        margin = statement.margin_for(["nearest"])
        planned = functional.needed({cell.name: ((quantity,), pilot)}, margin, alpha, true)
        # On the second problem the planned number is large; its small samples are the point.
        for n in (100, 1000, planned) if name == "skewed" else (100, 1000):
            alarms = normal = missed = 0
            for seed in range(seeds):
                block = engine.measure(cell, (quantity,), seed=seed, replications=n)
                evidence = functional.evidence({cell.name: ((quantity,), block)}, alpha)
                decision = decide(statement, evidence)
                alarms += decision.verdict == Verdict.REFUTED
                missed += decision.rivals["nearest"] != RivalVerdict.REFUTED
                reach = norm.isf(alpha / 2) * evidence.standard_error
                normal += abs(evidence.estimate - true) > reach
            rows.append(
                [
                    name,
                    alpha,
                    f"{n:,}" + (" (planned)" if n == planned else ""),
                    share(alarms, seeds),
                    share(normal, seeds),
                    share(missed, seeds) if n == planned else "",
                ]
            )
    header = [
        "problem",
        "alpha",
        "replications",
        "false alarms",
        "of a normal interval",
        "missed rivals",
    ]
    print(f"{seeds} seeds; shares with exact binomial 95% intervals\n")
    print(tabulate(rows, header, tablefmt="github", disable_numparse=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
