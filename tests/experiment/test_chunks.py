"""Out of memory: the work goes on with half as many runs at once, says so, and remembers it."""

from __future__ import annotations

import pickle
import re
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.support.imports import reached
from ustat_pg import whole_files
from ustat_pg.checks import Verdict, equal
from ustat_pg.engines import (
    Cell,
    Constant,
    Estimator,
    Gap,
    GradientCell,
    InfeasibleError,
    MomentSums,
    SquaredError,
)
from ustat_pg.engines.networks.cell import NetworkTraining, OutOfMemory
from ustat_pg.experiment import Check, Claim, Options, Store, mean_of, run_claims
from ustat_pg.experiment import blocks as blocks_module
from ustat_pg.experiment import store as store_module
from ustat_pg.experiment.blocks import Block, halved, record_of, run_task
from ustat_pg.experiment.measurements import Measurements
from ustat_pg.experiment.options import BUDGETS
from ustat_pg.experiment.store import program
from ustat_pg.experiment.work import Work, environment
from ustat_pg.memory import ChunkWarning
from ustat_pg.policies import PrefixSoftmax
from ustat_pg.problems import modular_sum, random_problem

GRPO = Estimator("grpo")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")

PROBLEM = modular_sum(2, 2, end=True)
POLICY = PrefixSoftmax.random(PROBLEM.space, PROBLEM.contexts, seed=1)
QUANTITIES = (Gap(GRPO, 3), Gap(GRPO, 1))


class OutOfMemoryError(RuntimeError):
    """The name that torch gives to the error of a device."""


ERRORS = {
    "numpy": MemoryError("Unable to allocate"),
    "ours": OutOfMemory(8),
    "a device": OutOfMemoryError("CUDA out of memory"),
    "torch": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    "a driver": RuntimeError("CUDA error: out of memory"),
}


@dataclass(frozen=True, eq=False)
class Hungry(Cell):
    """Runs whose values are their numbers, and which may not be more than some at once."""

    error: Exception
    most: int
    chunk: int = 8
    block: int = 16
    group_size: int = 2
    batch_size: int = 1
    steps: int = 4
    tried: list = field(default_factory=list)

    @property
    def name(self):
        return f"hungry/{self.chunk}"

    def halved(self):
        return replace(self, chunk=self.chunk // 2) if self.chunk > 1 else None

    def range(self, quantity):
        return 0.0, 1.0

    def rounding(self, quantity):
        return 0.0

    def require_quantity(self, quantity):
        pass

    def require_exact(self, quantities):
        raise InfeasibleError("runs are simulated")

    def _measure(self, engine, quantities, block):
        self.tried.append((self.chunk, block.first))
        if self.chunk > self.most:
            raise self.error
        numbers = block.first + np.arange(block.count, dtype=float)
        # Unlike the real runs, these show in the last digits how many there were at once.
        return MomentSums.of(np.column_stack([numbers / 1024, numbers * 0 + self.chunk]))


def work_on(tasks, store, executor=None, workers=1):
    """The tasks' results."""
    options = Options("smoke", workers=workers)
    with environment(options, executor) as pool:
        work = Work(store, options, pool)
        work.run(tasks, "test")
        return [record_of(work.sums([task])) for task in tasks]


def measured(cell, options=None):
    """What the two quantities ask of a cell."""
    return Measurements([mean_of(cell, each) for each in QUANTITIES], options or Options("smoke"))


def tasks_of(cell, n=32, options=None):
    return measured(cell, options).blocks({cell.name: n})[cell.name]


def halvings(said):
    """The cells that were halved, in their order."""
    assert {warning.category for warning in said} <= {ChunkWarning}
    return [str(warning.message).split()[3] for warning in said]


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_half_as_many_at_once_and_a_warning_for_each_size(error, tmp_path):
    cell = Hungry(error, most=2)
    with pytest.warns(ChunkWarning, match=r"out of memory: hungry/\d goes on with half") as said:
        first, second = work_on(tasks_of(cell), Store(tmp_path))
    # Once from 8 to 4 and once from 4 to 2, however many blocks were under way.
    assert halvings(said) == ["hungry/4", "hungry/2"]
    assert [first["mean"], second["mean"]] == [[7.5 / 1024, 2.0], [23.5 / 1024, 2.0]]
    both = {(2, 0), (2, 16), (8, 0), (8, 16)}
    assert both < set(cell.tried) <= both | {(4, 0), (4, 16)}
    assert len(cell.tried) == len(set(cell.tried))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_next_blocks_of_a_cell_that_ran_out_begin_small(workers, tmp_path):
    cell, blocks = Hungry(MemoryError(), most=2), 20
    with pytest.warns(ChunkWarning) as said:
        found = work_on(tasks_of(cell, 16 * blocks), Store(tmp_path), workers=workers)
    assert halvings(said) == ["hungry/4", "hungry/2"]
    # No more than were under way when the first failed, of each size.
    tried = [chunk for chunk, _ in cell.tried]
    assert max(tried.count(8), tried.count(4)) <= 2 * workers
    # Each block is done, once, at the chunk that fits; and no smaller one is tried.
    assert sorted(first for chunk, first in cell.tried if chunk == 2) == list(range(0, 320, 16))
    assert min(tried) == 2
    assert [result["mean"] for result in found] == [
        [(16 * k + 7.5) / 1024, 2.0] for k in range(blocks)
    ]


def test_one_block_that_does_not_fit_is_one_warning(tmp_path, monkeypatch):
    # With one block under way at a time, the second is never tried at what failed.
    monkeypatch.setattr(Work, "_threads", lambda self: 0.5)
    cell = Hungry(MemoryError(), most=4)
    with pytest.warns(ChunkWarning, match="hungry/4 goes on with half") as said:
        work_on(tasks_of(cell, 64), Store(tmp_path))
    assert len(said) == 1
    assert cell.tried == [(8, 0), (4, 0), (4, 16), (4, 32), (4, 48)]


def test_other_cells_keep_their_chunk(tmp_path):
    @dataclass(frozen=True, eq=False)
    class Modest(Hungry):
        @property
        def name(self):
            return f"modest/{self.chunk}"

    hungry, modest = Hungry(MemoryError(), most=4), Modest(MemoryError(), most=8)
    with pytest.warns(ChunkWarning, match="hungry"):
        work_on([*tasks_of(hungry, 64), *tasks_of(modest, 64)], Store(tmp_path))
    assert {chunk for chunk, _ in modest.tried} == {8}
    assert len(modest.tried) == 4


def test_results_are_kept_under_the_chunk_that_made_them_and_found_again(tmp_path):
    store, cell = Store(tmp_path), Hungry(MemoryError(), most=2)
    with pytest.warns(ChunkWarning):
        found = work_on(tasks_of(cell), store)
    for task in tasks_of(cell):
        assert store.get(task.description) is None
        assert store.get(halved(task).description) is None
        smallest = halved(halved(task))
        assert store.get(smallest.description) is not None
        assert store.get(halved(smallest).description) is None
    again = replace(cell, error=AssertionError("tried again"), tried=[])
    assert work_on(tasks_of(again), Store(tmp_path)) == found
    assert again.tried == []
    # A block that is not there is tried as it is asked for.
    more = replace(again, error=MemoryError())
    with pytest.warns(ChunkWarning):
        work_on(tasks_of(more, 48), Store(tmp_path))
    assert more.tried == [(8, 32), (4, 32), (2, 32)]


def test_a_result_of_the_chunk_asked_for_goes_before_that_of_a_smaller_one(tmp_path):
    store = Store(tmp_path)
    with pytest.warns(ChunkWarning):
        work_on(tasks_of(Hungry(MemoryError(), most=4), 16), store)
    (task,) = tasks_of(Hungry(MemoryError(), most=8), 16)
    store.put(task.description, record_of(run_task(task)))
    (found,) = work_on([task], store)
    assert found["mean"][1] == 8.0


@pytest.mark.parametrize(
    ("error", "most", "tried"),
    [
        *((error, 0, [8, 4, 2, 1]) for error in ERRORS.values()),
        (RuntimeError("shapes do not match"), 2, [8]),
        (ValueError("wrong"), 2, [8]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_run_that_does_not_fit_and_an_error_that_is_not_memory_are_raised(
    error, most, tried, tmp_path
):
    cell = Hungry(error, most=most)
    expected = pytest.warns(ChunkWarning) if len(tried) > 1 else nullcontext()
    with expected, pytest.raises(type(error), match=re.escape(str(error))):
        work_on(tasks_of(cell, 16), Store(tmp_path))
    assert cell.tried == [(chunk, 0) for chunk in tried]
    assert not list(tmp_path.glob("*.json"))


def test_a_gradients_block_has_no_chunk(tmp_path, monkeypatch):
    def full(*_, **__):
        raise MemoryError("full")

    task = Block(GradientCell(random_problem(0), 2), (SquaredError(GRPO),), "cpu", 0, 0, 10)
    assert halved(task) is None
    monkeypatch.setattr(GradientCell, "measure", full)
    with pytest.raises(MemoryError, match="full"):
        work_on([task], Store(tmp_path))


def test_finished_blocks_are_kept_where_a_later_one_does_not_fit(tmp_path):
    @dataclass(frozen=True, eq=False)
    class Later(Hungry):
        def _measure(self, engine, quantities, block):
            if block.first >= 16:
                raise MemoryError
            return super()._measure(engine, quantities, block)

    cell = Later(MemoryError(), most=8, chunk=1)
    with pytest.raises(MemoryError):
        work_on(tasks_of(cell), Store(tmp_path))
    assert Store(tmp_path).get(tasks_of(cell)[0].description) is not None


# Whole runs of networks.


def training(**changed):
    asked = {"block": 8, "chunk": 8, "batch_size": 2} | changed
    return NetworkTraining(PROBLEM, POLICY, 3, 3, Constant(0.5), **asked)


@pytest.fixture
def small_memory(monkeypatch):
    """Memory for two runs at once."""
    from ustat_pg.engines.networks import runs as network_runs

    own, counts = network_runs.run, []

    def run(cell, estimator, snapshots, seed, first, replications):
        counts.append(replications)
        if replications > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return own(cell, estimator, snapshots, seed, first, replications)

    monkeypatch.setattr(network_runs, "run", run)
    return counts


@needs_torch
def test_the_runs_of_a_network_go_on_and_are_the_same(tmp_path, small_memory, monkeypatch):
    tasks = tasks_of(training(), 16)
    with pytest.warns(ChunkWarning, match="half as many runs"):
        found = work_on(tasks, Store(tmp_path))
    assert sorted(set(small_memory)) == [2, 4, 8]
    asked = len(small_memory)
    assert work_on(tasks, Store(tmp_path)) == found
    assert len(small_memory) == asked, "a rerun runs nothing"
    monkeypatch.undo()
    for task, result in zip(tasks, found, strict=True):
        whole = run_task(task)
        assert result["n"] == whole.n == 8
        assert result["mean"] == pytest.approx(whole.mean, rel=1e-12)
        assert np.array(result["products"]) == pytest.approx(whole.products, rel=1e-9)
    # Not those of other runs: another seed is seen at that tolerance.
    other = run_task(replace(tasks[0], seed=1))
    assert other.mean != pytest.approx(np.array(found[0]["mean"]), rel=1e-6)


def small_claim():
    gap = mean_of(training(), Gap(GRPO, 3))
    start = PROBLEM.gap(PROBLEM.bandit(POLICY))
    check = Check("gap", "made-up", gap, equal(0.8 * start, {"nothing learned": 3.0}, digits=0.3))
    return Claim("suboptimality", ("nothing learned",), (check,), ("nothing learned",))


@needs_torch
def test_a_claim_is_settled_in_smaller_chunks(tmp_path, small_memory, monkeypatch):
    def settled(folder):
        monkeypatch.setitem(BUDGETS, "smoke", 64)
        return run_claims([small_claim()], Options("smoke"), Store(folder)).claims[0]

    with pytest.warns(ChunkWarning):
        disturbed = settled(tmp_path)
    assert settled(tmp_path) == disturbed
    monkeypatch.undo()
    whole = settled(tmp_path / "whole")
    assert whole.verdict == disturbed.verdict != Verdict.REFUTED
    estimates = [result.checks[0].found["simulation"].estimate for result in (disturbed, whole)]
    assert estimates[0] == pytest.approx(estimates[1], rel=1e-12)


# Devices, threads, engines and pilots.


@pytest.mark.parametrize("engine", ["cpu", "cuda", "reference", "autograd"])
def test_the_device_is_part_of_an_autograd_blocks_key_and_of_no_other(engine):
    asked = GradientCell(random_problem(0), 2), (SquaredError(GRPO),), engine
    one, two = (Block(*asked, device=device).description for device in ("cpu", "cuda"))
    assert (one != two) == (engine == "autograd")
    assert ("device" in one) == (engine == "autograd")


@needs_torch
def test_the_device_reaches_the_engine(monkeypatch):
    from ustat_pg.engines.gradients import autograd

    asked = []

    class Spy(type(autograd.ENGINE)):
        def measure(self, cell, quantities, block):
            asked.append(cell.device)
            return super().measure(cell.on("cpu"), quantities, block)

        def require(self, cell, quantities):
            pass

    monkeypatch.setattr(autograd, "ENGINE", Spy())
    task = Block(
        GradientCell(PROBLEM.at(POLICY), 2), (SquaredError(GRPO),), "autograd", 0, 0, 4, "cuda:1"
    )
    run_task(task)
    assert asked == ["cuda:1"]


@needs_torch
def test_one_thread_in_torch_wherever_a_network_is_trained(monkeypatch):
    import torch

    seen = []

    class Looking(Hungry):
        def _measure(self, *arguments):
            seen.append(torch.get_num_threads())
            return super()._measure(*arguments)

    before = torch.get_num_threads()
    monkeypatch.delattr(blocks_module._THREAD, "torch", raising=False)
    try:
        torch.set_num_threads(2)
        run_task(Block(Looking(MemoryError(), most=8), QUANTITIES, "autograd", 0, 0, 4))
        assert seen == [1]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("engine", ["cpu", "reference", "cuda"])
def test_networks_are_run_by_autograd_whatever_was_asked_for(engine):
    cell, options = training(), Options("smoke", engine, seed=5, device="cuda:1")
    assert cell.engine(engine) == "autograd"
    assert GradientCell(random_problem(0), 2).engine(engine) == engine
    assert measured(cell, options).exact_tasks == {}
    blocks = [*measured(cell, options).pilot_tasks.values(), *tasks_of(cell, 24, options)]
    assert {(b.engine, b.device, b.seed) for b in blocks} == {("autograd", "cuda:1", 5)}


@pytest.mark.parametrize(("size", "pilot"), [(8, 8), (256, 256), (2048, 512)])
def test_a_block_of_few_runs_is_its_own_pilots_size(size, pilot):
    cell = training(block=size)
    (task,) = measured(cell).pilot_tasks.values()
    assert (cell.block, task.replications) == (size, pilot)
    # No verdict reads a pilot's runs.
    assert task.first >= 2**62
    tasks = tasks_of(cell, 3 * size)
    assert [(task.first, task.replications) for task in tasks] == [
        (number * size, size) for number in range(3)
    ]


def test_the_budget_counts_outputs():
    options = Options("smoke")
    assert training().budget(options.budget) == 6_000_000 * 256 // (3 * 2 * 3)
    assert GradientCell(random_problem(0), 2).budget(options.budget) == 6_000_000
    # One block at least.
    long = replace(training(), steps=2**20, batch_size=2**10)
    assert long.budget(options.budget) == long.block


def test_the_version_of_torch_is_in_the_keys_of_what_torch_computes_alone(monkeypatch, tmp_path):
    store = Store(tmp_path)
    cell = GradientCell(random_problem(0), 2)
    bandit = {
        engine: Block(cell, (SquaredError(GRPO),), engine, replications=2)
        for engine in ("exact", "cpu", "reference", "cuda", "autograd")
    }
    runs = Block(training(), (), "autograd", replications=2)

    def keys(found):
        monkeypatch.setattr(whole_files, "version", found)
        store_module.code_version.cache_clear()
        try:
            ours = {engine: store.key(block.description) for engine, block in bandit.items()}
            return ours, store.key(runs.description), program()
        finally:
            store_module.code_version.cache_clear()

    def missing(name):
        raise PackageNotFoundError(name)

    with_one, other, without = keys(lambda _: "2.1"), keys(lambda _: "2.2"), keys(missing)
    for engine in bandit:
        said = {each[0][engine] for each in (with_one, other, without)}
        assert len(said) == (3 if engine == "autograd" else 1), engine
    assert len({each[1] for each in (with_one, other, without)}) == 3
    # Workers are told apart by it: a block of torch may come to any of them.
    assert "torch 2.1" in with_one[2]
    assert "torch" not in without[2]


NOT_IN_RESULTS = {
    "memory.py",  # whether an error says that memory ran out
    "_version.py",
    "comparison.py",  # asks cells, as blocks do
    "catalogue/records.py",  # explains options, which no block has
    "catalogue/meaning.py",
    "catalogue/specs.py",
    "commands/explain.py",
    "commands/predict.py",
    "reading.py",  # files of others, before there is a problem
    "testing/function.py",
    "predictions/advice.py",  # not called by probes
    "predictions/budget.py",
    "predictions/group_size.py",
    "predictions/lengths.py",
    "predictions/limit_law.py",
    "predictions/normalised.py",
    "predictions/objectives.py",
    "predictions/penalties.py",
    "predictions/practical.py",
    "predictions/runs.py",
    "predictions/suboptimality.py",
    "predictions/weighted.py",
}


def test_every_file_that_makes_a_result_is_in_the_key():
    root = Path(store_module.__file__).parent.parent
    entries = [root / "experiment/blocks.py", root / "experiment/probes.py"]
    # Engines are imported by name.
    found = reached([*entries, *(root / "engines").rglob("*.py")])
    names = {file.relative_to(root).as_posix() for file in found}
    seen = ("engines/networks/runs.py", "engines/gradients/autograd.py", "policies/transformer.py")
    assert names >= set(seen)
    kept = (*store_module._MAKERS, *store_module._MAKER_FILES)
    # A package's __init__ computes nothing.
    left_out = {
        name
        for name in names
        if not any(name == place or name.startswith(f"{place}/") for place in kept)
        and not name.endswith("__init__.py")
    }
    assert left_out <= NOT_IN_RESULTS, left_out - NOT_IN_RESULTS
    # The predictions left out of the key are not called by probes.
    source = (root / "experiment/probes.py").read_text(encoding="utf-8")
    (line,) = (line for line in source.splitlines() if "..predictions" in line)
    assert line == "from ..predictions import gradient_mse"


# Other processes.


class Posted(Executor):
    """Runs at once what was pickled, and pickles what comes back, errors too."""

    def __init__(self):
        self.sizes = []

    def submit(self, function, *arguments):
        sent = pickle.dumps((function, arguments))
        self.sizes.append(len(sent))
        function, arguments = pickle.loads(sent)
        future = Future()
        try:
            future.set_result(pickle.loads(pickle.dumps(function(*arguments))))
        except Exception as error:
            future.set_exception(pickle.loads(pickle.dumps(error)))
        return future


@needs_torch
def test_a_networks_runs_are_the_same_in_another_process(tmp_path):
    tasks = tasks_of(training(), 16)
    here = work_on(tasks, Store(tmp_path / "here"))
    assert work_on(tasks, Store(tmp_path / "there"), Posted()) == here


@needs_torch
def test_memory_that_runs_out_in_another_process_halves_the_chunk_too(tmp_path, small_memory):
    tasks = tasks_of(training(), 8)
    with pytest.warns(ChunkWarning):
        (there,) = work_on(tasks, Store(tmp_path), Posted())
    assert there["n"] == 8
    assert small_memory == [8, 4, 2, 2, 2, 2]
