"""The cuda engine without a device: words on edges, kernels that compile, refusals."""

import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from threading import local
from types import SimpleNamespace

import numpy as np
import pytest
from numba import config, typeof
from numba import cuda as numba_cuda

from benchmarks.mse_kernel import Case
from simulations.engines import Constant
from simulations.engines.runs import cuda as trajectory_cuda
from simulations.engines.runs import scalar as runs
from simulations.engines.runs.trajectory import Trajectory, starts
from tests.support import laws
from tests.support.problems import smooth
from tests.support.refusals import refuses
from tests.support.run_laws import path
from ustat_pg.engines import Estimator, GradientCell, SquaredError, device
from ustat_pg.engines.base import Replications
from ustat_pg.engines.gradients import cuda, warps
from ustat_pg.problems import random_problem


@pytest.mark.parametrize("first", [0, 2], ids=["compared", "bisected"])
def test_a_word_on_an_edge_belongs_to_the_upper_side(monkeypatch, first):
    """No draw of a test will ever meet an edge: the body is handed the words."""
    quarter, half = 2**30, 2**31
    edges = [0, quarter - 1, quarter, half - 1, half, 3 * quarter, 2**32 - 1]
    below, above = half - 1, half
    handed = iter(edges)

    def words(*_):
        edge = next(handed)
        return edge, below, edge, above

    class Plain:
        """Python in the place of what is compiled."""

        def __getattr__(self, name):
            made = vars(runs)[name]
            return getattr(made, "py_func", made)

    plain = Plain()
    for name in ("at", "whole_of", "feature", "choose"):
        monkeypatch.setattr(runs, name, getattr(plain, name))
    monkeypatch.setattr(runs, "words_of_32", words)
    monkeypatch.setattr(runs, "of_bits", lambda bits: bits.view(np.float64))
    monkeypatch.setattr(runs, "fma", lambda a, b, c: a * b + c)
    # Four equal weights with features 0 to 3, and two rewards of one half each.
    shape = runs.Shape(
        **dict.fromkeys(runs.Shape._fields, 1)
        | {"arms": 4, "values": 2, "group": 2, "plain": 0, "form": 0, "half_arms": first}
        | {"law": 9, "rewards": 13}
    )
    table = [0] * runs.TABLE + [0, 1, 2, 3] + [runs.WHOLE + half] * 4 + [1, 2, 3, 4, 10, 20, 30, 40]
    room = SimpleNamespace(ends=np.arange(1.0, 5.0), features=np.zeros(1), products=np.zeros(1))
    for arm in (0, 0, 1, 1, 2, 3, 3):
        total = plain.draw_group(
            runs.narrow(shape), 0, 0, 0, (0, 0), np.array(table, np.float64), 0, 4.0, room
        )
        assert room.features[0] == 2 * arm
        assert total == 11 * (arm + 1)
        assert room.products[0] == total * arm


@pytest.fixture
def on_paper(monkeypatch):
    """Launches without a device: what it would be given stays here."""
    monkeypatch.setattr(device, "upload", lambda value: value)
    monkeypatch.setattr(device, "empty", np.empty)
    # What it gets here would be in the way of a later launch.
    monkeypatch.setattr(cuda, "_OWN", local())
    caches = cuda._prepared, cuda._tables, cuda._uploaded, trajectory_cuda._tables
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_one_kernel_serves_small_problems_of_all_sizes(on_paper):
    """Compiling takes longer than their runs; larger problems have kernels by powers of 2."""
    small = [path(layout, Estimator("grpo"), 5) for layout in ("one prompt", "epochs of two steps")]
    small.append(Trajectory(smooth(24, 9, 4, 2), 64, 5, Constant(0.3)))
    large = [Trajectory(smooth(2, arms, 3, 2), 2, 5, Constant(0.3)) for arms in (40, 64, 65)]
    block = Replications(0, 0, 5)
    kernels = [
        trajectory_cuda.launch_of(one, block, starts(one, block), 5).kernel
        for one in (*small, *large)
    ]
    assert len(set(kernels[:3])) == 1
    assert len(set(kernels)) == 3
    assert kernels[3] is kernels[4]


SHAPE = warps.Shape(**dict.fromkeys(warps.Shape._fields, 1))


@pytest.mark.parametrize(
    ("module", "make", "given"),
    [
        ("ustat_pg.engines.gradients.warps.kernels", warps.built_in, (SHAPE, 0, ())),
        ("ustat_pg.engines.gradients.warps.one_prompt", warps.one_prompt, (SHAPE, 0, ())),
        (runs.__name__, runs.roomy, (1, 2, 3, 4)),
    ],
    ids=["gradients", "one prompt", "runs"],
)
def test_threads_that_ask_for_a_kernel_at_once_get_the_same_one(monkeypatch, module, make, given):
    """Each of two kernels would be compiled."""

    def slow(function):
        time.sleep(0.05)
        return function

    monkeypatch.setattr(import_module(module), "device_kernel", slow)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: make(*given), range(2))
    assert one is other


def test_the_kernels_compile_for_a_device(on_paper, monkeypatch):
    """What a machine without a device can say: their types, and code for compute capability 8.0."""
    from numba.cuda.cudadrv.error import NvvmSupportError
    from numba.cuda.cudadrv.nvvm import NVVM

    try:
        NVVM()
    except NvvmSupportError:
        pytest.skip("no NVVM library here")
    fake = SimpleNamespace(compute_capability=(8, 0))
    monkeypatch.setattr("numba.cuda.dispatcher.get_current_device", lambda: fake)
    path = Trajectory(smooth(6, 5, 3, 4), 2, 5, Constant(0.3), Estimator("oracle"), 3, "epochs")
    block, many = Replications(0, 0, 5, 5), Replications(0, 0, 5, 10**15)
    minibatch = GradientCell(random_problem(1, "linear", contexts=3), 3), laws.quantities_for(3)
    launches = [
        cuda.launch_of(*minibatch, block)[0],
        cuda.launch_of(minibatch[0], [QUANTITY], many)[0],
        cuda.launch_of(Case(10, 16).cell, [QUANTITY], many)[0],
        *(
            trajectory_cuda.launch_of(path, block, starts(path, block), whole.whole)
            for whole in (block, many)
        ),
    ]
    assert len({launch.kernel for launch in launches}) == 5
    for launch in launches:
        signature = tuple(map(typeof, launch.arguments))
        code, _ = numba_cuda.compile_ptx(launch.kernel.py_func, signature, cc=(8, 0))
        assert ".visible .entry" in code
        # A call that is left would be one that no device can make.
        assert "call.uni" not in code


# Refusals.


@pytest.fixture
def no_device(monkeypatch):
    monkeypatch.setattr(config, "ENABLE_CUDASIM", 0)
    monkeypatch.setattr(numba_cuda, "is_available", lambda: False)


CELL = GradientCell(random_problem(0, "plain"), 4)
QUANTITY = SquaredError(Estimator("grpo"))
PATH = Trajectory(smooth(3, 5, 2, 2), 3, 20, Constant(0.5), snapshots=(0, 10, 20))


@pytest.mark.parametrize(
    "call",
    [
        lambda: CELL.measure("cuda", [QUANTITY], replications=5),
        lambda: PATH.run("cuda"),
    ],
    ids=["measure", "run"],
)
def test_a_machine_without_a_device_says_so(no_device, call):
    refuses(r"no CUDA device .* use engine cpu or reference.*CUDASIM=1", call)


def test_the_simulator_beside_compiled_code_is_refused(monkeypatch):
    monkeypatch.setattr(config, "ENABLE_CUDASIM", 1)
    monkeypatch.setattr(config, "DISABLE_JIT", 0)
    refuses("set NUMBA_DISABLE_JIT=1 and", CELL.measure, "cuda", [QUANTITY], replications=5)


def test_the_refusals_match_the_cpu_engines(no_device):
    """Before it is asked whether there is a device."""
    own = SquaredError(Estimator("own", function=lambda z, _: z))
    said = "engine cuda cannot run own: use reference .* within_rewards"
    refuses(said, CELL.measure, "cuda", [own], replications=1)
    refuses("replications", PATH.run, "cuda", replications=0)


# Which kernel, and how many thread blocks.


def test_a_cell_has_a_kernel_of_its_own_where_its_whole_work_pays_for_it(on_paper):
    """In each of its blocks, be they small."""

    def kernels(whole, count, outputs=1e9 * device.OUTPUTS.seconds / device.OUTPUTS.saved):
        enough = int(outputs / CELL.outputs) + 1
        for first in (0, 7):
            block = Replications(3, first, count, whole * enough)
            yield cuda.launch_of(CELL, [QUANTITY], block)[0].kernel is not warps.kernel

    assert [*kernels(1, 5), *kernels(1, 65_536)] == [True] * 4
    assert [*kernels(0.99, 5), *kernels(0, 65_536)] == [False] * 4
    begin, enough = starts(PATH, Replications(count=5)), device.STEPS.seconds / device.STEPS.saved
    for share, own in ((1.0, True), (0.99, False)):
        whole = int(share * enough * 1e9 / PATH.steps) + 1
        launch = trajectory_cuda.launch_of(PATH, Replications(4, 0, 5), begin, whole)
        shape, _ = trajectory_cuda._tables(PATH)
        assert (launch.kernel is runs.built_in(shape)) == own


def test_small_calls_have_few_thread_blocks(on_paper):
    """No more than run at once, until each team has several replications; on every device as many."""
    shape = cuda._prepared(CELL, (QUANTITY,))[0]

    def blocks(teams):
        block = Replications(0, 0, int(teams * shape.teams))
        return cuda.launch_of(CELL, [QUANTITY], block)[0].blocks

    assert [*map(blocks, (0.5, 1, 1.5, 200, 256, 257, 1024, 1025, 4096))] == [
        *(1, 1, 2, 200, 256, 256, 256, 257, 1024)
    ]
    assert blocks(10**6) == cuda.BLOCKS
