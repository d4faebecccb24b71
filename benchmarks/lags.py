"""Whether intervals of the signal hold while a policy moves: trainings whose signal is known exactly.

    python -m benchmarks.lags            3 min on one core

A quadratic in 200 dimensions with curvatures from 0.01 to 1 is climbed by gradients with normal noise, two
micro-batches a step. For the last 50 steps the meter's own estimate is made from pairs within steps alone and
from pairs of neighbouring steps too; ‖g‖² of each step is known.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from ustat_pg.noise.estimate import estimate_noise, step_sums
from ustat_pg.noise.lags import Lagged, Trail

DIMENSIONS, WINDOW = 200, 50
RUNS = (
    *(("adam", 0.9, rate) for rate in (0.0, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1)),
    *(("sgd", 0.9, rate) for rate in (1e-3, 1e-2, 3e-2, 1e-1, 3e-1)),
    *(("sgd", 0.0, rate) for rate in (1e-2, 1e-1, 5e-1)),
)
GROUPS = [np.array([0]), np.array([1])]


def window(kind: str, memory: float, rate: float, before: int, seed: int) -> tuple[float, ...]:
    """The mean of ‖g‖² over a window; signal, error and interval without pairs of steps and with; pairs."""
    rng = np.random.default_rng([20, seed])
    curvature = np.exp(np.linspace(np.log(0.01), 0, DIMENSIONS))
    theta = torch.tensor(0.15 * curvature**-0.5, requires_grad=True)
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam([theta], rate, betas=(memory, 0.999))
        if kind == "adam"
        else torch.optim.SGD([theta], rate, momentum=memory)
    )
    trail, sums, pairs, truth = Trail(optimizer), [], [], []
    for step in range(before + WINDOW):
        mean = curvature * theta.detach().numpy()
        halves = mean + 2**0.5 * rng.standard_normal((2, DIMENSIONS))
        trail.next()
        own = trail.take(step, 0, halves.sum(axis=0), 2.0)
        if step >= before:
            truth.append(mean @ mean)
            sums.append(step_sums(halves @ halves.T, GROUPS))
            pairs.append(own)
        theta.grad = torch.as_tensor(halves.mean(axis=0))
        optimizer.step()
    units = tuple(range(before, before + WINDOW))
    plain = estimate_noise(np.array(sums))
    both = estimate_noise(np.array(sums), lagged=Lagged(units, (False,) * WINDOW, tuple(pairs)))
    found = [
        value
        for each in (plain, both)
        for value in (each.signal.value, each.signal.se, *each.signal.interval)
    ]
    return (float(np.mean(truth)), *found, both.common.value, float(both.lagged_pairs > 0))


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=200)
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    print("| optimizer | rate | from step | coverage within | with neighbours | sd within over sd with "
          "| bias in sd | mean product over signal | used |\n" + 9 * "|---" + "|")  # fmt: skip
    for kind, memory, rate in RUNS:
        for before in (0, 60):
            runs = range(options.windows)
            table = np.array([window(kind, memory, rate, before, seed) for seed in runs])
            truth, first, _, low, high, second, _, least, most, common, used = table.T
            within = ((low <= truth) & (truth <= high)).mean()
            beside = ((least <= truth) & (truth <= most)).mean()
            apart, other = first - truth, second - truth
            print(
                f"| {kind} {memory:g} | {rate:g} | {before} | {within:.1%} | {beside:.1%} "
                f"| {apart.std() / other.std():.2f} | {other.mean() / other.std():.2f} "
                f"| {common.mean() / truth.mean():.2f} | {used.mean():.0%} |", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main()
