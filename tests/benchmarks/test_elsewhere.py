"""Runs by other instructions are compared as they should be, and are by other instructions."""

import sys
from math import inf, nan
from platform import machine

import pytest

from benchmarks import elsewhere
from simulations.evidence import Verdict

CHECK = "mse: skewed G=2: grpo"
HERE = {
    "mse": Verdict.CONFIRMED,
    f"{CHECK}, prediction": (0.25, 1e-12),
    f"{CHECK}, enumerated": (1e-17, 1e-12),
    f"{CHECK}, low end of 'no second-order term'": (-inf, 1e-12),
    "mse: point 3 of mse, grpo, prediction": (nan, nan),
}


def test_last_bits_are_no_difference():
    there = HERE | {
        f"{CHECK}, prediction": [0.25 + 1e-13, 1e-12],
        f"{CHECK}, enumerated": [-3e-14, 1e-12],
        "mse": "CONFIRMED",
    }
    assert elsewhere.differences(HERE, HERE) == elsewhere.differences(HERE, there) == []


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("mse", "INCONCLUSIVE"),
        (f"{CHECK}, prediction", (0.25 + 1e-9, 1e-12)),
        (f"{CHECK}, enumerated", (1e-10, 1e-12)),
        (f"{CHECK}, enumerated", (nan, 1e-12)),
        (f"{CHECK}, low end of 'no second-order term'", (0.0, 1e-12)),
        ("mse: point 3 of mse, grpo, prediction", "None"),
    ],
)
def test_more_is_one(name, other):
    (line,) = elsewhere.differences(HERE, HERE | {name: other})
    assert line.startswith(f"{name}: ")


@pytest.mark.parametrize("name", HERE)
def test_what_is_missing_is_one_on_either_side(name):
    fewer = {other: fact for other, fact in HERE.items() if other != name}
    assert elsewhere.differences(HERE, fewer) == [f"{name}: only here"]
    assert elsewhere.differences(fewer, HERE) == [f"{name}: only there"]


def test_another_order_is_one():
    assert elsewhere.differences(HERE, dict(reversed(HERE.items()))) == ["the order differs"]


TOLD = """
import os, sys
import numpy as np
from llvmlite.binding import get_host_cpu_name
from numba.core.registry import cpu_target
from threadpoolctl import threadpool_info
assert os.environ["OMP_NUM_THREADS"] == os.environ["OPENBLAS_NUM_THREADS"] == "1"
assert not np.show_config(mode="dicts")["SIMD Extensions"].get("found")
assert {pool["architecture"] for pool in threadpool_info()} == {"Nehalem"}
assert cpu_target.target_context.codegen().magic_tuple()[1] == "generic"
sys.exit(7)
"""


@pytest.mark.skipif(machine() != "x86_64", reason="the names are of x86-64")
def test_a_command_runs_by_other_instructions_and_its_answer_is_passed_on():
    assert elsewhere.main(["--by", "plain", sys.executable, "-c", TOLD]) == 7


def test_a_claim_that_is_decided_otherwise_is_said(monkeypatch, capsys):
    """The whole way, on one claim: its facts as they are, with one value a billionth off, and fewer."""
    told, drawn = elsewhere.facts("bandit", ["survivors"])
    assert told["survivors"] == "CONFIRMED"
    number = next(name for name in told if name.endswith(", enumerated"))
    value, within = told[number]
    size = within / elsewhere.LAST
    changed = {number: (value + 1e-9 * size, within), "survivors": "REFUTED"}
    same, moved = (told, drawn), (told, [*drawn[1:], "x"])
    answers = iter([same, same, (told | changed, drawn), moved, same])
    monkeypatch.setattr(elsewhere, "ask", lambda words, variables: next(answers))
    monkeypatch.setattr(elsewhere, "THREADS", 1)
    assert elsewhere.main(["--claim", "survivors"]) == 1
    plain, haswell, *lines, threads, checked = capsys.readouterr().out.splitlines()
    assert plain == f"plain: 0 of {len(told)} facts differ; draws of 0 of {len(drawn)} cells"
    assert haswell.startswith(f"haswell: 2 of {len(told)} facts differ")
    assert {line.strip().partition(": ")[0] for line in lines} == {
        "survivors",
        number.partition(": ")[0],
    }
    assert checked.startswith("checked: 0 of ")
    assert threads.endswith(f"0 of {len(told)} facts differ; draws of 1 of {len(drawn)} cells")
