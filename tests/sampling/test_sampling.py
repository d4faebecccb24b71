"""Plans of sampling: what their words mean, and what is refused.

Their paths are enumerated in ``tests/test_independent_plans.py``.
"""

from fractions import Fraction
from functools import partial
from itertools import product

import numpy as np
import pytest

from tests.support.refusals import refusals
from ustat_pg.predictions import plan_weight
from ustat_pg.sampling.plans import SCHEMES, Plan


def test_words_that_mean_the_same():
    assert Plan.parse("4+4+8 if mixed").looks == Plan.parse("4,8,16 if mixed").looks == (4, 8, 16)
    assert Plan.parse(8) == Plan.parse("8")
    assert Plan.parse("8, retry silent").expected_size(0.5) > 8
    assert Plan.parse("dapo").text == SCHEMES["dapo"].plan


EVENTS = {
    "mixed": {(4, 1), (4, 2), (4, 3), *((8, k) for k in range(1, 8))},
    "silent": {(4, 0), (4, 4), (8, 0), (8, 8)},
    "solved": {(4, 4), (8, 8)},
    "unsolved": {(4, 0), (8, 0)},
    "early": {(4, k) for k in range(5)},
    "0.25..0.5": {(4, 1), (4, 2), (8, 2), (8, 3), (8, 4)},
    "0.125..0.9": {(4, 1), (4, 2), (4, 3), *((8, k) for k in range(1, 8))},
}
"""Where events hold, by outputs and successes, under looks at 4 and 8: both ends of a share belong to it."""


@pytest.mark.parametrize("chance", ["", " 0.3", " 1"])
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_holds_where_it_says(event, chance):
    by = Fraction(chance.strip() or 1)
    plan = Plan.parse(f"4+4 if {event}{chance}")
    assert plan.go_on == (tuple(by * ((4, k) in EVENTS[event]) for k in range(5)),)
    assert plan.otherwise == "nothing"
    for fate, otherwise in (("drop", "nothing"), ("retry", "prompt"), ("refill", "batch")):
        plan = Plan.parse(f"4,8 if mixed, {fate} {event}{chance}")
        used = [[1 - by * ((n, k) in EVENTS[event]) for k in range(n + 1)] for n in (4, 8)]
        # All-failed or all-solved pilots draw nothing more: at 8 none is silent.
        used[1][0] = used[1][8] = 0
        assert plan.kept == tuple(map(tuple, used))
        assert plan.otherwise == otherwise


@pytest.mark.parametrize(
    ("until", "stops"),
    [
        ("2 successes", lambda n, k: k >= 2),
        ("1 failure", lambda n, k: n - k >= 1),
        ("2 successes and 1 failure", lambda n, k: k >= 2 and n - k >= 1),
    ],
)
def test_until_draws_on_until_there_are_as_many(until, stops):
    plan = Plan.parse(f"2..5 until {until}")
    assert plan.looks == (2, 3, 4, 5)
    reached = {0, 1, 2}
    for n, chances in zip(plan.looks, plan.go_on, strict=False):
        assert chances == tuple(int(k in reached and not stops(n, k)) for k in range(n + 1))
        going = {k for k in reached if not stops(n, k)}
        reached = going | {k + 1 for k in going}


@pytest.mark.parametrize("words", ["3+2 if mixed", "3+2 if mixed, drop silent", "3, retry silent"])
def test_expected_outputs_and_shares_are_those_of_every_sequence(words):
    """A plan that draws groups of one prompt again counts them; one that refills the batch does not."""
    plan, p = Plan.parse(words), 0.37
    size = used = 0.0
    for rewards in product((0, 1), repeat=5):
        chance = p ** sum(rewards) * (1 - p) ** (5 - sum(rewards))
        first = sum(rewards[:3])
        mixed = 0 < first < 3
        drawn = 5 if mixed and len(plan.looks) == 2 else 3
        size += chance * drawn
        used += chance * (mixed or "silent" not in words)
    assert plan.kept_share(p) == pytest.approx(used, rel=1e-12)
    assert plan.expected_size(p) == pytest.approx(size / (used if "retry" in words else 1))
    refilled = Plan.parse(words.split(",")[0] + ", refill silent")
    assert refilled.expected_size(p) == pytest.approx(size, rel=1e-12)


@pytest.mark.parametrize(
    "other", ["4+4 if silent", "4+5 if mixed", "4+4 if mixed 0.5", "4+4 if mixed, drop silent", "8"]
)
def test_plans_that_differ_are_not_equal(other):
    plan = Plan.parse("4+4 if mixed")
    assert plan != Plan.parse(other)
    assert plan.two_stages
    assert Plan.parse(other).two_stages == (other in ("4+5 if mixed", "4+4 if mixed, drop silent"))
    assert Plan.parse("4+4 if mixed, drop silent").keeping_all == plan
    assert Plan.parse("4+4 if mixed, drop silent 0.01").keeping_all == plan


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
