"""Plans of sampling: the weight w(p) of all paths counted, beside the same by every sequence of rewards.

    python -m benchmarks.plans            seconds

A call reads the plan's words, counts its paths and weighs 100 pass rates. Enumeration walks all 2ⁿ
sequences of the n outputs that the plan may draw, so it is asked at 16 only; both must agree.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring import duration, in_turn, machine, number
from ustat_pg.predictions import plan_weight
from ustat_pg.sampling import Plan

Array = NDArray[np.float64]

RATES = np.linspace(0.005, 0.995, 100)
PLANS = (
    "8+248 if mixed",
    "64,128,192,256 until 2 successes and 2 failures",
    f"{','.join(map(str, range(4, 257, 4)))} until 2 successes and 2 failures",
    "16+240 if 0.125..0.75, drop early",
)
SMALL = "4,8,16 until 2 successes and 1 failure"


def by_sequences(words: str, p: Array) -> Array:
    """w(p) of plain RLOO under a plan, from every sequence of rewards."""
    plan = Plan.parse(words)
    most = plan.looks[-1]
    rewards = (np.arange(2**most)[:, None] >> np.arange(most)) & 1
    successes = rewards.cumsum(axis=1)
    size = np.full(len(rewards), most)
    undecided = np.ones(len(rewards), bool)
    for look, go_on in zip(plan.looks, plan.go_on, strict=False):
        stops = undecided & (np.asarray(go_on, float)[successes[:, look - 1]] == 0)
        size[stops] = look
        undecided &= ~stops
    k = successes[np.arange(len(rewards)), size - 1]
    factor = k * (size - k) / (size * (size - 1.0))
    total = successes[:, -1]
    chance = p[:, None] ** total * (1 - p[:, None]) ** (most - total)
    return np.asarray(chance @ factor) / (p * (1 - p))


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args(given).rounds
    ours, enumerated = plan_weight(SMALL, "grpo", RATES), by_sequences(SMALL, RATES)
    if not np.allclose(ours, enumerated, rtol=1e-10, atol=0):
        raise SystemExit(f"{SMALL}: enumeration computes something else")
    print(f"{machine('numpy')}; medians of {rounds} interleaved rounds, {len(RATES)} pass rates\n")
    print("| plan | time | by every sequence | ratio |\n|---|---|---|---|")
    small = in_turn(
        [lambda: plan_weight(SMALL, "grpo", RATES), lambda: by_sequences(SMALL, RATES)], rounds
    )
    ratio = np.median(small[:, 1] / small[:, 0])
    fast, slow = np.median(small, axis=0)
    print(f"| {SMALL} | {duration(fast)} | {duration(slow)} | {number(ratio)} |")
    for words in PLANS:
        seconds = in_turn([lambda words=words: plan_weight(words, "sequential", RATES)], rounds)
        shown = words if len(words) < 60 else f"{words[:12]}...{words[-38:]}"
        print(f"| {shown} | {duration(float(np.median(seconds)))} | | |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
