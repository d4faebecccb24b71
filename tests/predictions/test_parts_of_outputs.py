"""What single outputs and outputs together do to the error, against enumeration in fractions: every
estimator of the registry, with its closed form where it has one, and by enumeration.
"""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from tests.support import independent as ind
from tests.support.independent_tables import (
    CORNERS,
    DEFINED,
    EVEN,
    LEAST,
    UNEQUAL,
    Table,
    subtracted,
)
from tests.support.problems import library_problem
from ustat_pg.engines import enumerate_mean, enumerate_mse
from ustat_pg.predictions import best_table, gradient_mse
from ustat_pg.registry import ESTIMATORS, record_of

#: Rewards that repeat across outputs, prompts of unequal weight.
GRADED = ind.tabular(
    "graded",
    "2/3 1/3",
    ["1/4 1/2 1/4", "3/5 1/5 1/5"],
    ["1 1/2:1/3,0:2/3 1/2", "0 1:1/4,1/2:3/4 1"],
)
SHRUNK = "shrunk-norm-weighted:0.5,0.25"


def shrunk_norm_weighted(m, z, w):
    prior, mean = Fraction(1, 2), Fraction(1, 4)
    return (prior * mean + (w * z).sum() - w * z) / (prior + w.sum() - w)


def left_out(values):
    """The baseline by the number of successes among the others."""
    return lambda m, z, w: np.array([values[int(z.sum() - own)] for own in z])


#: What a name subtracts, for any rewards.
SUBTRACTED = {
    **{name: what for name, what in ind.BASELINES.items() if isinstance(name, str)},
    "constant": ind.BASELINES[ind.CONSTANT],
    "critic": lambda m, z, w: m.value + Fraction(1, 3),
    SHRUNK: shrunk_norm_weighted,
    **{name: subtracted(what) for name, what in DEFINED.items() if name not in ind.BASELINES},
}


def by_count(problem, size):
    """Names that are tables of a group of this size, and what they subtract."""
    values = [Fraction((3 * k * k + k + 2) % 7, 5) for k in range(2 * size)]
    loo, (won, lost) = values[:size], (values[:size], values[size:])
    best = best_table(library_problem(problem).moments(), size).baseline
    table = Table((Fraction(0), *won), (*lost, Fraction(0)))
    return {
        "loo-table:" + ",".join(str(float(v)) for v in loo): left_out(loo),
        "count-table:" + ",".join(str(float(v)) for v in values): subtracted(table.advantages),
        "best": left_out([Fraction(float(b)) for b in best]),
    }


def cases():
    for problem, size in product((UNEQUAL, CORNERS, GRADED, ind.ZERO_SCORE), (1, 2, 4)):
        binary = problem in (UNEQUAL, CORNERS)
        for name, what in {**SUBTRACTED, **(by_count(problem, size) if binary else {})}.items():
            if size >= max(record_of(name).least_group, LEAST.get(name, 1)):
                yield problem, size, name, what


CASES = list(cases())
TERMS = ("mse", "prompt_term", "squared_bias", "noise_to_signal", "cosine", "mean_factor")
TERMS += ("first_order_term", "second_order_term")


def test_every_estimator_is_tested():
    # tests/predictions/test_reward_memory.py enumerates those with earlier rewards.
    now = {name for name, record in ESTIMATORS.items() if "earlier" not in record.needs}
    assert {record_of(name).name for _, _, name, _ in CASES} == now


def assert_parts(prediction, problem, what, size, batch):
    first, second = ind.outputs_parts(problem, what, size, batch)
    near = {"rel": 1e-11, "abs": 1e-13 * prediction.mse}
    assert prediction.first_order_term == pytest.approx(float(first), **near)
    assert prediction.second_order_term == pytest.approx(float(second), **near)
    parts = prediction.prompt_term + prediction.first_order_term + prediction.second_order_term
    assert prediction.mse == pytest.approx(parts + prediction.squared_bias, rel=1e-12, abs=1e-30)


def assert_alike(found, closed):
    """None, where nothing is climbed, is NaN here."""
    for term in TERMS:
        one, other = (np.array(getattr(each, term), dtype=float) for each in (found, closed))
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12, err_msg=term)


@pytest.mark.parametrize(
    ("problem", "size", "name", "what"), CASES, ids=[f"{c[0].name} {c[1]} {c[2]}" for c in CASES]
)
def test_the_parts_are_hoeffdings(problem, size, name, what):
    record, library = record_of(name), library_problem(problem)
    more = {"constant": {"constant": float(ind.CONSTANT)}}
    values = [float(ind.moments(problem, x).value + Fraction(1, 3)) for x in problem.contexts]
    more["critic"] = {"critic": values}
    binary, closed = problem in (UNEQUAL, CORNERS), None
    if record.closed_form or (record.by_count and binary):
        closed = gradient_mse(library, name, size, 2, **more.get(record.name, {}))
        assert_parts(closed, problem, what, size, 2)
    if record.name not in more:
        asked = best_table(library, size).estimator if name == "best" else name
        found = enumerate_mse(library, asked, size, 2)
        assert_parts(found, problem, what, size, 2)
        np.testing.assert_allclose(
            found.mean, enumerate_mean(library, asked, size, 2), rtol=1e-12, atol=1e-15
        )
        # Prompts that are never or always solved have no gradient, and no factor on it.
        if closed is not None and problem is not CORNERS:
            assert_alike(found, closed)


@pytest.mark.parametrize(("design", "batch"), [("without-replacement", 2), ("fixed", 3)])
@pytest.mark.parametrize("name", ["std", "bayes:1,1", "grpo", "norm-weighted"])
def test_the_parts_are_the_same_however_prompts_are_drawn(design, batch, name):
    library, size = library_problem(EVEN), 2
    found = enumerate_mse(library, name, size, batch, design)
    assert_parts(found, EVEN, SUBTRACTED[name], size, batch)
    if name != "norm-weighted":
        assert_alike(found, gradient_mse(library, name, size, batch, design))


@pytest.mark.parametrize("size", [3, 50, 2000])
@pytest.mark.parametrize("name", ["vanilla", "grpo"])
def test_a_table_has_the_parts_of_the_closed_form(name, size):
    """Rounding does not grow with the group."""
    library = library_problem(UNEQUAL).moments()
    others = np.arange(size) / (size - 1) * (name == "grpo")
    table = "count-table:" + ",".join(map(repr, [*(1 - others).tolist(), *(-others).tolist()]))
    found, closed = gradient_mse(library, table, size), gradient_mse(library, name, size)
    assert found.first_order_term == pytest.approx(closed.first_order_term, rel=1e-12)
    assert found.second_order_term == pytest.approx(closed.second_order_term, rel=1e-8)
