"""Train on prompts drawn by a law and compare returns: the data's law, known and running rates, a curriculum.

256 prompts share 48 parameters: a logit of success is linear in features. Many pass rates start near 0 or 1.
Each step draws 16 prompts with four outputs, leave-one-out, plain SGD. Each method has the learning rate of
one grid that did best in runs with other seeds. ``python examples/train_drawn_prompts.py`` takes a minute.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.stats import t as student

from ustat_pg.predictions import rate_law
from ustat_pg.predictions.prompt_sampling import mixed

PROMPTS, PARAMETERS, BATCH, GROUP, STEPS = 256, 48, 16, 4, 300
RATES = (64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0)
SEEDS, TUNING = 128, 16
SHARE, MEMORY = 0.2, 0.8
METHODS = ("data", "known", "running", "curriculum")


def trained(method: str, rate: float, seed: int) -> float:
    """The mean pass rate after the last step."""
    problem, rng = np.random.default_rng(0), np.random.default_rng([seed, 1])
    features = problem.normal(size=(PROMPTS, PARAMETERS)) / PARAMETERS**0.5
    offsets = 3.0 * problem.normal(size=PROMPTS)
    theta, data = np.zeros(PARAMETERS), np.full(PROMPTS, 1 / PROMPTS)
    seen, tried = np.zeros(PROMPTS), np.zeros(PROMPTS)
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-(features @ theta + offsets)))
        law = data
        if method == "known":
            root = np.sqrt(p * (1 - p))
            law = mixed(data, root / root.sum(), SHARE)
        elif method != "data":
            law = rate_law(seen, tried, share=SHARE)
        drawn = rng.choice(PROMPTS, size=BATCH, p=law)
        z = (rng.random((BATCH, GROUP)) < p[drawn, None]).astype(float)
        advantage = GROUP / (GROUP - 1) * (z - z.mean(axis=1, keepdims=True))
        weights = np.ones(BATCH) if method == "curriculum" else data[drawn] / law[drawn]
        each = weights * (advantage * (z - p[drawn, None])).mean(axis=1)
        theta = theta + rate * each @ features[drawn] / BATCH
        for x, row in zip(drawn, z, strict=True):
            seen[x] = MEMORY * seen[x] + row.sum()
            tried[x] = MEMORY * tried[x] + GROUP
    return float((1 / (1 + np.exp(-(features @ theta + offsets)))).mean())


def main(arguments: list[str] | None = None) -> None:
    """Print the return of each method, and its difference to the data's law on the same seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--tuning", type=int, default=TUNING, help="seeds that choose the rate")
    options = parser.parse_args(arguments)
    returns = {}
    for method in METHODS:
        tuning = [
            np.mean([trained(method, rate, 10_000 + seed) for seed in range(options.tuning)])
            for rate in RATES
        ]
        best = RATES[int(np.argmax(tuning))]
        returns[method] = np.array([trained(method, best, seed) for seed in range(options.seeds)])
        less = returns[method] - returns["data"]
        half = student.ppf(0.975, len(less) - 1) * less.std(ddof=1) / len(less) ** 0.5
        own = returns[method]
        print(
            f"{method:11} rate {best:4g}  return {own.mean():.4f}  "
            f"minus the data's law {less.mean():+.4f} ± {half:.4f}"
        )


if __name__ == "__main__":
    main()
