"""The cuda engine without a device: words on edges, kernels that compile, refusals."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from numba import config, int64, typeof, types, uint32
from numba import cuda as numba_cuda

from tests.support import laws
from tests.support.problems import smooth
from ustat_pg.engines import (
    Constant,
    Estimator,
    GradientCell,
    SquaredError,
)
from ustat_pg.engines.gradients import cuda, warps
from ustat_pg.engines.runs import cpu as trajectory_cpu
from ustat_pg.engines.runs import cuda as trajectory_cuda
from ustat_pg.engines.runs import scalar as path_bodies
from ustat_pg.engines.runs.trajectory import Trajectory
from ustat_pg.problems import random_problem
from ustat_pg.validation import InputError


def test_a_word_on_an_edge_belongs_to_what_lies_above(monkeypatch):
    """No draw of a test will ever meet an edge: the body is handed the words."""
    quarter, half = 2**30, 2**31
    edges = [0, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 3 * 2**30, 2**32 - 1]
    below, above = half - 1, half
    handed = iter(edge for edge in edges for _ in range(2))

    def words(*_):
        return next(handed), below, next(handed), above

    monkeypatch.setattr(path_bodies, "words_at", words)
    # Four equal weights, and two rewards of one half each.
    plan = SimpleNamespace(
        law=np.full((1, 4), half),
        rewards=np.array([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]]),
    )
    arms, rewards = np.zeros(2 * len(edges), np.int32), np.zeros(2 * len(edges))
    path_bodies._group.py_func(
        quarter, quarter, [quarter] * 2, plan, 0, np.arange(1.0, 5.0), arms, rewards
    )
    expected = [0, 0, 1, 1, 2, 3, 3]
    assert arms[::2].tolist() == arms[1::2].tolist() == expected
    assert rewards[::2].tolist() == [k + 1.0 for k in expected]
    assert rewards[1::2].tolist() == [10.0 * (k + 1) for k in expected]


def test_the_kernels_compile_for_a_device(monkeypatch):
    """What a machine without a device can say: their types, and code for compute capability 8.0."""
    from numba.cuda.cudadrv.error import NvvmSupportError
    from numba.cuda.cudadrv.nvvm import NVVM

    try:
        NVVM()
    except NvvmSupportError:
        pytest.skip("no NVVM library here")
    fake = SimpleNamespace(compute_capability=(8, 0))
    monkeypatch.setattr("numba.cuda.dispatcher.get_current_device", lambda: fake)
    monkeypatch.setattr(cuda, "upload", lambda value: value)
    cell = GradientCell(random_problem(1, "linear", contexts=3), 3)
    shape, asked, there, room = cuda._prepared.__wrapped__(cell, tuple(laws.quantities_for(3)))
    path = Trajectory(smooth(6, 5, 3, 4), 2, 5, Constant(0.3), Estimator("oracle"), 3, "epochs")
    plan = trajectory_cpu.plan_of(path)
    *path_room, _, _ = laws.scratch(trajectory_cuda.shapes(path, plan), 2)

    def array(ndim, dtype=np.float64):
        return typeof(np.zeros((2,) * ndim, dtype))

    words = types.UniTuple(uint32, 2)
    call = (int64, int64, words, typeof(there), typeof(room), array(1))
    as_arrays = type(asked)(*(np.array(part, np.int32) for part in asked))
    signatures = {
        warps.kernel: (typeof(shape), typeof(as_arrays), *call),
        warps.built_in(shape, asked): call,
        path_bodies.path_kernel: (
            *(int64, int64, int64, array(1, np.int64), int64, typeof(plan), array(3)),
            *(typeof(path_bodies.Room(*path_room)), array(2), array(3)),
        ),
    }
    for kernel, signature in signatures.items():
        code, _ = numba_cuda.compile_ptx(kernel.py_func, signature, cc=(8, 0))
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
    with pytest.raises(
        InputError, match=r"no CUDA device .* use engine cpu or reference.*CUDASIM=1"
    ):
        call()


def test_the_simulator_beside_compiled_code_is_refused(monkeypatch):
    monkeypatch.setattr(config, "ENABLE_CUDASIM", 1)
    monkeypatch.setattr(config, "DISABLE_JIT", 0)
    with pytest.raises(InputError, match="set NUMBA_DISABLE_JIT=1 beside"):
        CELL.measure("cuda", [QUANTITY], replications=5)


def test_what_the_cpu_engine_refuses_is_refused(no_device):
    """Before it is asked whether there is a device."""
    own = SquaredError(Estimator("own", function=lambda z, _: z))
    with pytest.raises(
        InputError, match=r"engine cuda cannot run own: use reference .* within_rewards"
    ):
        CELL.measure("cuda", [own], replications=1)
    with pytest.raises(InputError, match="replications"):
        PATH.run("cuda", replications=0)
