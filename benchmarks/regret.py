"""What the advice of a small pool costs: the error of the advised G over the least, where the truth is known.

    python -m benchmarks.regret                              problems of the library, drawn anew
    python -m benchmarks.regret --scored pool/scored.npz     random prompts of a pool, which is the truth

Beside it that of the best G at the estimates. A pool without a signal has no advice and is not counted.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from tabulate import tabulate

from benchmarks.coverage import drawn, problem
from ustat_pg.llm.advice.advise import decide
from ustat_pg.llm.pool.constants import constants
from ustat_pg.llm.pool.scored import ScoredPool
from ustat_pg.predictions import MseConstants, group_size_advice, mse_constants

PROBLEMS = ("rare", "usual", "heavy", "dominated", "unseen", "iris", "uneven")
PROMPTS = (8, 12, 16, 24, 40, 80)
_HEADER = ["prompts", "pools", "all ends known", "at most 1.5", "at most 3", "largest"]
_HEADER += [
    "over its worst case",
    "size ruled out",
    "at the estimates: at most 1.5",
    "at most 3",
    "largest",
]

Draw = Callable[[int, np.random.Generator], ScoredPool]


def rows(draw: Draw, truth: MseConstants, budget: int, repetitions: int) -> Iterator[list[str]]:
    """A row of the table for each number of prompts."""
    table = group_size_advice(truth, budget).table
    loss = {row.group_size: row.ratio_to_best for row in table}
    for prompts in PROMPTS:
        pools = (draw(prompts, np.random.default_rng([3, prompts, k])) for k in range(repetitions))
        found = [each for pool in pools if (each := decide(pool, budget)) is not None]
        advised = np.array([loss[each.group_size] for each in found])
        estimated = np.array([loss[each.sizes.group_size] for each in found])
        worst = np.array([each.decision.worst for each in found])
        outside = [
            not least <= each.group_size <= most
            for each in found
            for least, most in [each.decision.not_ruled_out]
        ]
        yield [
            str(prompts),
            str(len(found)),
            f"{np.mean([each.decision.known for each in found]):.0%}",
            *_shares(advised),
            f"{np.mean(advised > worst * (1 + 1e-9)):.1%}",
            f"{np.mean(outside):.1%}",
            *_shares(estimated),
        ]


def _shares(losses: np.ndarray) -> list[str]:
    return [f"{np.mean(losses <= 1.5):.1%}", f"{np.mean(losses <= 3):.1%}", f"{losses.max():.2f}"]


def main(given: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scored", type=Path, nargs="*", default=[])
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--rollouts", type=int, default=8, help="of a problem's prompts")
    asked = parser.parse_args(given)
    warnings.simplefilter("ignore")

    def of_problem(name: str) -> Draw:
        return lambda prompts, rng: ScoredPool.from_scores(
            *drawn(name, prompts, asked.rollouts, rng)
        )

    def of_pool(pool: ScoredPool) -> Draw:
        return lambda prompts, rng: pool.select_prompts(
            [int(each) for each in rng.permutation(pool.size)[:prompts]]
        )

    cases: list[tuple[str, Draw, MseConstants]] = []
    for file in asked.scored:
        pool = ScoredPool.load(file)
        cases.append(
            (
                f"{file.parent.name}, {pool.size} prompts",
                of_pool(pool),
                constants(pool).predictions(),
            )
        )
    for name in () if asked.scored else PROBLEMS:
        cases.append((name, of_problem(name), mse_constants(problem(name).moments())))
    for name, draw, truth in cases:
        print(f"\n**{name}**: c1/c3 {truth.c1 / truth.c3:.3g}, c2/c3 {truth.c2 / truth.c3:.3g}\n")
        found = list(rows(draw, truth, asked.budget, asked.repetitions))
        print(tabulate(found, _HEADER, tablefmt="github", disable_numparse=True), flush=True)


if __name__ == "__main__":
    main()
