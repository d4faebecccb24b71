"""The cuda engine against the cpu engine: the same integers, the same numbers, the same paths.

Where there is a GPU it runs there; elsewhere numba's simulator runs the kernels thread by thread,
in one process of its own, with compiled code off. All jobs go there together, in tiny sizes.
"""

import os
import pickle
import subprocess
import sys
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda as numba_cuda

from benchmarks.mse_kernel import Case
from benchmarks.trajectories import CASES
from simulations.engines import Constant, Gap, Training
from simulations.engines.runs import cuda as paths
from simulations.engines.runs.trajectory import Trajectory
from simulations.interior_problems.location_bandit import LocationBandit
from tests.support import laws
from tests.support.bends import with_bends
from tests.support.estimators import tables_of
from tests.support.problems import (
    FORMS,
    RUN_ESTIMATORS,
    cornered,
    named,
    smooth,
    vanishing,
)
from tests.support.run_laws import LAYOUTS, SETS, path
from ustat_pg.engines import Distance, Estimator, GradientCell, SquaredError
from ustat_pg.engines.device import Price
from ustat_pg.engines.gradients import cuda as gradients
from ustat_pg.problems import KINDS, SoftmaxBandit, random_problem

ROOT = Path(__file__).resolve().parents[2]
FAR = laws.FAR
REPLICATIONS = 5
STEPS = 12
TOLERANCE = 1e-12
"""Relative, to the square of the greatest gradient that one output can make."""


@dataclass
class Job:
    """One call, and what is set about the device before it."""

    call: Any
    most: int | None = None
    """Runs at once; a device that holds no more than ``room`` runs out of memory."""
    room: int | None = None
    shapes: dict[str, Any] = field(default_factory=dict)
    """What thread blocks of gradients have, in place of the engine's own numbers."""
    warned: list[str] = field(default_factory=list)

    def run(self) -> Any:
        """What the call returns, and what it warned of."""
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # Products of Philox wrap; the simulator's are NumPy's, which says so.
            warnings.filterwarnings("ignore", "overflow encountered in scalar multiply")
            if self.most is not None:
                patch.setattr(paths, "MOST_THREADS", self.most)
            if self.room is not None:
                patch.setattr(numba_cuda, "device_array", partial(_small, self.room))
            for name, value in self.shapes.items():
                engine, _, number = name.rpartition(".")
                patch.setattr(paths if engine else gradients, number, value)
            gradients._prepared.cache_clear()
            answer = self.call()
        return answer, [str(warning.message) for warning in caught]


_DEVICE_ARRAY = numba_cuda.device_array


def _small(room: int, shape: Any, kind: Any) -> Any:
    """An array of a device that holds the snapshots of so many runs."""
    if shape[0] > room:
        raise RuntimeError("[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY")
    return _DEVICE_ARRAY(shape, kind)


def measure(engine, cell, quantities, replications=REPLICATIONS, first=FAR):
    return cell.measure(engine, quantities, seed=3, first=first, replications=replications)


def run(engine, trajectory, replications=4, first=FAR):
    return trajectory.run(engine, seed=4, first=first, replications=replications)


def corners():
    """Problems where numbers are lost or outcomes have no probability."""
    # The first arm's score is exactly 0, and often all others of a group drew it: 0/0.
    offset, still = np.array([[2.0, 0.0, 0.0]]), np.array([[[0.0], [1.0], [-1.0]]])
    rewards, law = [[[1.0], [0.4], [0.7]]], np.ones((1, 3, 1))
    idle = SoftmaxBandit.linear([1.0], still, [0.0], rewards, law, offset)
    return [*vanishing(), idle, cornered()]


def measured_cells():
    """Every kind of problem in every second of its designs and sizes; token policies; corners."""
    for number, kind in enumerate(KINDS):
        asked = ((1, 2, 5), (1, 3)) if kind in FORMS.values() else ((2,), (3,))
        for cell in islice(laws.cells(random_problem(1, kind), *asked), number % 2, None, 2):
            yield f"{kind}/{cell.design}/G{cell.group_size}/B{cell.batch_size}", cell
    for label in ("prefix", "prefix-shared", "sorting"):
        problem = named(label)
        for cell in laws.cells(problem, (2,), (1, problem.contexts)):
            yield f"{label}/{cell.design}/G{cell.group_size}/B{cell.batch_size}", cell
    for number, problem in enumerate(corners()):
        for batch in (1, 2):
            yield f"corner {number}/B{batch}", GradientCell(problem, 4, batch)
    for size in (3, 33, 65):
        yield f"odd/G{size}", GradientCell(random_problem(1, "plain"), size)
    for arms in (2, 31, 33, 1000):
        yield f"wide/K{arms}", Case(arms, 16).cell


def trajectories():
    """Every estimator, design, projection and form of logits."""
    for bent in (False, True):
        for layout in ("one prompt", "batch beyond the prompts", "epochs of two steps"):
            for estimator in RUN_ESTIMATORS:
                yield path(layout, estimator, STEPS, bent=bent)
    which = smooth(3, 7, 3, 2)
    for theta_set in SETS.values():
        for one in (which, with_bends(which)):
            yield Trajectory(one, 3, STEPS, Constant(0.3), projection=theta_set, start_scale=1.0)
    for layout in ("three prompts", "many prompts"):
        for estimator in tables_of(LAYOUTS[layout][4])[:2]:
            yield path(layout, estimator, STEPS, binary=True)
    yield from shared()


def shared():
    """Arms along one direction: equally spaced ones, from starts with weights that powers hold and
    that they do not; and others, where some weights are zero.
    """
    steep = SoftmaxBandit.linear(
        [0.4, 0.6],
        np.array([[[-1.0], [0.5], [0.2], [-2.0]], [[-2.0], [1.0], [0.4], [-4.0]]]),
        [3.0],
        [[[1.0], [0.5], [9.0], [0.2]]] * 2,
        np.ones((2, 4, 1)),
        np.array([[0.0, 0.0, -1000.0, 0.3]] * 2),
    )
    for estimator in RUN_ESTIMATORS[1:4]:
        for case in CASES:
            near = replace(case.trajectory(STEPS), estimator=estimator)
            yield from (near, replace(near, start=np.full(case.d, -100.0)))
        yield Trajectory(steep, 3, STEPS, Constant(2.0), estimator, start_scale=1.0)


FREE = Price(seconds=0.0, saved=1.0)

SHAPES: dict[str, dict[str, Any]] = {
    "one thread block": {"BLOCKS": 1, "THREADS": 64},
    "two": {"BLOCKS": 2, "THREADS": 64},
    "tables where they are": {"STAGED_BYTES": 0},
    "outcomes compared": {"COMPARED": 64},
    "sums of a warp": {"SUMS_OF_A_TEAM": 0},
    "sums of a team": {"SUMS_OF_A_TEAM": 10**6},
    "no shared memory": {"SHARED_BYTES": 400},
    "built in": {"OUTPUTS": FREE, "FEW": 100},
}


def shaped():
    """Cells of every form, whatever a thread block has."""
    for kind in ("plain", "shared-linear", "linear"):
        for name, shapes in SHAPES.items():
            yield f"{kind}/{name}", GradientCell(random_problem(1, kind), 6, 2), shapes


def of_one_prompt():
    """Cells and few quantities, which a kernel for their shape computes in registers."""
    numbers = np.random.default_rng(5)
    names = [["oracle", "grpo"], ["vanilla", "grpo", "group-mean"]]
    for contexts, arms in ((1, 4), (3, 5), (2, 40)):
        logits, rewards = numbers.normal(size=(2, contexts, arms, 1))
        law, share = np.ones((contexts, arms, 1)), np.full(contexts, 1 / contexts)
        features, weights = numbers.normal(size=(contexts, 2)), numbers.normal(size=(arms, 2))
        for problem in (
            SoftmaxBandit.tabular(share, logits[..., 0], rewards, law),
            SoftmaxBandit.shared_linear(share, features, weights, rewards, law),
        ):
            for group, design in ((3, "iid"), (16, "without-replacement"), (130, "iid")):
                each = [Estimator(name) for name in names[group % 2]]
                asked = [*map(SquaredError, each[1:]), Distance(*each[:2])]
                yield GradientCell(problem, group, 1, design), asked
    yield Case(1000, 16).cell, [SquaredError(Estimator("grpo"))]


PATH = Trajectory(smooth(3, 5, 2, 2), 3, STEPS, Constant(0.5), snapshots=(0, 5, STEPS))


def all_jobs():
    """What the device is asked, by name."""
    jobs = {}
    for name, cell in measured_cells():
        jobs["measure", name] = Job(
            partial(measure, "cuda", cell, laws.quantities_for(cell.group_size))
        )
    for number, trajectory in enumerate(trajectories()):
        jobs["path", number] = Job(partial(run, "cuda", trajectory))
    for name, cell, shapes in shaped():
        call = partial(measure, "cuda", cell, laws.quantities_for(6))
        jobs["shape", name] = Job(call, shapes=shapes)
    for number, (cell, asked) in enumerate(of_one_prompt()):
        shapes = {"OUTPUTS": FREE, "THREADS": 64, "BLOCKS": 2}
        jobs["one prompt", number] = Job(partial(measure, "cuda", cell, asked, 9), shapes=shapes)
    for name, options in CHUNKS.items():
        jobs["path chunks", name] = Job(partial(run, "cuda", PATH, 7), **options)
    for number, trajectory in enumerate([PATH, *islice(trajectories(), 0, None, 5)]):
        shapes = {"paths.STEPS": FREE, "paths.SHARED_BYTES": 0}
        jobs["built-in path", number] = Job(partial(run, "cuda", trajectory), shapes=shapes)
    jobs["training", "gap"] = Job(partial(measure, "cuda", *training()))
    return jobs


CHUNKS: dict[str, dict[str, int]] = {
    "one": {},
    "of 3": {"most": 3},
    "of 1": {"most": 1},
    "halved": {"room": 2},
}


def training():
    """A cell of whole runs and the gap at two steps."""
    bump = LocationBandit.bump([1.0], [0.3], arms=np.linspace(-1.5, 1.5, 5))
    cell = Training(bump, 3, 6, Constant(0.2), start=bump.maximiser + 0.3)
    return cell, [Gap(Estimator(name), step) for name in ("grpo", "oracle") for step in (2, 6)]


def serve(where: str) -> None:
    """Do the jobs in a file; called in the simulator's process."""
    file = Path(where)
    jobs = pickle.loads(file.read_bytes())
    file.write_bytes(pickle.dumps({name: job.run() for name, job in jobs.items()}))


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What the device answered, by name."""
    jobs = all_jobs()
    if numba_cuda.is_available():
        return {name: job.run() for name, job in jobs.items()}
    file = tmp_path_factory.mktemp("cuda") / "jobs.pkl"
    file.write_bytes(pickle.dumps(jobs))
    code = f"from tests.agreement import test_on_a_device; test_on_a_device.serve({str(file)!r})"
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        check=True,
        timeout=1200,
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"},
    )
    return pickle.loads(file.read_bytes())


def of_kind(answers, kind):
    """The answers of one kind, which must have warned of nothing."""
    result = {name[1]: answer for name, (answer, warned) in answers.items() if name[0] == kind}
    assert result
    assert not [warned for name, (_, warned) in answers.items() if name[0] == kind and warned]
    return result


def test_the_same_numbers(answers):
    result, designs = of_kind(answers, "measure"), set()
    for name, cell in measured_cells():
        designs.add(cell.design)
        quantities = laws.quantities_for(cell.group_size)
        assert result[name].n == REPLICATIONS
        laws.same_sums(result[name], measure("cpu", cell, quantities), cell, quantities)
    assert designs == set(laws.DESIGNS)


def test_the_same_paths(answers):
    result = of_kind(answers, "path")
    for number, trajectory in enumerate(trajectories()):
        theta = run("cpu", trajectory)
        off = np.abs(result[number] - theta) / np.maximum(np.abs(theta), 1.0)
        assert off.max() < TOLERANCE, (number, trajectory.description, off.max())
        assert np.abs(theta[:, -1] - theta[:, 0]).max() > 1e-3 or theta.shape[1] == 1


def test_built_in_constants_change_no_path(answers):
    result = of_kind(answers, "built-in path")
    for number, trajectory in enumerate([PATH, *islice(trajectories(), 0, None, 5)]):
        expected = run("cpu", trajectory)
        assert np.allclose(result[number], expected, rtol=1e-11, atol=1e-11)


def test_no_shape_of_a_thread_block_changes_a_number(answers):
    result = of_kind(answers, "shape")
    for name, cell, _ in shaped():
        quantities = laws.quantities_for(6)
        laws.same_sums(result[name], measure("cpu", cell, quantities), cell, quantities)


def test_sums_in_registers_are_the_same(answers):
    result = of_kind(answers, "one prompt")
    for number, (cell, asked) in enumerate(of_one_prompt()):
        laws.same_sums(result[number], measure("cpu", cell, asked, 9), cell, asked)


def test_chunks_do_not_change_a_bit(answers):
    whole, _ = answers["path chunks", "one"]
    for name in ("of 3", "of 1", "halved"):
        part, warned = answers["path chunks", name]
        assert np.array_equal(part, whole)
        # Seven do not fit, nor do three.
        halved = ["3", "1"] if name == "halved" else []
        assert [w.rpartition(" ")[2] for w in warned] == halved
        assert all("out of memory" in w for w in warned)


def test_training_runs_on_the_device(answers):
    result = of_kind(answers, "training")["gap"]
    expected = measure("cpu", *training())
    assert result.n == expected.n == REPLICATIONS
    assert result.mean == pytest.approx(expected.mean, rel=1e-10)
    assert len(np.unique(expected.mean)) == 4
