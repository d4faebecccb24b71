"""The strategies draw and shrink as said; nothing else needs Hypothesis."""

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from tests.support.refusals import refusals
from ustat_pg import testing


@settings(max_examples=50, derandomize=True, database=None)
@given(st.data())
def test_strategies_draw_as_described(data):
    z = data.draw(testing.rewards((2, 5), batch=(2, 3)))
    assert z.shape[:2] == (2, 3)
    assert 2 <= z.shape[2] <= 5
    assert np.array_equal(z * 16, np.round(z * 16))
    plain = data.draw(testing.rewards())
    assert 2 <= len(plain) <= 8
    assert max(np.abs(plain).max(), np.abs(data.draw(testing.scores())).max()) <= 4
    assert data.draw(testing.problems(max_contexts=1)).contexts == 1
    assert np.isin(data.draw(testing.rewards(3, values=(0, 1))), (0.0, 1.0)).all()
    s = data.draw(testing.scores(4, parameters=(2, 3), batch=2))
    assert s.shape[:2] == (2, 4)
    assert s.shape[2] in (2, 3)
    problem = data.draw(testing.problems("binary", max_contexts=2))
    assert problem.contexts <= 2
    assert set(np.unique(problem.reward_values)) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("strategy", "reached"),
    [
        (testing.rewards(), lambda z: z.shape == (2,) and not z.any()),
        (testing.rewards(), lambda z: z.shape == (8,)),
        (testing.rewards(2), lambda z: z.min() == -4),
        (testing.rewards(2), lambda z: z.max() == 4),
        (testing.rewards(2), lambda z: 0 < z[0] < 0.07),
        (testing.rewards(3, batch=1, values=(2.0, 5.0)), lambda z: z.max() == 5 > z.min() == 2),
        (testing.scores(), lambda s: s.shape == (2, 1)),
        (testing.scores(), lambda s: s.shape == (8, 4)),
        (
            testing.scores((2, 2), parameters=(3, 3), batch=(1, 2)),
            lambda s: s.shape == (1, 2, 2, 3),
        ),
        (testing.problems(), lambda problem: problem.contexts == 3),
        (testing.problems(["binary"], max_contexts=1), lambda problem: problem.contexts == 1),
    ],
)
def test_both_ends_are_drawn(strategy, reached):
    options = settings(max_examples=2000, derandomize=True, database=None, phases=[Phase.generate])
    assert reached(find(strategy, reached, settings=options))


test_ends_that_are_refused = refusals(
    (lambda: testing.rewards(1), "group size is 1"),
    (lambda: testing.rewards((3, 2)), r"group size is \(3, 2\)"),
    (lambda: testing.rewards((2, 3, 4)), "it must be a number or"),
    (lambda: testing.rewards(2, batch=0), "batch is 0"),
    (lambda: testing.scores(1), "group size is 1"),
    (lambda: testing.scores(2, parameters=0), "parameters is 0"),
    (lambda: testing.scores(2, batch=(2, 0)), "batch is 0"),
    (lambda: testing.problems([]), "kinds is"),
    (lambda: testing.problems(max_contexts=0), "max_contexts is 0"),
)
