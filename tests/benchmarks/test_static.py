"""What kernels cost without a card: an executor of PTX, machine code, a model of devices, and the record."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda, float64, int64
from numba.cuda.cudadrv.error import NvvmSupportError
from numba.cuda.cudadrv.nvvm import NVVM

from benchmarks import gpu, mse_kernel
from benchmarks.static import kernels, memory, model, ptx, sass, table
from benchmarks.static.arithmetic import KINDS, fused, high_product, operation
from benchmarks.static.program import Program, Refused
from benchmarks.static.races import Races
from simulations.engines.runs import cuda as runs
from simulations.engines.runs.trajectory import starts
from tests.support import laws
from tests.support.problems import FORMS
from tests.support.run_laws import path
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.engines.base import Replications
from ustat_pg.engines.device import Launch
from ustat_pg.engines.gradients import cuda as gradients
from ustat_pg.problems import SoftmaxBandit, random_problem

HOPPER = (9, 0)

COUNT, FAR = 37, laws.FAR


@pytest.fixture(scope="module")
def nvvm():
    try:
        NVVM()
    except NvvmSupportError:
        pytest.skip("no NVVM library here")


@pytest.fixture(scope="module")
def ptxas(nvvm):
    if sass.tool("ptxas") is None:
        pytest.skip(sass.missing("ptxas"))


@pytest.fixture(scope="module")
def nvdisasm(ptxas):
    if sass.tool("nvdisasm") is None:
        pytest.skip(sass.missing("nvdisasm"))


# The executor, on PTX written by hand.

TINY = """
.version 8.0
.target sm_80
.extern .shared .align 8 .b8 added[];
.visible .entry tiny(
\t.param .u64 tiny_0
)
{
\t.reg .pred %p<9>;
\t.reg .b32 %r<9>;
\t.reg .b64 %rd<9>;
\t.shared .align 4 .b8 fixed[128];
\tld.param.u64 %rd1, [tiny_0];
\tmov.u32 %r1, %tid.x;
\tmul.wide.u32 %rd2, %r1, 4;
\tadd.s64 %rd3, %rd1, %rd2;
"""
END = "\tst.global.u32 [%rd3], %r2;\n\tret;\n}\n"


def tiny(body, threads=32, shared=0, end=END):
    """The words that the threads write, and the execution."""
    out = memory.empty(threads, np.uint32)
    out[...] = 0
    place = out.device_ctypes_pointer
    done = ptx.Execution(Program(TINY + body + end), [place], 1, threads, shared)
    return np.array(out), done


def test_threads_that_part_meet_again():
    """A thread's rounds are its number's remainder: 0 to 4, so the warp makes as many as the longest."""
    body = """
\trem.u32 %r3, %r1, 5;
\tmov.u32 %r2, 0;
\tsetp.eq.s32 %p1, %r3, 0;
\t@%p1 bra $done;
$again:
\tadd.s32 %r2, %r2, %r3;
\tadd.s32 %r3, %r3, -1;
\tsetp.ne.s32 %p2, %r3, 0;
\t@%p2 bra $again;
$done:
"""
    words, done = tiny(body, 64)
    rounds = np.arange(64) % 5
    assert words.tolist() == (rounds * (rounds + 1) // 2).tolist()
    counts = dict.fromkeys(("rem.u32", "bra", "add.s32", "st.global.u32"), 0)
    for line, opcode in done.program.opcodes.items():
        if opcode in counts:
            counts[opcode] += done.counts[line]
    # Two warps: a jump before the loop, four rounds of two sums and a jump.
    assert counts == {"rem.u32": 2, "bra": 2 + 8, "add.s32": 16, "st.global.u32": 2}
    assert done.lanes < 32 * done.issued


def test_warps_meet_at_a_barrier_and_lanes_in_a_shuffle():
    body = """
\tshl.b32 %r4, %r1, 2;
\tmov.u64 %rd4, added;
\tcvt.u64.u32 %rd5, %r4;
\tadd.s64 %rd6, %rd4, %rd5;
\tst.shared.u32 [%rd6], %r1;
\tbar.sync 0;
\txor.b32 %r5, %r4, 128;
\tcvt.u64.u32 %rd5, %r5;
\tadd.s64 %rd6, %rd4, %rd5;
\tld.shared.u32 %r6, [%rd6];
\tshfl.sync.bfly.b32 %r7|%p1, %r6, 1, 31, -1;
\tshfl.sync.down.b32 %r8|%p2, %r6, 2, 31, -1;
\tadd.s32 %r2, %r7, %r8;
"""
    words, done = tiny(body, 64, 256)
    lane, other = np.arange(64) % 32, np.arange(64) // 32 * -32 + 32
    below = np.where(lane < 30, lane + 2, lane)
    assert words.tolist() == ((lane ^ 1) + other + below + other).tolist()
    # 32 words of 4 bytes side by side are one pass.
    assert {(a.warps, a.wavefronts) for a in done.accesses.values()} == {(2, 2)}


def test_atomic_sums_pass_once_for_each_thread_of_a_bank():
    body = """
\tmov.u64 %rd4, fixed;
\tand.b32 %r3, %r1, 1;
\tmul.wide.u32 %rd5, %r3, 4;
\tadd.s64 %rd6, %rd4, %rd5;
\tatom.shared.add.u32 %r4, [%rd6], 1;
\tbar.warp.sync -1;
\tld.shared.u32 %r2, [%rd6];
"""
    words, done = tiny(body)
    assert words.tolist() == [16] * 32
    shared = sorted(a.wavefronts for a in done.accesses.values() if a.space == "shared")
    assert shared == [1, 16]


@pytest.mark.parametrize(
    ("stride", "size", "passes"),
    [
        (4, 4, 1),
        (8, 4, 2),
        (128, 4, 32),
        (0, 4, 1),
        (8, 8, 2),
        (32, 8, 8),
        (132, 4, 1),
        (16, 16, 4),
    ],
)
def test_passes_over_banks(stride, size, passes):
    threads = np.arange(32)
    assert ptx.wavefronts(threads, (threads * stride).astype(np.uint64), size) == passes


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("\ttex.1d.v4.f32.s32 %r2, %r1;\n", "line 17: tex.1d.v4.f32.s32 %r2, %r1: unknown"),
        ("\tadd.sat.s32 %r2, %r1, %r1;\n", "unknown instruction"),
        ("\tmov.u64 %rd4, fixed;\n\tld.shared.u32 %r2, [%rd4+128];\n", "beyond the 128 bytes"),
        ("\tld.shared.u32 %r2, [%rd2+2];\n", "not aligned"),
        ("\tadd.s64 %rd3, %rd3, -4;\n\tsub.s64 %rd3, %rd3, %rd1;\n", "beyond"),
        ("\tsetp.eq.s32 %p1, %r1, 0;\n\t@%p1 bra $end;\n\tbar.warp.sync -1;\n$end:\n", "for ever"),
        ("\tmov.u32 %tid.x, 0;\n", "a result in"),
        ("\t@%p1 bar.sync 0;\n", "line 17"),
    ],
)
def test_what_it_cannot_run_is_refused(body, said):
    with pytest.raises(Refused, match=said):
        tiny(body)


def test_arithmetic_that_numpy_lacks():
    numbers = np.random.default_rng(1)
    a, b = numbers.normal(size=(2, 1000))
    lost = [float(Fraction(x) * Fraction(y) - Fraction(x * y)) for x, y in zip(a, b, strict=True)]
    assert fused(a, b, -(a * b)).tolist() == lost
    words = numbers.integers(0, 2**64, size=(2, 100), dtype=np.uint64)
    high = [int(x) * int(y) >> 64 for x, y in words.T]
    assert high_product(*words).tolist() == high
    pairs = np.array([[-7, 7, -7, 7, 5], [2, -2, -2, 2, 0]])
    for name, wanted in (("div", [-3, -3, 3, 3, -1]), ("rem", [-1, 1, -1, 1, 5])):
        function, kinds, _ = operation(name, ["s64"])
        assert kinds == [KINDS["s64"]] * 2
        assert function(*pairs).tolist() == wanted
    function, *_ = operation("setp", ["nan", "f64"])
    wanted = [False, True, True]
    assert function(np.array([1, np.nan, 1]), np.array([1, 1, np.nan])).tolist() == wanted
    function, *_ = operation("cvt", ["rzi", "s32", "f64"])
    assert function(np.array([-1.5, 3e9, -3e9, np.nan])).tolist() == [-1, 2**31 - 1, -(2**31), 0]


# Compiled code.


def test_a_loop_of_machine_code_is_issued_as_often_as_it_runs(nvdisasm):
    """Counted by hand: a fused sum and a load a round, however NVVM and ptxas unroll the loop."""

    def loop(n, x, read, out):
        i = cuda.grid(1)
        value = x
        for j in range(n + i // 32):
            value = value * x + read[j]
        out[i] = value

    with kernels.no_card(HOPPER):
        read, out = memory.upload(np.arange(64.0)), memory.empty(64)
        launch = Launch(cuda.jit(loop), 1, 64, 0, (11, 1.5, read, out))
        types = kernels.types_of(launch)
        assert types == (int64, float64, float64[::1], float64[::1])
        made = kernels.compiled(launch.kernel, types, HOPPER)
        done = kernels.executed(launch, made.program)
    weight = sass.weights(made.machine, done.counts, made.program.opcodes)
    # One warp makes 11 rounds, the other 12.
    assert sass.issued(made.machine, weight)["float64"] == pytest.approx(23)
    loads = [
        times
        for block, times in zip(made.machine.blocks, weight, strict=True)
        for _, instruction in block
        if sass.opcode(instruction).startswith("LDG")
    ]
    assert sum(loads) == pytest.approx(23)
    expected = np.full(64, 1.5)
    for j in range(12):
        expected[32 * (j == 11) :] = expected[32 * (j == 11) :] * 1.5 + j
    assert np.allclose(out, expected, rtol=1e-14)


def measured(one, quantities, whole):
    """The engine's sums, by the executor, and the kernel's function."""
    launch, shape = gradients.launch_of(one, quantities, Replications(3, FAR, COUNT, whole))
    made = kernels.compiled(launch.kernel, kernels.types_of(launch), HOPPER)
    kernels.executed(launch, made.program, watch=False)
    sums = np.array(launch.arguments[-1]).reshape(launch.blocks, -1)
    return gradients.merged(sums, COUNT, shape), launch.kernel.py_func.__qualname__.split(".")[0]


def cell(form, size, batch, design="iid"):
    problem = random_problem(1, FORMS[form], contexts=3)
    uniform = problem.restrict(range(3), uniform=True)
    return GradientCell(problem if design == "iid" else uniform, size, batch, design)


CELLS = {
    "tabular": ("tabular", 5, 1),
    "shared": ("shared", 4, 3),
    "dense": ("linear", 3, 1),
    "dense, each prompt once": ("linear", 9, 2, "without-replacement"),
    "fixed": ("tabular", 2, 3, "fixed"),
}


OWN = 2**50
"""Replications of a cell that has a kernel of its own."""


@pytest.mark.parametrize(
    ("name", "whole"), [*((name, COUNT) for name in CELLS), ("tabular", OWN), ("shared", OWN)]
)
def test_compiled_gradients_are_the_cpu_engine_s(nvvm, name, whole):
    """The code that a card would run, not the Python that it is made of."""
    one = cell(*CELLS[name])
    quantities = laws.quantities_for(one.group_size)
    if whole == OWN:
        # All quantities would take a minute to compile.
        quantities = [SquaredError(Estimator("grpo"))]
    with kernels.no_card(HOPPER):
        sums, kernel = measured(one, quantities, whole)
    assert kernel == ("built_in" if whole == OWN else "kernel")
    here = one.measure("cpu", quantities, seed=3, first=FAR, replications=COUNT)
    laws.same_sums(sums, here, one, quantities)


@pytest.mark.parametrize(
    ("arms", "size", "wanted"),
    [(40, 9, "one_prompt"), (1000, 16, "one_prompt"), (1000, 4, "built_in")],
)
def test_compiled_gradients_of_one_shape_are_the_cpu_engine_s(nvvm, arms, size, wanted):
    """The counts of 1000 arms have room for half the threads in groups of 16, and for none in groups of 4."""
    logits, rewards = np.random.default_rng(5).normal(size=(2, 1, arms))
    problem = SoftmaxBandit.tabular([1.0], logits, rewards[..., None], np.ones((1, arms, 1)))
    one, quantities = GradientCell(problem, size), laws.errors_of("vanilla", "grpo")
    with kernels.no_card(HOPPER):
        sums, kernel = measured(one, quantities, OWN)
        many, _ = gradients.launch_of(one, 2 * quantities, Replications(whole=OWN))
    assert kernel == wanted
    assert many.kernel is gradients.warps.kernel
    here = one.measure("cpu", quantities, seed=3, first=FAR, replications=COUNT)
    laws.same_sums(sums, here, one, quantities)


def launches():
    """Kernels of every kind, each in a launch of several rounds."""
    block = Replications(3, FAR, COUNT, OWN)
    for name in ("shared", "dense, each prompt once"):
        one = cell(*CELLS[name])
        quantities = laws.quantities_for(one.group_size)[::5]
        yield name, gradients.launch_of(one, quantities, Replications(3, FAR, COUNT))[0]
    asked = [SquaredError(Estimator("grpo"))]
    many = Replications(3, FAR, 10 * COUNT, OWN)
    yield "one prompt", gradients.launch_of(mse_kernel.Case(10, 16).cell, asked, many)[0]
    trajectory = path("epochs of two steps", laws.ESTIMATORS[0], 12)
    yield "runs", runs.launch_of(trajectory, block, starts(trajectory, block), OWN)


def test_barriers_separate_what_threads_share(nvvm):
    """Numbers alone would not show a barrier that is missing."""
    with kernels.no_card(HOPPER):
        for name, launch in launches():
            made = kernels.compiled(launch.kernel, kernels.types_of(launch), HOPPER)
            assert kernels.executed(launch, made.program, Races).racing.size == 0, name
            for barrier in ("bar.sync", "bar.warp.sync"):
                lines = made.text.splitlines()
                left = [line for line in lines if not line.strip().startswith(barrier)]
                racing = kernels.executed(launch, Program("\n".join(left)), Races).racing
                # Threads of a run share their tables alone.
                assert len(racing) > 0 or (name, barrier) == ("runs", "bar.warp.sync")


@pytest.mark.parametrize("whole", [COUNT, OWN], ids=["roomy", "built in"])
def test_compiled_runs_are_the_cpu_engine_s(nvvm, whole):
    trajectory = path("epochs of two steps", laws.ESTIMATORS[0], 12)
    block = Replications(4, FAR, COUNT)
    with kernels.no_card(HOPPER):
        launch = runs.launch_of(trajectory, block, starts(trajectory, block), whole)
        made = kernels.compiled(launch.kernel, kernels.types_of(launch), HOPPER)
        kernels.executed(launch, made.program, watch=False)
    theta = np.array(launch.arguments[-1])
    expected = trajectory.run("cpu", seed=4, first=FAR, replications=COUNT)
    assert np.allclose(theta, expected, rtol=1e-12, atol=1e-12)
    assert np.abs(expected[:, -1] - expected[:, 0]).max() > 1e-3 or expected.shape[1] == 1


# Devices and the record.


def test_warps_of_a_multiprocessor():
    """By the occupancy calculator of the CUDA toolkit."""
    hopper, ampere = model.DEVICES["9.0"], model.DEVICES["8.0"]
    assert hopper.occupancy(32, 0, 1024) == (2, 64)
    assert hopper.occupancy(222, 0, 256) == (1, 8)
    assert hopper.occupancy(128, 0, 128) == (4, 16)
    assert hopper.occupancy(16, 0, 32) == (32, 32)
    assert ampere.occupancy(32, 48 * 1024, 256) == (3, 24)
    assert hopper.occupancy(32, 48 * 1024, 256) == (4, 32)


def test_no_kernel_grows_by_more_than_a_tenth(ptxas):
    recorded = table.read(table.RECORD)["9.0"]
    grown = []
    for case in table.cases():
        one, kept = table.cost(case, model.DEVICES["9.0"]), recorded[case.label]
        for name in ("registers", "instructions", "all issued"):
            new, old = (
                sum(of.issued.values()) if name == "all issued" else getattr(of, name)
                for of in (one, kept)
            )
            # Nothing is issued where nvdisasm is missing.
            if new > 1.1 * old:
                grown.append(f"{case.label}: {name} {new:,.0f}, recorded {old:,.0f}")
    assert not grown, "if it is worth it: python -m benchmarks.gpu --static --record"
    assert {*recorded} == {case.label for case in table.cases()}


def test_the_page_has_the_record():
    text = table.PAGE.read_text("utf-8")
    assert text.split(table.FIRST)[1].split(table.LAST)[0].strip() == table.compared()


def test_a_missing_tool_is_named(monkeypatch, capsys):
    monkeypatch.setattr(table, "NVVM", SimpleNamespace)
    monkeypatch.setattr(table, "cases", list)
    for there, record in (("nvdisasm", ()), ("ptxas", ("--record",))):
        monkeypatch.setattr(table, "tool", lambda name, there=there: name == there or None)
        assert gpu.main(["--static", *record]) == 2
        (line,) = capsys.readouterr().out.splitlines()
        (lacking,) = {"ptxas", "nvdisasm"} - {there}
        assert line.startswith(f"{lacking} is not on PATH")
        assert f"pip install {sass.PACKAGES[lacking]}" in line
    assert gpu.main(["--static"]) == 0
    assert "issued" not in capsys.readouterr().out

    def no_library():
        raise NvvmSupportError

    monkeypatch.setattr(table, "NVVM", no_library)
    assert gpu.main(["--static"]) == 2
    assert "CUDA_HOME" in capsys.readouterr().out
