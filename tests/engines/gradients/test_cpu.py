"""The body for one prompt against the reference: the same draws, the same numbers."""

import numpy as np
import pytest

from tests.support import laws
from ustat_pg.engines import (
    Distance,
    Estimator,
    GradientCell,
    Projection,
    SquaredError,
)
from ustat_pg.engines.gradients import cpu, scalar
from ustat_pg.problems import KINDS, SoftmaxBandit, random_problem
from ustat_pg.sampling import rng

FAR = 2**32 - 40  # the words of a replication's number carry inside a block


def compare(cell, replications=200, first=FAR):
    quantities = laws.plain_quantities(cell.group_size)
    assert cpu.takes_one_prompt(cell, quantities)
    where = {"first": first, "replications": replications}
    laws.same_numbers(laws.SUBJECTS["cpu"], cell, quantities, **where)


def one_prompt(arms, seed=0, rewards=None):
    """A reward per arm: no two outcomes have the same arm."""
    numbers = np.random.default_rng(seed)
    values = numbers.normal(size=arms) if rewards is None else rewards
    return SoftmaxBandit.tabular(
        [1.0],
        numbers.normal(size=(1, arms)),
        np.reshape(values, (1, arms, 1)),
        np.ones((1, arms, 1)),
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 64])
@pytest.mark.parametrize("arms", [1, 2, 3, 4, 5, 19, 20, 21, 40, 200])
def test_the_same_numbers_whichever_way_outcomes_are_counted(arms, size):
    """Compared with all thresholds, searched into a table of counts, or searched sparsely."""
    problem = one_prompt(arms)
    assert cpu.problem_tables(problem).distinct
    compare(GradientCell(problem, size))


@pytest.mark.parametrize("replications", [1, 2, 63, 64, 65, 128, 300])
@pytest.mark.parametrize("arms", [5, 40, 200])
def test_the_same_numbers_in_blocks_of_any_length(arms, replications):
    compare(GradientCell(one_prompt(arms), 24), replications)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "linear"])
@pytest.mark.parametrize("contexts", [1, 3])
def test_the_same_numbers_on_every_kind(kind, contexts):
    """Several rewards an arm, several prompts, shared features, degenerate laws."""
    problem = random_problem(1, kind, contexts=contexts)
    for size in (1, 2, 5, 16):
        for cell in (GradientCell(problem, size), *designs(problem, size)):
            compare(cell)


def designs(problem, size):
    """The cells of the other designs."""
    even = problem.restrict(range(problem.contexts), uniform=True)
    yield GradientCell(even, size, 1, "without-replacement")
    if problem.contexts == 1:
        yield GradientCell(even, size, 1, "fixed")


@pytest.mark.parametrize("arms", [5, 40, 200])
def test_the_same_numbers_in_degenerate_problems(arms):
    """All rewards equal; one arm certain; one arm nearly so; outcomes of probability zero."""
    for size in (1, 2, 24):
        compare(GradientCell(one_prompt(arms, rewards=np.full(arms, 0.7)), size))
        for gap in (-800.0, -40.0, -16.0):
            for sure in (0, arms // 2, arms - 1):
                logits = np.full((1, arms), gap)
                logits[0, sure] = 0.0
                rewards = np.arange(arms) / arms
                problem = SoftmaxBandit.tabular(
                    [1.0], logits, rewards[None, :, None], np.ones((1, arms, 1))
                )
                compare(GradientCell(problem, size))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "binary"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_deviation_of_any_rewards_matches_the_reference_engine(kind, batch_size):
    std, grpo = Estimator("std"), Estimator("grpo")
    asked = [SquaredError(std), SquaredError(grpo), Distance(std, grpo), Projection(std, 1)]
    for problem in (random_problem(1, kind), random_problem(2, kind, contexts=1)):
        if problem.binary:
            continue
        for size in (2, 7):
            cell = GradientCell(problem, size, batch_size)
            assert not cpu.takes_one_prompt(cell, asked[:3])
            result, plain = (
                cell.measure(name, asked, replications=300) for name in ("cpu", "reference")
            )
            np.testing.assert_allclose(result.mean, plain.mean, rtol=1e-9, atol=1e-12)


SEARCHED = {
    "few outcomes": np.full(5, 0.2),
    "many thresholds to a cell": np.append(np.full(20, 1e-6), 1 - 20e-6),
    "more outcomes than cells": np.full(5000, 1 / 5000),
    "probabilities of zero": np.array([0.0, 0.3, 0.0, 1e-9, 0.7 - 1e-9, 0.0]),
}


@pytest.mark.parametrize("probs", SEARCHED.values(), ids=SEARCHED)
def test_a_word_on_an_edge_belongs_to_the_outcome_above(probs):
    """No draw of a test will ever meet an edge: the search is handed the words."""
    count = len(probs)
    problem = SoftmaxBandit.tabular(
        probs, np.zeros((count, 1)), np.zeros((count, 1, 1)), np.ones((count, 1, 1))
    )
    search = cpu.problem_tables(problem).contexts
    edges = rng.thresholds(problem.context_probs)
    for word in sorted({0, 2**32 - 1} | {int(e) + d for e in edges for d in (-1, 0, 1)}):
        if 0 <= word < 2**32:
            result = scalar.pick(word, search.ends, search.guide, search.cells, search.shift)
            assert result == np.searchsorted(edges, word, side="right")
