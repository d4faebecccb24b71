"""The strategies draw and shrink as said; nothing else needs Hypothesis."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ustat_pg import testing


@settings(max_examples=50, derandomize=True, database=None)
@given(st.data())
def test_strategies_draw_what_they_say(data):
    z = data.draw(testing.rewards((2, 5), batch=(2, 3)))
    assert z.shape[:2] == (2, 3)
    assert 2 <= z.shape[2] <= 5
    assert np.array_equal(z * 16, np.round(z * 16))
    assert np.isin(data.draw(testing.rewards(3, values=(0, 1))), (0.0, 1.0)).all()
    s = data.draw(testing.scores(4, parameters=(2, 3), batch=2))
    assert s.shape[:2] == (2, 4)
    assert s.shape[2] in (2, 3)
    problem = data.draw(testing.problems("binary", max_contexts=2))
    assert problem.contexts <= 2
    assert set(np.unique(problem.reward_values)) == {0.0, 1.0}


def test_only_strategies_need_hypothesis_and_nothing_needs_torch():
    code = """
import sys
from ustat_pg import testing
assert not {"hypothesis", "torch"} & set(sys.modules)
sys.modules["hypothesis"] = None
from ustat_pg.estimators import grpo
testing.assert_unbiased(grpo)
testing.assert_finite(grpo)
testing.assert_invariances(grpo, examples=5)
for strategy in (testing.rewards, testing.scores, testing.problems):
    try:
        strategy()
    except ImportError as error:
        assert "pip install 'ustat_pg[testing]'" in str(error), error
    else:
        raise SystemExit("no ImportError")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
