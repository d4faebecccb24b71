"""Lanes that a short block leaves empty: what memory holds there moves no number, and no read goes astray.

Without the compiler, whose reads past an array's end go unseen, and with memory that holds NaN wherever an
engine asks for some.
"""

import os

from tests.support.commands import python

POISONED = """
import numpy as np
from ustat_pg.engines import aligned

def poisoned(numbers):
    return np.full(numbers, np.nan)

aligned.empty_lines = poisoned

from simulations.engines import Gap, Training
from simulations.shared.runs import ball
from tests.support.claims import LANDSCAPE, SCHEDULE
from tests.support.estimators import tables_of
from ustat_pg.engines import Estimator, GradientCell, SquaredError
from ustat_pg.problems import random_problem

for contexts in (1, 60):
    problem = random_problem(1, "binary", contexts=contexts)
    for estimators in (tables_of(3), [Estimator("grpo"), Estimator("oracle")]):
        asked = [SquaredError(e) for e in estimators]
        for batch in (1, 2):
            cell = GradientCell(problem, 3, batch)
            cpu, plain = (
                cell.measure(e, asked, seed=1, replications=3) for e in ("cpu", "reference")
            )
            np.testing.assert_allclose(cpu.mean, plain.mean, rtol=1e-10)
runs = Training(LANDSCAPE, 2, 3, schedule=SCHEDULE, projection=ball(LANDSCAPE, 1.0))
asked = [Gap(Estimator(name), 3) for name in ("grpo", "oracle")]
cpu, plain = (runs.measure(e, asked, seed=1, replications=3) for e in ("cpu", "reference"))
np.testing.assert_allclose(cpu.mean, plain.mean, rtol=1e-10)
"""


def test_what_memory_holds_in_them_moves_no_number(monkeypatch):
    monkeypatch.setitem(os.environ, "NUMBA_DISABLE_JIT", "1")
    done = python(POISONED)
    assert done.returncode == 0, done.stderr[-2000:]
