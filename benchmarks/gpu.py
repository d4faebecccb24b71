"""The engines on a CUDA device against their peers: ``python -m benchmarks.gpu [--quick]``.

What kernels cost, without a device: ``python -m benchmarks.gpu --static`` (:mod:`benchmarks.static`).

Numbers first: the device's draws are the cpu engine's, so that means and products of the same
replications agree to 1e-12 and runs end in the same places, however they are shared out; the same call
gives the same bits. Only then clocks: whole calls, in turn in one process, medians of rounds.
Peers are JAX, where it is installed, and the cpu engine on all cores. Random rewards,
softmax policies and grpo's squared error on one prompt, or whole training runs, as in
``benchmarks.mse_kernel`` and ``benchmarks.trajectories``. At most four minutes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks import mse_kernel, trajectories
from benchmarks.measuring import in_threads, in_turn, machine, options_of, show
from ustat_pg.engines import Distance, Estimator, GradientCell, SquaredError
from ustat_pg.engines.device import SIMULATED, require_device
from ustat_pg.problems import KINDS, random_problem
from ustat_pg.validation import InputError

NAMES = ("vanilla", "oracle", "minimum-variance", "grpo")
TOLERANCE = 1e-12
CORES = os.cpu_count() or 1
MINIBATCH = 8
"""Prompts of the minibatch whose cost is held against that of one prompt."""

MANY = 2**40
"""Replications of which a timed call is said to be a part, so that it has a kernel of its own shape."""

Program = Callable[[], Any]


# Numbers.


def quantities(names: Sequence[str] = NAMES) -> list[Any]:
    """The squared errors of baselines, and the distances between them."""
    each = [Estimator(name) for name in names]
    pairs = [(one, other) for place, one in enumerate(each) for other in each[:place]]
    return [*map(SquaredError, each), *(Distance(*pair) for pair in pairs)]


def off(cell: GradientCell, asked: Sequence[Any], replications: int, whole: int = 0) -> float:
    """The largest relative difference of the engines' sums on the same replications."""
    where = {"seed": 3, "first": 2**40 + 3, "replications": replications}
    there, again = (cell.measure("cuda", asked, whole=whole, **where) for _ in range(2))
    here = cell.measure("cpu", asked, **where)
    if not (
        np.array_equal(there.mean, again.mean) and np.array_equal(there.products, again.products)
    ):
        return np.inf
    scale = max(high for _, high in map(cell.ends, asked))
    spread = np.sqrt(np.outer(np.diag(here.products), np.diag(here.products))) + scale**2
    return float(
        max(
            np.abs(there.mean - here.mean).max() / scale,
            (np.abs(there.products - here.products) / spread).max(),
        )
    )


def numbers(replications: int, small: bool) -> list[tuple[str, float]]:
    """Each kind of problem and case, and how far the device is from the cpu engine."""
    rows = []
    for kind in KINDS[:1] if small else KINDS:
        for group, batch in ((2, 1), (5, 3)) if small else ((2, 1), (5, 3), (33, 2), (200, 1)):
            cell = GradientCell(random_problem(1, kind), group, batch)
            rows.append(
                [f"{kind}, G = {group}, B = {batch}", off(cell, quantities(), replications)]
            )
    for whole, kernel in ((0, "kernel for all shapes"), (MANY, "kernel for this shape")):
        for arms, group in mse_kernel.SIZES:
            cell, asked = mse_kernel.Case(arms, group).cell, quantities(["grpo"])
            label = f"K = {arms}, G = {group}, {kernel}"
            rows.append((label, off(cell, asked, replications, whole)))
        for case in trajectories.CASES:
            run = partial(case.trajectory(3 if small else 100).run, seed=4)
            ends = run("cuda", replications=replications, whole=whole)
            far = np.abs(ends - run("cpu", replications=replications)).max()
            rows.append((f"runs, {case.label}, {kernel}", float(far)))
    return rows


# Speeds.


def gradient(case: mse_kernel.Case, replications: int) -> dict[str, Program]:
    """Programs that measure grpo's squared error."""
    asked = [SquaredError(Estimator("grpo"))]
    here = partial(case.cell.measure, "cpu", asked)
    programs = {
        "cuda": partial(case.cell.measure, "cuda", asked, replications=replications, whole=MANY),
        "cpu": partial(
            in_threads, lambda first, n: here(first=first, replications=n), replications, CORES
        ),
    }
    return programs | by_jax(case, replications)


def by_jax(case: mse_kernel.Case, replications: int) -> dict[str, Program]:
    """The squared error by counts, compiled by JAX."""
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return {}
    ends, (first, second) = jnp.asarray(case.ends), map(jnp.asarray, case.tables)
    g = float(case.gradient @ case.gradient)
    unit, part = 1 / (case.group - 1), 2**19

    @jax.jit
    def errors(key: Any) -> Any:
        words = jax.random.bits(key, (part, case.group), jnp.uint32)
        arms = jnp.searchsorted(ends, words, side="right")
        rows = jnp.broadcast_to(jnp.arange(part)[:, None], arms.shape)
        n = jnp.zeros((part, case.arms), jnp.float32).at[rows, arms].add(1.0)
        linear, quadratic = n @ first, (n * n) @ second
        mean = linear[:, 0] / case.group
        square = quadratic[:, 0] - 2 * mean * quadratic[:, 1] + mean**2 * quadratic[:, 2]
        values = unit * (unit * square - 2 * (linear[:, 1] - mean * linear[:, 2])) + g
        return values.sum(), (values * values).sum()

    def whole() -> list[float]:
        keys = jax.random.split(jax.random.key(1, impl="rbg"), max(replications // part, 1))
        return [float(sum(column)) for column in zip(*map(errors, keys), strict=True)]

    return {"JAX, float32": whole}


def runs(case: trajectories.Case, replications: int, steps: int) -> dict[str, Program]:
    """Programs of whole training runs."""
    run = case.trajectory(steps).run

    def there() -> Any:
        return run("cuda", seed=0, replications=replications, whole=MANY)

    shared = min(replications, 1250 * CORES)
    here = partial(
        in_threads, lambda first, n: run("cpu", first=first, replications=n), shared, CORES
    )
    # The cpu's time grows with its runs alone: a share of them will do.
    return {"cuda": there, f"cpu, {shared:,} runs": here} | runs_by_jax(case, replications, steps)


def runs_by_jax(case: trajectories.Case, replications: int, steps: int) -> dict[str, Program]:
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return {}
    features, offset = jnp.asarray(case.features), jnp.asarray(case.offset)
    success, group = jnp.asarray(case.success), case.group

    def step(t: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        theta, key = state
        u = jax.random.uniform(jax.random.fold_in(key, t), (1 + 2 * group, replications))
        x = (u[0] * case.contexts).astype(jnp.int32)
        logits = offset[x].T + sum(features[x, :, j].T * theta[j] for j in range(case.d))
        ends = jnp.cumsum(jnp.exp(logits - logits.max(0)), axis=0)
        arms = (u[1 : 1 + group, None] * ends[-1] >= ends[None, :-1]).sum(1)
        z = (u[1 + group :] < success[x[None], arms]).astype(jnp.float32)
        z = (z - z.mean(0)) * (case.c / (t + case.t0) / (group - 1))
        moved = jnp.stack([(z * features[x[None], arms, j]).sum(0) for j in range(case.d)])
        return theta + moved, key

    @jax.jit
    def whole(key: Any) -> Any:
        start = jnp.full((case.d, replications), trajectories.START, jnp.float32)
        return jax.lax.fori_loop(1, steps + 1, step, (start, key))[0]

    return {"JAX, float32": lambda: np.asarray(whole(jax.random.key(1, impl="rbg")))}


def row(
    label: str, programs: dict[str, Program], units: dict[str, float], rounds: int
) -> list[list[str]]:
    """What one unit takes by each program, in ns, and how many times the engine's that is."""
    for program in programs.values():
        program()
    spent = in_turn(list(programs.values()), rounds)
    took = {
        name: np.median(times) / units.get(name, units["cuda"]) * 1e9
        for name, times in zip(programs, spent.T, strict=True)
    }
    return [[label, name, f"{ns:.4f}", f"{ns / took['cuda']:.2f}"] for name, ns in took.items()]


def speeds(rounds: int, small: bool) -> list[list[str]]:
    rows = []
    for arms, group in mse_kernel.SIZES:
        case, size = mse_kernel.Case(arms, group), 4 if small else 2**28 // group
        units = {"cuda": size * group}
        rows += row(f"K = {arms}, G = {group}, an output", gradient(case, size), units, rounds)
    case, size = mse_kernel.Case(10, 16), 4 if small else 2**20
    for batch in (1, MINIBATCH):
        cell = GradientCell(case.cell.problem, 16, batch)
        call = partial(cell.measure, "cuda", quantities(), replications=size, whole=MANY)
        label = f"{len(quantities())} quantities, B = {batch}, an output"
        rows += row(label, {"cuda": call}, {"cuda": size * batch * 16}, rounds)
    steps = 3 if small else 1000
    for one in trajectories.CASES:
        for count in (4,) if small else (10_000, 262_144):
            programs = runs(one, count, steps)
            units = {"cuda": count * steps} | {
                name: min(count, 1250 * CORES) * steps for name in programs if "cpu" in name
            }
            rows += row(f"{one.label} runs, {count:,}, a step", programs, units, rounds)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if "--static" in words:
        from benchmarks.static import table

        return table.main(words)
    options = options_of(__doc__, words, rounds=5)
    try:
        require_device()
    except InputError as error:
        print(error)
        return 2
    compared = numbers(5 if options.quick else 20_000, options.quick)
    wrong = [[case, f"{value:.1e}"] for case, value in compared if not value < TOLERANCE]
    largest = max(value for _, value in compared)
    notes = [
        f"{device_name()}; {machine('numpy', 'numba', 'jax')}.",
        f"Against the cpu engine, {len(compared)} cases: largest relative difference {largest:.1e}.",
    ]
    title = "The engines on a device"
    if wrong:
        show(title, notes, wrong, ["not the same", "difference"])
        return 1
    table = speeds(1 if options.quick else options.rounds, options.quick)
    show(title, notes, table, ["case", "program", "ns", "times the cuda engine's"])
    return 0


def device_name() -> str:
    """The device, by its own name."""
    from numba import cuda

    if SIMULATED:
        return "numba's simulator"
    name = cuda.get_current_device().name
    return name.decode() if isinstance(name, bytes) else str(name)


if __name__ == "__main__":
    sys.exit(main())
