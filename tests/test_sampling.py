"""Plans of sampling: what their words mean, and what is refused.

Their paths are enumerated in ``tests/test_independent_plans.py``.
"""

from functools import partial

import numpy as np
import pytest

from tests.support.refusals import refusals
from ustat_pg.predictions import plan_weight
from ustat_pg.sampling import SCHEMES, Plan


def test_words_that_mean_the_same():
    assert Plan.parse("4+4+8 if mixed").looks == Plan.parse("4,8,16 if mixed").looks == (4, 8, 16)
    assert Plan.parse(8) == Plan.parse("8")
    assert Plan.parse("8, retry silent").expected_size(0.5) > 8
    assert Plan.parse("dapo").text == SCHEMES["dapo"].plan


@pytest.mark.parametrize("name", SCHEMES)
def test_every_published_scheme_can_be_weighed(name):
    scheme = SCHEMES[name]
    assert np.isfinite(plan_weight(scheme.plan, scheme.estimator, [0.0, 0.02, 0.5, 1.0])).all()


test_words_and_tables_that_are_no_plan = refusals(
    *(
        (partial(Plan.parse, words), said)
        for words, said in (
            ("", "at 'its end'"),
            ("3+2", r"at 'its end' \(place 4\)"),
            ("3+2 if", "at 'if'"),
            ("3+2 if lucky", r"at 'if lucky' \(place 5\): plans are written like '8'"),
            ("3+2 if mixed 2", "'mixed 2' has a chance above 1"),
            ("3+2 if 0.8..0.2", "its ends exchanged"),
            ("8 if mixed", "cannot be read"),
            ("4,8 until 2 foos", "at 'until 2 foos'"),
            ("8, ban silent", "at ', ban silent'"),
            ("8 oh", "at 'oh'"),
            ("0", "outputs at a look is 0"),
            ("8,4 if mixed", "must be increasing"),
            ("1..9999 until 1 success", "its table holds 1024"),
            (2.5, "must be a whole number"),
        )
    ),
    (lambda: Plan.of((2, 4), lambda n, k: 1.5), "is 1.5: it must lie in"),
    (lambda: Plan.of((2, 4), lambda n, k: "x"), "is 'x': it must lie in"),
    (lambda: Plan.of(range(1, 1000), lambda n, k: True), "and 300000 states"),
    (lambda: plan_weight("1..4 until 1 success", "sequential", [0.5]), "may stop at one output"),
)
