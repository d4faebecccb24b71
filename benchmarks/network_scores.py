"""Scores and exact moments of a transformer: ``python -m benchmarks.network_scores``.

The first table compares two ways to the scores of many outputs: one gradient per output in a loop of
backward passes, and all at once under ``vmap``. Both compute the same numbers, which is checked. The
second gives the time to every exact moment of a policy over all its outputs, without a table of
scores. A machine's threads are set with ``--threads``; rounds interleave what is compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from os import getloadavg
from statistics import median
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from tabulate import tabulate

from benchmarks.ustatistics import machine
from ustat_pg.policies import OutputSpace
from ustat_pg.policies.transformer import TransformerPolicy
from ustat_pg.problems import TokenProblem, modular_sum

AGREEMENT = 1e-10
"""Relative difference of the two ways' scores that is still rounding, in float64."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A policy over all outputs of one prompt.

    Arguments:
        width: of the network, one layer of two heads.
        vocabulary: v.
        length: of every output, v^length in all.
    """

    width: int
    vocabulary: int
    length: int

    def problem(self) -> TokenProblem:
        """Outputs whose digits sum to 1 modulo v."""
        return modular_sum(self.vocabulary, self.length, prompts=[(1,)])

    def policy(self, seed: int = 0) -> TransformerPolicy:
        """A random network of that width."""
        space = OutputSpace(self.vocabulary, self.length)
        return TransformerPolicy.initial(space, [(1,)], width=self.width, seed=seed)


SCORES = (Case(8, 4, 4), Case(40, 4, 4), Case(128, 4, 4))
MOMENTS = (Case(8, 8, 4), Case(40, 8, 4), Case(40, 16, 3))
QUICK_SCORES = (Case(8, 3, 3),)
QUICK_MOMENTS = (Case(8, 3, 3),)


def by_loop(policy: TransformerPolicy, count: int) -> Array:
    """The scores of the first outputs, one backward pass each, (count, d)."""
    outputs = torch.tensor(np.array(policy.space.outputs[:count]))
    sequences = policy.sequences(0, outputs)
    leaves = {name: t.clone().requires_grad_() for name, t in policy.state.items()}
    rows = np.empty((count, policy.d))
    for k in range(count):
        log = policy.log_prob(leaves, sequences[k : k + 1], outputs[k : k + 1])
        slopes = torch.autograd.grad(log[0], list(leaves.values()))
        rows[k] = torch.cat([slope.flatten() for slope in slopes]).numpy()
    return rows


def by_vmap(policy: TransformerPolicy) -> Array:
    """The scores of all outputs, (K, d), as the library computes them."""
    return policy.scores(0)


def seconds(run, *arguments) -> float:
    """One call's time."""
    start = perf_counter()
    run(*arguments)
    return perf_counter() - start


def compare(case: Case, rounds: int, sample: int) -> list[object]:
    """Both ways' seconds for all outputs (medians), and the ratio's median and range.

    The loop runs over a sample of outputs and is scaled up: its time is a sum of equal parts.

    Raises:
        SystemExit: the two give different scores.
    """
    policy = case.policy()
    sample = min(sample, policy.space.count)
    loop, all_at_once = by_loop(policy, sample), by_vmap(policy)
    off = float(np.abs(loop - all_at_once[:sample]).max() / np.abs(loop).max())
    # Written so that a NaN is refused as well.
    if not off <= AGREEMENT:
        raise SystemExit(f"{case}: the two ways differ by {off:.3g} of the largest score")
    slow, fast = [], []
    for _ in range(rounds):
        slow.append(seconds(by_loop, policy, sample) * policy.space.count / sample)
        fast.append(seconds(by_vmap, policy))
    ratios = [a / b for a, b in zip(slow, fast, strict=True)]
    return [
        policy.d,
        policy.space.count,
        median(slow),
        median(fast),
        f"{median(ratios):.1f}",
        f"[{min(ratios):.1f}, {max(ratios):.1f}]",
    ]


def moments(case: Case, rounds: int) -> list[object]:
    """Seconds to every moment that predictions read, from parameters alone."""
    problem, policy = case.problem(), case.policy()

    def run(factor: float) -> None:
        # Other parameters each time: a policy keeps what it has computed.
        problem.bandit(policy.with_theta(factor * policy.theta)).moments()

    times = [seconds(run, 1 + 0.01 * number) for number in range(rounds + 1)][1:]
    return [policy.d, policy.space.count, median(times), f"[{min(times):.2f}, {max(times):.2f}]"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both tables and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sample", type=int, default=64, help="outputs that the loop is timed on")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        scores, exact = (QUICK_SCORES, QUICK_MOMENTS) if options.quick else (SCORES, MOMENTS)
        rounds = 1 if options.quick else options.rounds
        print("# Scores and exact moments of a transformer\n")
        print(
            f"`python -m benchmarks.network_scores --threads {options.threads} --rounds {rounds}`\n"
        )
        print(
            f"{machine('numpy', 'torch')}; load {getloadavg()[0]:.1f} at the start; {options.threads} "
            f"thread(s); float64; medians of {rounds} interleaved rounds\n"
        )
        rows = [compare(case, rounds, options.sample) for case in scores]
        head = ["parameters", "outputs", "loop, s", "vmap, s", "ratio", "range of rounds"]
        print(tabulate(rows, head, tablefmt="github", floatfmt=".3g") + "\n")
        rows = [moments(case, rounds) for case in exact]
        head = ["parameters", "outputs", "all moments, s", "range of rounds"]
        print(tabulate(rows, head, tablefmt="github", floatfmt=".3g"))
    finally:
        torch.set_num_threads(before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
