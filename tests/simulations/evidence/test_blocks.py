"""Blocks: plain data in and out, their descriptions and keys, and the engines that make them."""

import ast
import json
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from simulations.engines import Constant, Gap, GapAfterStep, OneStep, Training
from simulations.engines.runs import cuda as paths
from simulations.evidence import Options, Pit, Store, mean_of
from simulations.evidence import store as store_module
from simulations.evidence.blocks import Block, record_of, run_task, sums_of
from simulations.evidence.measurements import Measurements
from simulations.evidence.store import program
from simulations.problems.landscapes import triple
from simulations.shared.runs import ball
from tests.support.commands import python
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.engines.base import Replications
from ustat_pg.engines.gradients import cuda as gradients
from ustat_pg.files import whole as whole_files
from ustat_pg.policies import PrefixSoftmax
from ustat_pg.problems import modular_sum, random_problem

LANDSCAPE = triple()
CELL = Training(LANDSCAPE, 2, 12, Constant(0.3), projection=ball(LANDSCAPE, 0.5))
GRPO = Estimator("grpo")
QUANTITIES = (Gap(GRPO, 12), Pit(GRPO, 12, (0.01,)), Pit(Estimator("oracle"), 6, (0.01,)))


def block(first=0, replications=200, seed=3, **more):
    return Block(CELL, QUANTITIES, "cpu", seed, first, replications, **more)


def test_a_result_is_plain_data_and_comes_back_whole():
    task = block()
    direct = CELL.measure("cpu", QUANTITIES, seed=3, replications=200)
    stored = json.loads(json.dumps(record_of(run_task(task))))
    result = sums_of(stored)
    assert result.n == direct.n
    assert np.array_equal(result.mean, direct.mean)
    assert np.array_equal(result.products, direct.products)
    assert list(result.counts) == [QUANTITIES[1].label, QUANTITIES[2].label]
    for label, count in direct.counts.items():
        assert np.array_equal(result.counts[label], count)
        assert result.counts[label].dtype.kind == "i"


def test_everything_that_matters_is_in_the_description():
    other = Training(LANDSCAPE, 2, 12, Constant(0.31), projection=ball(LANDSCAPE, 0.5))
    tasks = [
        block(),
        block(first=200),
        block(replications=100),
        block(seed=4),
        Block(CELL, QUANTITIES[:2], "cpu", 3, 0, 200),
        Block(CELL, (*QUANTITIES[:2], Pit(GRPO, 12, (0.011,))), "cpu", 3, 0, 200),
        Block(CELL, QUANTITIES, "reference", 3, 0, 200),
        Block(other, QUANTITIES, "cpu", 3, 0, 200),
    ]
    assert len({json.dumps(task.description, sort_keys=True) for task in tasks}) == len(tasks)


# Devices, threads, engines and pilots.

PROBLEM = modular_sum(2, 2, end=True)
POLICY = PrefixSoftmax.random(PROBLEM.space, PROBLEM.contexts, seed=1)


@pytest.mark.parametrize("engine", ["cpu", "cuda", "reference", "autograd"])
def test_the_device_is_part_of_an_autograd_blocks_key_and_of_no_other(engine):
    asked = GradientCell(random_problem(0), 2), (SquaredError(GRPO),), engine
    one, two = (Block(*asked, device=device).description for device in ("cpu", "cuda"))
    assert (one != two) == (engine == "autograd")
    assert ("device" in one) == (engine == "autograd")


def test_a_device_gets_a_cell_in_few_blocks_which_say_how_much_the_cell_is():
    cells = GradientCell(random_problem(0), 2), CELL
    asked = mean_of(cells[0], SquaredError(GRPO)), mean_of(CELL, Gap(GRPO, 12))
    most = {cells[0].name: 2**31 // 2, CELL.name: 2**18}
    wanted = {name: number + 5 for name, number in most.items()}
    on_device, here = (Measurements(asked, Options(engine=engine)) for engine in ("cuda", "cpu"))
    for name, blocks in on_device.blocks(wanted).items():
        parts = [(block.first, block.replications, block.whole) for block in blocks]
        assert parts == [(0, most[name], most[name] + 5), (most[name], 5, most[name] + 5)]
        assert blocks[0].description == replace(blocks[0], whole=0).description
    few = dict.fromkeys(wanted, 200_000)
    assert {len(blocks) for blocks in on_device.blocks(few).values()} == {1}
    assert {len(blocks) for blocks in here.blocks(few).values()} == {4}


def test_the_first_pilot_of_each_kind_of_cell_comes_first():
    cells = [GradientCell(random_problem(number), 2) for number in range(2)]
    asked = [mean_of(cell, SquaredError(GRPO)) for cell in cells]
    wave = Measurements([*asked, mean_of(CELL, Gap(GRPO, 12))], Options(engine="cuda")).first_wave()
    assert {task.cell for task in wave[:2]} == {cells[0], CELL}
    assert [task.engine for task in wave] == ["cuda"] * 2 + ["exact"] * 3 + ["cuda"]
    assert len({task.cell for task in wave if task.engine == "cuda"}) == 3


def test_the_engine_hears_of_how_many_replications_a_block_is_a_part(monkeypatch):
    heard = []
    monkeypatch.setattr(gradients, "measure", lambda *call: heard.append(call[-1]))
    monkeypatch.setattr(paths, "run", lambda _, part: heard.append(part) or np.zeros((5, 1, 1)))
    for cell, quantity in (
        (GradientCell(random_problem(0), 2), SquaredError(GRPO)),
        (CELL, Gap(GRPO, 12)),
    ):
        run_task(Block(cell, (quantity,), "cuda", 3, 7, 5, whole=999))
        run_task(Block(cell, (quantity,), "cuda", 3, 7, 5))
    assert heard == [Replications(3, 7, 5, 999), Replications(3, 7, 5, 5)] * 2


@pytest.mark.parametrize("engine", ["cpu", "reference", "cuda"])
def test_one_step_is_drawn_in_numpy_whatever_was_asked_for(engine):
    step = OneStep(PROBLEM.at(POLICY), 2, 0.5)
    asked = [mean_of(step, GapAfterStep(GRPO))]
    result = Measurements(asked, Options("smoke", engine, seed=5))
    assert {each.engine for each in result.exact_tasks.values()} == {"exact"}
    blocks = [*result.pilot_tasks.values(), *result.blocks({step.name: 24})[step.name]]
    assert {(block.engine, block.seed) for block in blocks} == {("reference", 5)}
    assert GradientCell(random_problem(0), 2).engine(engine) == engine


def test_the_version_of_torch_is_in_the_keys_of_what_torch_computes_alone(monkeypatch, tmp_path):
    store = Store(tmp_path)
    cell = GradientCell(random_problem(0), 2)
    bandit = {
        engine: Block(cell, (SquaredError(GRPO),), engine, replications=2)
        for engine in ("exact", "cpu", "reference", "cuda", "autograd")
    }

    def keys(found):
        monkeypatch.setattr(whole_files, "version", found)
        store_module.code_version.cache_clear()
        try:
            ours = {engine: store.key(block.description) for engine, block in bandit.items()}
            return ours, program()
        finally:
            store_module.code_version.cache_clear()

    def missing(name):
        raise PackageNotFoundError(name)

    with_one, other, without = keys(lambda _: "2.1"), keys(lambda _: "2.2"), keys(missing)
    for engine in bandit:
        text = {each[0][engine] for each in (with_one, other, without)}
        assert len(text) == (3 if engine == "autograd" else 1), engine
    # Workers are told apart by it: a block of torch may come to any of them.
    assert "torch 2.1" in with_one[1]
    assert "torch" not in without[1]


def test_every_file_that_is_loaded_to_measure_is_in_the_key():
    last = ["autograd"] if find_spec("torch") else []
    code = f"""
import sys
import simulations.engines
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.problems import random_problem
cell = GradientCell(random_problem(0), 2)
for engine in {["exact", "reference", "cpu", *last]}:
    cell.measure(engine, (SquaredError(Estimator("grpo")),), replications=4)
rooms = "ustat_pg.", "simulations.engines"
print(*(m.__file__ for name, m in sys.modules.items() if name.startswith(rooms)))
"""
    loaded = {Path(word) for word in python(code).stdout.split()}
    wanted = {*(f"{engine}.py" for engine in last), "lanes.py", "shaped.py"}
    assert {file.name for file in loaded} >= wanted
    # A package of modules alone has a docstring, and nothing that could change a number.
    code_of = {file for file in loaded if len(ast.parse(file.read_bytes()).body) > 1}
    assert code_of <= set(store_module.makers())
