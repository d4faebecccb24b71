"""How often G* is missed by an interval that stopped itself: samples of a scored pool's own prompts.

    ustat-pg llm mse --model embedded:base --samples 16 --out pool
    python -m benchmarks.looks_coverage pool/scored.npz            a minute

Prompts are drawn with replacement from the pool, whose own law is thus known: its c1 and c3 are plain
means. Looks go on until ``--until`` is met, once with intervals that share their errors and once with those
of a single look.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from tabulate import tabulate

from ustat_pg.llm.looks import decide, look_sizes
from ustat_pg.llm.moments import gradients, prompt_moments
from ustat_pg.llm.scored import ScoredPool

COSTS = {"prompt_cost": 0.0, "output_cost": None, "population": None}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pool")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--budget", type=int, default=1024)
    asked = parser.parse_args(arguments)
    pool = ScoredPool.load(asked.pool)
    # As many numbers as prompts hold all inner products of their sketches.
    root, vectors = np.linalg.svd(gradients(pool), full_matrices=False)[1::-1]
    found = prompt_moments(pool)
    within = found.gradient_sq.mean()
    between = ((root[:, None] * vectors.T).mean(axis=1) ** 2).sum()
    star = 1 + math.sqrt((found.variance_trace.mean() + within) / (within - between))
    known = {name: getattr(pool, name) for name in ("rewards", "squared_norms", "sums")}
    known |= {"lengths": pool.lengths, "token_proxy": pool.token_proxy, "sketches": vectors * root}
    sizes, rows = look_sizes(asked.prompts), []
    for until in ("flat", 0.05):
        for looks in (1, len(sizes)):
            stopped, missed = Counter[int](), 0
            for run in range(asked.runs):
                drawn = np.random.default_rng(run).integers(pool.size, size=asked.prompts)
                grown = ScoredPool(
                    prompts=tuple(map(str, range(asked.prompts))),
                    config={"looks": looks},
                    **{name: array[drawn] for name, array in known.items()},
                )
                for size in sizes:
                    decided = decide(grown.select_prompts(range(size)), asked.budget, COSTS)
                    if decided is not None and decided.settles(until):
                        break
                stopped[size] += 1
                if decided is not None:
                    low, high = decided.known.g_star_interval()
                    missed += not low <= star <= high
            mean = sum(size * count for size, count in stopped.items()) / asked.runs
            rows.append([until, looks, f"{missed / asked.runs:.1%}", f"{mean:.0f}"])
    print(f"{pool.config.get('model')}, {pool.size} prompts: G* {star:.3g}")
    print(tabulate(rows, ["until", "errors shared by", "missed", "prompts, mean"]))


if __name__ == "__main__":
    main()
