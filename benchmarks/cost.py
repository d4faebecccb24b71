"""What a simulation costs, and what it grows with: ``python -m benchmarks.cost``.

Slopes: seconds of the cpu engine's ``measure`` for the squared error of grpo, one thread, while one
size doubles and the others stay; least squares on logarithms. Scaling and overhead: the runner
itself (``run_points`` on a fresh store), against bare calls of ``measure`` on the same blocks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from tempfile import TemporaryDirectory
from time import perf_counter
from unittest.mock import patch

import numpy as np
from statsmodels.api import OLS, add_constant
from tabulate import tabulate

from benchmarks.ustatistics import duration, machine
from ustat_pg.engines import Estimator, GradientCell, MomentSums, SquaredError
from ustat_pg.experiment import Options, Point, Store, mean_of, options, run_points
from ustat_pg.experiment.blocks import Block, record_of, run_task, sums_of
from ustat_pg.experiment.curves import POINT_BLOCKS
from ustat_pg.experiment.measurements import Measurements
from ustat_pg.experiment.options import LARGEST_BLOCK, block_of
from ustat_pg.problems import SoftmaxBandit

REPLICATIONS = LARGEST_BLOCK
QUANTITIES = (SquaredError(Estimator("grpo")),)


def problem(contexts: int, arms: int, d: int | None = None, seed: int = 0) -> SoftmaxBandit:
    """Sure rewards of normal size; tabular of dimension X K, or dense of dimension d."""
    generator = np.random.default_rng([contexts, arms, d or 0, seed])
    shape = (contexts, arms)
    rewards = generator.normal(size=(*shape, 1))
    weights, sure = np.full(contexts, 1 / contexts), np.ones((*shape, 1))
    if d is None:
        return SoftmaxBandit.tabular(weights, generator.normal(size=shape), rewards, sure)
    features = generator.normal(size=(*shape, d)) / np.sqrt(d)
    return SoftmaxBandit.linear(weights, features, generator.normal(size=d), rewards, sure)


@dataclass(frozen=True)
class Series:
    """One size that doubles.

    Arguments:
        name: the size, and what stays.
        expected: the slope that the algorithm leads one to expect, in words.
        sizes: at least three.
        cell: the cell at a size.
        replications: at a size.
    """

    name: str
    expected: str
    sizes: tuple[int, ...]
    cell: Callable[[int], GradientCell]
    replications: Callable[[int], int]


def powers(low: int, high: int) -> tuple[int, ...]:
    return tuple(2**k for k in range(low, high + 1))


SERIES = (
    Series(
        "R, replications (G = 8, K = 4)",
        "1",
        powers(15, 22),
        lambda r: GradientCell(problem(1, 4), 8),
        lambda r: r,
    ),
    Series(
        "G, group size (K = 4)",
        "below 1, to 1 from below: work per output, and some per group",
        powers(1, 9),
        lambda g: GradientCell(problem(1, 4), g),
        lambda g: 131_072,
    ),
    Series(
        "K, arms (G = 8, tabular)",
        "0 while the tables fit in the cache: outputs are visited, not arms",
        powers(1, 12),
        lambda k: GradientCell(problem(1, k), 8),
        lambda k: 131_072,
    ),
    Series(
        "X, prompts (B = 8 i.i.d., G = 8, K = 4, tabular: d = 4 X)",
        "0 or below: prompts that differ share no parameter",
        powers(0, 10),
        lambda x: GradientCell(problem(x, 4), 8, 8),
        lambda x: 8_192,
    ),
    Series(
        "B, batch size (X = 64 prompts i.i.d., G = 8, K = 4, tabular)",
        "from 1 to 2: inner products between all pairs of prompts",
        powers(0, 6),
        lambda b: GradientCell(problem(64, 4), 8, b),
        lambda b: 2_048,
    ),
    Series(
        "d, parameters (dense scores, G = 8, K = 8)",
        "to 1 from below: G vectors of length d are added up; 0 where their inner products are kept",
        powers(2, 10),
        lambda d: GradientCell(problem(1, 8, d), 8),
        lambda d: 16_384,
    ),
    Series(
        "d, parameters (dense scores, B = 8 of X = 8, G = 8, K = 8)",
        "to 1 from below, as above",
        powers(2, 9),
        lambda d: GradientCell(problem(8, 8, d), 8, 8),
        lambda d: 1_024,
    ),
)


def seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def slope(series: Series, sizes: Sequence[int], replications: float, rounds: int) -> list[str]:
    """A row of the table: least seconds of each size over rounds that take the sizes in turn."""
    cells = [series.cell(size) for size in sizes]
    counts = [max(1, int(series.replications(size) * replications)) for size in sizes]
    least = [np.inf] * len(sizes)
    for _ in range(rounds):
        for i, (cell, count) in enumerate(zip(cells, counts, strict=True)):
            # A first call makes the problem's tables, which the engine then keeps.
            cell.measure("cpu", QUANTITIES, replications=1)
            took = seconds(lambda c=cell, n=count: c.measure("cpu", QUANTITIES, replications=n))
            least[i] = min(least[i], took)
    fit = OLS(np.log(least), add_constant(np.log(sizes))).fit(cov_type="HC3")
    last = np.log(least[-1] / least[-2]) / np.log(sizes[-1] / sizes[-2])
    each = [f"{1e6 * took / count:.3g}" for took, count in zip(least, counts, strict=True)]
    return [
        series.name,
        f"{sizes[0]:,} to {sizes[-1]:,}",
        f"{each[0]} to {each[-1]}",
        f"{fit.params[1]:.2f} ± {fit.bse[1]:.2f}",
        f"{last:.2f}",
        series.expected,
    ]


CELLS: dict[str, Callable[[int], GradientCell]] = {
    "one prompt": lambda seed: GradientCell(problem(1, 4, seed=seed), 8),
    "minibatch": lambda seed: GradientCell(problem(64, 4, seed=seed), 8, 4),
}
"""A cheap and a dearer cell: one prompt of 4 arms, and 4 of 64 prompts, both at G = 8."""


@dataclass(frozen=True)
class Job:
    """Blocks that the runner is given: ``number`` cells of a kind, each of so many blocks."""

    kind: str
    number: int
    size: str

    @cached_property
    def cells(self) -> list[GradientCell]:
        return [CELLS[self.kind](seed) for seed in range(self.number)]

    @property
    def points(self) -> list[Point]:
        return [
            Point("cost", "grpo", {"cell": i}, functional=mean_of(cell, QUANTITIES[0]))
            for i, cell in enumerate(self.cells)
        ]

    @property
    def blocks(self) -> list[Block]:
        means = [mean_of(cell, QUANTITIES[0]) for cell in self.cells]
        totals = {cell.name: int(POINT_BLOCKS[self.size] * block_of(cell)) for cell in self.cells}
        by_cell = Measurements(means, Options()).blocks(totals)
        return [block for blocks in by_cell.values() for block in blocks]

    def doubled(self) -> Job:
        return replace(self, number=2 * self.number)


def merged(results: Iterable[MomentSums]) -> MomentSums:
    return reduce(MomentSums.merge, results)


def measured(task: Block) -> MomentSums:
    """A block's body, and nothing else."""
    return task.cell.measure(
        "cpu",
        task.quantities,
        seed=task.seed,
        first=task.first,
        replications=task.replications,
    )


def bare(tasks: Sequence[Block]) -> None:
    for task in tasks:
        measured(task)


def bare_threads(tasks: Sequence[Block], threads: int) -> None:
    """The same, dealt out to plain threads: what the machine has to give."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(bare, [tasks[k::threads] for k in range(threads)]))


@contextmanager
def fresh_store() -> Iterator[Store]:
    with TemporaryDirectory() as folder:
        yield Store(folder)


def run(job: Job, workers: int, store: Store | None = None) -> float:
    """Seconds of the runner."""
    points, options = job.points, Options(job.size, workers=workers)
    if store is not None:
        return seconds(lambda: run_points(points, options, store))
    with fresh_store() as new:
        return seconds(lambda: run_points(points, options, new))


def scaling(job: Job, rounds: int) -> list[list[str]]:
    """Efficiency over 1 and 2 workers, of the runner and of plain threads."""
    one, two = job.blocks, job.doubled().blocks
    kinds: dict[str, tuple[Callable[[], float], ...]] = {
        "runner": (
            lambda: run(job, 1),
            lambda: run(job, 2),
            lambda: run(job.doubled(), 2),
        ),
        "bare calls on plain threads": (
            lambda: seconds(lambda: bare_threads(one, 1)),
            lambda: seconds(lambda: bare_threads(one, 2)),
            lambda: seconds(lambda: bare_threads(two, 2)),
        ),
    }
    taken: dict[str, list[tuple[float, ...]]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, calls in kinds.items():
            taken[name].append(tuple(call() for call in calls))
    rows = []
    for name, times in taken.items():
        least = [min(column) for column in zip(*times, strict=True)]
        strong, weak = (
            share(effort(*least), [effort(*row) for row in times])
            for effort in (lambda one, two, _: one / (2 * two), lambda one, _, twice: one / twice)
        )
        rows.append([name, str(len(one)), *map(duration, least), strong, weak])
    return rows


def share(of_least: float, of_rounds: Sequence[float]) -> str:
    """A share of the least times, and the median of those of the rounds."""
    return f"{of_least:.1%} [{statistics.median(of_rounds):.1%}]"


def overhead(job: Job, smaller: int, rounds: int) -> list[str]:
    """A row of the table: the runner on fresh and on full stores, against bare calls, one worker."""
    with patch.object(options, "LARGEST_BLOCK", REPLICATIONS // smaller):
        tasks = job.blocks
        times = []
        for _ in range(rounds):
            alone = seconds(lambda: bare(tasks))
            with fresh_store() as store:
                times.append((alone, run(job, 1, store), run(job, 1, store)))
    alone, fresh, full = (min(column) for column in zip(*times, strict=True))
    return [
        job.kind,
        f"{tasks[0].replications:,}",
        f"{len(tasks):,}",
        *(duration(t / len(tasks)) for t in (alone, fresh, full)),
        share(1 - alone / fresh, [1 - a / b for a, b, _ in times]),
        share(full / fresh, [c / b for _, b, c in times]),
        *(f"{1e6 * part:.0f}" for part in steps(tasks)),
    ]


def steps(tasks: Sequence[Block]) -> list[float]:
    """Seconds per block of a key, of writing a file, of reading it back and of merging."""
    results = [record_of(run_task(task)) for task in tasks]
    with fresh_store() as store:
        takes = [
            seconds(lambda: [store.key(task.description) for task in tasks]),
            seconds(
                lambda: [
                    store.put(task.description, result)
                    for task, result in zip(tasks, results, strict=True)
                ]
            ),
            seconds(lambda: [store.get(task.description) for task in tasks]),
            seconds(lambda: merged(sums_of(result) for result in results)),
        ]
    return [take / len(tasks) for take in takes]


def check_same(job: Job) -> None:
    """Bare calls and the runner must come to the same means.

    Raises:
        ValueError: they do not.
    """
    with fresh_store() as store:
        frame = run_points(job.points, Options(job.size), store)
    for i, cell in enumerate(job.cells):
        tasks = [task for task in job.blocks if task.cell == cell]
        sums = merged(measured(task) for task in tasks)
        if frame["estimate"][i] != sums.mean[0] or frame["replications"][i] != sums.n:
            raise ValueError(f"the runner and bare calls differ on {job.kind}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two rounds, small sizes")
    options = parser.parse_args(arguments)
    rounds = min(options.rounds, 2) if options.quick else options.rounds
    part, most = (1 / 16, 4) if options.quick else (1.0, 100)
    large = {"one prompt": Job("one prompt", 2, "smoke"), "minibatch": Job("minibatch", 4, "smoke")}
    if not options.quick:
        large = {
            "one prompt": Job("one prompt", 1, "full"),
            "minibatch": Job("minibatch", 4, "quick"),
        }
    for kind in CELLS:
        check_same(Job(kind, 2, "smoke"))
    print(f"{machine('ustat_pg', 'numpy', 'numba', 'scipy')}\n")
    print(
        f"{rounds} rounds. Times are the least; shares are of these [median of the rounds' shares].\n"
    )
    rows = [slope(series, series.sizes[:most], part, rounds) for series in SERIES]
    print("Time as one size doubles (slope of logarithms ± robust standard error, HC3)\n")
    header = ["size", "from, to", "µs a replication", "slope", "last doubling", "expected"]
    print(table(rows, header))
    print("\nScaling over workers, minibatch: efficiency\n")
    header = ["", "blocks", "1 worker", "2 workers", "2 workers, twice the blocks"]
    print(table(scaling(large["minibatch"], rounds), [*header, "strong", "weak"]))
    print(
        "\nBlocks and storage, one worker: time a block; overhead is the share outside the bodies\n"
    )
    header = ["cell", "replications", "blocks", "bare", "fresh store", "full store", "overhead"]
    header += ["full / fresh", "key, µs", "write, µs", "read, µs", "merge, µs"]
    jobs = [(job, 1) for job in large.values()]
    jobs += [(Job(kind, 128, "smoke"), 128) for kind in CELLS]
    print(table([overhead(job, smaller, rounds) for job, smaller in jobs], header))
    return 0


def table(rows: list[list[str]], header: list[str]) -> str:
    return tabulate(rows, header, tablefmt="github", disable_numparse=True)


if __name__ == "__main__":
    sys.exit(main())
