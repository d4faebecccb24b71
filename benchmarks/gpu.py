"""What runs on a GPU, against the CPU of the same machine: ``python -m benchmarks.gpu [--out FOLDER]``.

The cuda engine against the cpu engine, which may use every core through threads, for grpo's squared
error on one prompt and for whole trajectories; the sizes are those of ``mse_kernel`` and
``trajectories``. Both also against a floor: a kernel that makes the words of the outputs and
nothing else. Before anything is timed the engines must agree: the means of the same replications
to 1e-10, and no more flipped draws than one in a million.

The torch engine on the GPU against itself on the CPU, with all its threads: training 64 networks at
once, squared errors by autograd, and the exact moments of a network.

Rounds are interleaved, times are the least, the first call of each, which compiles, is not counted.
Without a device the rows are printed as open. Under numba's simulator (``--tiny``) everything runs
but no time is reported: a simulator has none.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numba import config
from numba import cuda as device
from tabulate import tabulate
from threadpoolctl import threadpool_limits

from benchmarks import mse_kernel, network_scores, network_training, trajectories
from benchmarks.ustatistics import machine
from ustat_pg import rng
from ustat_pg.engines import Estimator, GradientCell, MomentSums, SquaredError
from ustat_pg.engines.device import MOST_THREADS, device_name, launch, require_device
from ustat_pg.engines.gradients.kernels import floor_kernel
from ustat_pg.engines.runs.cuda import flips
from ustat_pg.validation import InputError, changed

AGREEMENT = 1e-10
"""Relative difference of two means of the same replications: what other orders of adding leave."""

MOST_FLIPS = 1e-6
"""Diverged runs for each draw: far above what rounding flips, far below what an error does."""

FEWEST = 1024
"""Replications in a thread's share of the cpu engine's work."""

HEADERS = (
    "work",
    "size",
    "replications",
    "cpu, s",
    "cuda, s",
    "cuda is",
    "floor, s",
    "cuda over floor",
    "agreement",
)


TORCH_HEADERS = ("work", "size", "parameters", "cpu, s", "cuda, s", "cuda is", "agreement")

TORCH_DIFFERENCE = 1e-8
"""Relative difference of torch's results in float64 on the two devices, of runs without a flip."""


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    squares: int = 2**24
    """Replications of the squared error."""
    runs: int = 2**17
    steps: int = 1000
    compared: int = 2**14
    """Runs on which flips are counted."""
    networks: int = 64
    """Trained at once."""
    gradients: int = 2**12
    rounds: int = 5
    threads: int = 1


TINY = Effort(squares=70, runs=6, steps=4, compared=6, networks=4, gradients=8, rounds=1)


def in_threads(call: Callable[[int, int], Any], total: int, threads: int) -> list[Any]:
    """``call(first, count)`` on shares of the replications, four or so to a thread, in order."""
    share = max(FEWEST, -(-total // (4 * threads)))
    firsts = range(0, total, share)
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda first: call(first, min(share, total - first)), firsts))


def seconds(call: Callable[[], Any]) -> float:
    """The time of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def least(rounds: int, *calls: Callable[[], Any]) -> list[float]:
    """The least time of each call, over interleaved rounds."""
    for call in calls:
        call()
    return [
        min(times)
        for times in zip(*([seconds(call) for call in calls] for _ in range(rounds)), strict=True)
    ]


def floor(replications: int, slots: int, words: int) -> Any:
    """The xor of so many words at each of so many slots of each replication, left on the device."""
    key, most = device.to_device(rng.cell_key(0, "floor")), MOST_THREADS
    out = device.device_array(replications, np.int64)
    for first in range(0, replications, most):
        count = min(most, replications - first)
        part = out[first : first + count]
        launch(floor_kernel, count, first, count, key, slots, -(-words // 4), part)
    device.synchronize()
    return out


def row(
    work: str, size: str, replications: int, times: Sequence[float], agreement: str
) -> list[str]:
    """One line of the table; a simulator's times are not shown."""
    if config.ENABLE_CUDASIM:
        shown = ["simulated"] * 5
    else:
        ours, theirs, least_possible = times
        shown = [f"{ours:.3g}", f"{theirs:.3g}", f"{ours / theirs:.2f}x as fast"]
        shown += [f"{least_possible:.3g}", f"{theirs / least_possible:.1f}"]
    return [work, size, f"{replications:,}", *shown, agreement]


def squares_on_cpu(cell: Any, replications: int, threads: int) -> MomentSums:
    """The cpu engine on every core."""

    def share(first: int, count: int) -> MomentSums:
        return cell.measure("cpu", [mse_kernel.QUANTITY], first=first, replications=count)

    return reduce(MomentSums.merge, in_threads(share, replications, threads))


def squared_error(case: mse_kernel.Case, effort: Effort) -> list[str]:
    """The row of one size of grpo's squared error.

    Raises:
        SystemExit: the engines' means differ.
    """
    cell, total = case.cell, effort.squares

    def on_device() -> MomentSums:
        return cell.measure("cuda", [mse_kernel.QUANTITY], replications=total)

    on_cpu = partial(squares_on_cpu, cell, total, effort.threads)
    one, two = on_cpu(), on_device()
    off = float(abs(two.mean[0] / one.mean[0] - 1))
    size = f"K = {case.arms}, G = {case.group}"
    # Written so that a NaN is refused as well.
    if not off <= AGREEMENT:
        raise SystemExit(f"squared error, {size}: the engines' means differ by {off:.3g}")
    times = least(effort.rounds, on_cpu, on_device, partial(floor, total, 1, case.group))
    return row("squared error", size, total, times, f"means differ by {off:.1e}")


def paths_on_cpu(trajectory: Any, replications: int, threads: int) -> np.ndarray[Any, Any]:
    """The cpu engine on every core."""
    return np.concatenate(
        in_threads(
            lambda first, count: trajectory.run("cpu", first=first, replications=count),
            replications,
            threads,
        )
    )


def paths(case: trajectories.Case, effort: Effort) -> list[str]:
    """The row of one size of trajectories.

    Raises:
        SystemExit: more draws flip than rounding can explain.
    """
    trajectory = case.trajectory(effort.steps)
    size = f"X = {case.contexts}, K = {case.arms}, d = {case.d}, G = {case.group}"
    found = flips(trajectory, "cpu", "cuda", replications=effort.compared)
    if not found.rate <= MOST_FLIPS:
        raise SystemExit(
            f"trajectories, {size}: {found.diverged} of {found.runs} runs take another path"
        )
    times = least(
        effort.rounds,
        partial(paths_on_cpu, trajectory, effort.runs, effort.threads),
        partial(trajectory.run, "cuda", replications=effort.runs),
        partial(floor, effort.runs, effort.steps, 2 * case.group),
    )
    agreement = (
        f"{found.diverged} of {found.runs:,} runs flipped in {found.draws:,} draws; "
        f"the others differ by {found.apart:.1e}"
    )
    return row(f"trajectories, T = {effort.steps:,}", size, effort.runs, times, agreement)


def cuda_rows(effort: Effort, tiny: bool) -> list[list[str]]:
    """The rows of the cuda engine; open ones where there is no device."""
    sizes = ((5, 4),) if tiny else mse_kernel.SIZES
    squared = [mse_kernel.Case(arms, group) for arms, group in sizes]
    trained = trajectories.CASES[:1] if tiny else trajectories.CASES
    try:
        require_device()
    except InputError:
        names = [("squared error", f"K = {c.arms}, G = {c.group}") for c in squared]
        names += [
            ("trajectories", f"X = {c.contexts}, K = {c.arms}, d = {c.d}, G = {c.group}")
            for c in trained
        ]
        return [[*name, *["open"] * (len(HEADERS) - 2)] for name in names]
    rows = [squared_error(case, effort) for case in squared]
    return rows + [paths(case, effort) for case in trained]


@dataclass(frozen=True)
class TorchWork:
    """One thing that torch does on either device.

    Arguments:
        work, size: in words.
        parameters: of the network.
        on: the result on a device, rows of numbers.
    """

    work: str
    size: str
    parameters: int
    on: Callable[[str], np.ndarray[Any, Any]]


def torch_works(effort: Effort, tiny: bool) -> list[TorchWork]:
    """Training many networks, a Monte Carlo of gradients, exact moments."""
    works = []
    cases = network_training.QUICK if tiny else network_training.CASES
    for case in cases:
        training = case.training(effort.networks)

        def train(name: str, training: Any = training) -> np.ndarray[Any, Any]:
            return network_training.at_once(replace(training, device=name), effort.networks, 0)

        size = f"{effort.networks} runs, {training.steps} steps, {case.precision}"
        works.append(TorchWork("training", size, training.d, train))
    for scored in network_scores.QUICK_MOMENTS if tiny else network_scores.MOMENTS[:2]:
        policy = scored.policy()

        def moments(name: str, scored: Any = scored) -> np.ndarray[Any, Any]:
            policy = changed(scored.policy(), device=name)
            found = scored.problem().bandit(policy).moments()
            return np.array([[found.fisher_trace[0], found.norm_squared_advantage[0]]])

        size = f"{policy.space.count:,} outputs, float64"
        works.append(TorchWork("exact moments", size, policy.d, moments))
    drawn = (network_scores.QUICK_SCORES if tiny else network_scores.SCORES[:2])[-1]
    bandit = drawn.problem().at(drawn.policy())

    def gradients(name: str) -> np.ndarray[Any, Any]:
        quantity = SquaredError(Estimator("grpo"))
        cell = GradientCell(bandit, 8, device=name)
        found = cell.measure("autograd", [quantity], replications=effort.gradients)
        return found.mean[None]

    size = f"{effort.gradients:,} gradients, G = 8, float64"
    return [*works, TorchWork("squared error", size, bandit.d, gradients)]


def compare(work: TorchWork, name: str, rounds: int) -> list[str]:
    """One line: the CPU against the device; refused where their results differ by more than a flip."""
    own, other = (work.on(where) for where in ("cpu", name))
    apart = np.abs(own - other).max(axis=1) / np.abs(own).max()
    flipped = int((apart > TORCH_DIFFERENCE).sum()) if "float32" not in work.size else 0
    rest = apart[apart <= TORCH_DIFFERENCE] if "float32" not in work.size else apart
    if flipped > len(apart) / 8 or not np.isfinite(apart).all():
        raise SystemExit(
            f"{work.work}, {work.size}: the devices differ in {flipped} of {len(apart)}"
        )
    times = least(rounds, lambda: work.on("cpu"), lambda: work.on(name))
    shown = [f"{times[0]:.3g}", f"{times[1]:.3g}", f"{times[0] / times[1]:.2f}x as fast"]
    said = f"{flipped} of {len(apart)} flipped; the others differ by {rest.max(initial=0.0):.1e}"
    return [work.work, work.size, f"{work.parameters:,}", *shown, said]


def torch_rows(effort: Effort, tiny: bool) -> list[list[str]]:
    """The rows of torch; open ones where it sees no device."""
    works = torch_works(effort, tiny)
    if torch.cuda.is_available():
        return [compare(work, "cuda", effort.rounds) for work in works]
    open_ones = ["open"] * (len(TORCH_HEADERS) - 3)
    return [[work.work, work.size, f"{work.parameters:,}", *open_ones] for work in works]


def where(threads: int) -> str:
    """Device and machine, in words."""
    try:
        require_device()
        name = device_name()
    except InputError:
        name = "none that numba can use, so the rows of the cuda engine stay open"
    return f"Device: {name}.\n\n{machine('numpy', 'numba', 'torch')}; {threads} threads."


def report(effort: Effort, tiny: bool) -> str:
    """The page."""
    how = (
        f"`python -m benchmarks.gpu`. Least times of {effort.rounds} interleaved round(s). The cpu "
        f"engine runs in {effort.threads} threads; the floor makes the words of the outputs on the "
        "device and nothing else."
    )
    table = tabulate(cuda_rows(effort, tiny), HEADERS, tablefmt="github", disable_numparse=True)
    parts = ["# On a GPU", where(effort.threads), how, "## The cuda engine", table]
    table = tabulate(
        torch_rows(effort, tiny), TORCH_HEADERS, tablefmt="github", disable_numparse=True
    )
    parts += ["## Torch", table]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--out", type=Path, help="a folder for gpu.md, made if it is not there")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    size = TINY if options.tiny else Effort()
    effort = replace(size, rounds=options.rounds or size.rounds, threads=options.threads)
    with threadpool_limits(1, user_api="blas"):
        page = report(effort, options.tiny)
    print(page, end="")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "gpu.md").write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
