"""Blocks: their keys, devices, threads, pilots and budgets, and what makes them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from simulations.engines import GapAfterStep, OneStep
from simulations.evidence import Options, Store, mean_of
from simulations.evidence import store as store_module
from simulations.evidence.blocks import Block
from simulations.evidence.measurements import Measurements
from simulations.evidence.store import program
from tests.support.commands import python
from ustat_pg import whole_files
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.policies import PrefixSoftmax
from ustat_pg.problems import modular_sum, random_problem

GRPO = Estimator("grpo")

PROBLEM = modular_sum(2, 2, end=True)
POLICY = PrefixSoftmax.random(PROBLEM.space, PROBLEM.contexts, seed=1)


# Devices, threads, engines and pilots.


@pytest.mark.parametrize("engine", ["cpu", "cuda", "reference", "autograd"])
def test_the_device_is_part_of_an_autograd_blocks_key_and_of_no_other(engine):
    asked = GradientCell(random_problem(0), 2), (SquaredError(GRPO),), engine
    one, two = (Block(*asked, device=device).description for device in ("cpu", "cuda"))
    assert (one != two) == (engine == "autograd")
    assert ("device" in one) == (engine == "autograd")


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
    code = """
import sys
import simulations.engines
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.problems import random_problem
cell = GradientCell(random_problem(0), 2)
for engine in ("exact", "reference", "cpu", "autograd"):
    cell.measure(engine, (SquaredError(Estimator("grpo")),), replications=4)
rooms = "ustat_pg.", "simulations.engines"
print(*(m.__file__ for name, m in sys.modules.items() if name.startswith(rooms)))
"""
    loaded = {Path(word) for word in python(code).stdout.split()}
    assert {file.name for file in loaded} >= {"autograd.py", "lanes.py", "shaped.py"}
    assert loaded <= set(store_module.makers())
