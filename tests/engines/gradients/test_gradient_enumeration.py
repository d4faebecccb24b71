"""Enumeration against counting by hand, against loops, and tuple by tuple."""

import itertools
import math
import re

import numpy as np
import pytest

from ustat_pg.engines import (
    Distance,
    Estimator,
    GradientCell,
    InfeasibleError,
    Projection,
    SquaredError,
    SquaredProjection,
)
from ustat_pg.engines.base import Replications
from ustat_pg.engines.gradients import exact
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import SoftmaxBandit, random_problem
from ustat_pg.validation import InputError

VANILLA = [SquaredError(Estimator("vanilla"))]
CLOSED = ("vanilla", "grpo", "group-mean", "oracle", "constant", "minimum-variance")
DESIGNS = ("iid", "fixed", "without-replacement")


def estimator(name):
    return Estimator(name, constant=0.3) if name == "constant" else Estimator(name)


def even(kind, seed=0, contexts=2):
    problem = random_problem(seed, kind, contexts=contexts)
    return problem.restrict(range(problem.contexts), uniform=True)


def coins(contexts, outcomes=2):
    """Equally likely contexts with so many outcomes each."""
    rewards = np.zeros((contexts, outcomes, 1))
    return SoftmaxBandit.tabular(
        np.full(contexts, 1 / contexts), np.zeros((contexts, outcomes)), rewards, rewards + 1
    )


def batch_of(design, problem):
    return problem.contexts if design == "fixed" else min(2, problem.contexts)


def test_one_cell_by_loops():
    """Every tuple of one prompt's group, in plain Python, with dense scores."""
    problem = random_problem(2, "one-context")
    scores, outcomes = problem.policy.scores(0), problem.outcomes
    atoms = range(outcomes.counts[0])
    size, mse, distance = 3, 0.0, 0.0
    for group in itertools.product(atoms, repeat=size):
        chance = math.prod(outcomes.probs[0, i] for i in group)
        z = [outcomes.rewards[0, i] for i in group]
        s = [scores[outcomes.arms[0, i]] for i in group]
        loo, weighted = np.zeros(problem.d), np.zeros(problem.d)
        for i in range(size):
            rest = [j for j in range(size) if j != i]
            loo += s[i] * (z[i] - sum(z[j] for j in rest) / (size - 1)) / size
            mass = [s[j] @ s[j] for j in rest]
            ours = sum(m * z[j] for m, j in zip(mass, rest, strict=True)) / sum(mass)
            weighted += s[i] * (z[i] - ours) / size
        mse += chance * float(((loo - problem.gradient()) ** 2).sum())
        distance += chance * float(((loo - weighted) ** 2).sum())
    grpo, norm = Estimator("grpo"), Estimator("norm-weighted")
    quantities = [SquaredError(grpo), Distance(grpo, norm)]
    result = GradientCell(problem, size).measure("exact", quantities).mean
    assert result == pytest.approx([mse, distance], rel=1e-11)


def test_a_first_output_without_a_score_hides_no_other():
    """It lies in the middle of the others."""
    rng = np.random.default_rng(4)
    features = rng.normal(size=(2, 3, 4))
    features[:, 0], features[:, 2] = 0.0, -features[:, 1]
    chances, rewards = np.log([[0.5, 0.25, 0.25]] * 2), rng.normal(size=(2, 3, 1))
    problem = SoftmaxBandit.linear(
        [0.3, 0.7], features, np.zeros(4), rewards, np.ones((2, 3, 1)), chances
    )
    assert not problem.policy.scores(0)[0].any()
    for name in ("grpo", "oracle"):
        cell, asked = GradientCell(problem, 3, 2), [SquaredError(Estimator(name))]
        wanted = gradient_mse(problem.moments(), name, 3, 2).mse
        assert cell.measure("exact", asked).mean[0] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("kind", ["uniform-contexts", "linear", "two-arms"])
def test_tuples_and_counts_find_the_same(kind, design):
    problem = even(kind)
    cell = GradientCell(problem, 2, batch_of(design, problem), design)
    grpo, norm = Estimator("grpo"), Estimator("norm-weighted")
    quantities = [
        *(SquaredError(estimator(name)) for name in (*CLOSED, "norm-weighted")),
        Distance(grpo, norm),
        Projection(norm),
        SquaredProjection(grpo, 1),
    ]
    counts = cell.measure("exact", quantities).mean
    tuples = exact.measure(cell, quantities, Replications(), tuples=True).mean
    assert np.allclose(counts, tuples, rtol=1e-11, atol=1e-16)


@pytest.mark.parametrize("tuples", [False, True])
@pytest.mark.parametrize("design", DESIGNS)
def test_the_size_is_the_number_of_outcomes(design, tuples):
    # Contexts with 1, 2 and 3 outcomes.
    problem = SoftmaxBandit.tabular(
        np.full(3, 1 / 3),
        [[0.0, -1e4], [0.0, 0.0], [0.0, 0.0]],
        [[[1.0, 1.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]],
        [[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [1.0, 0.0]]],
    )
    assert problem.outcomes.counts.tolist() == [1, 2, 3]
    size = 3
    groups = []
    for count in (1, 2, 3):
        every = list(itertools.product(range(count), repeat=size))
        groups.append(len(every) if tuples else len({tuple(sorted(group)) for group in every}))
    for batch in (3,) if design == "fixed" else (1, 2, 3):
        chosen = {
            "iid": itertools.product(range(3), repeat=batch),
            "fixed": [tuple(range(3))],
            "without-replacement": itertools.permutations(range(3), batch),
        }[design]
        ordered = [tuple(prompts) for prompts in chosen]
        visited = ordered if tuples else {tuple(sorted(prompts)) for prompts in ordered}
        sizes = [
            sum(math.prod(groups[x] for x in prompts) for prompts in choices)
            for choices in (ordered, visited)
        ]
        cell = GradientCell(problem, size, batch, design)
        chunks = list(exact.minibatches(cell, tuples=tuples))
        assert [exact.size(cell, tuples=tuples), sum(len(p) for _, p in chunks)] == sizes
        assert sum(probability.sum() for _, probability in chunks) == pytest.approx(1, abs=1e-13)
        assert all((probability > 0).all() for _, probability in chunks)


@pytest.mark.parametrize("outcomes", [1, 64, 65])
def test_chunks_of_any_length_give_the_same_sums(outcomes, monkeypatch):
    """All in one, and one that is left over."""
    monkeypatch.setattr(exact, "_CHUNK_BYTES", 1)
    rewards = np.linspace(0.2, 1.0, outcomes)[None, :, None]
    arms = SoftmaxBandit.tabular([1.0], np.zeros((1, outcomes)), rewards, rewards / rewards)
    wanted = gradient_mse(arms.moments(), "vanilla", 1).mse
    assert GradientCell(arms, 1).measure("exact", VANILLA).mean == pytest.approx(
        [wanted], rel=1e-12
    )


def test_infeasible_enumerations_are_refused_with_their_size():
    cell = GradientCell(coins(100), 4, 4)
    assert exact.size(cell) == 500**4
    for refusal in (
        lambda: cell.require_exact(VANILLA),
        lambda: next(exact.minibatches(cell)),
        lambda: cell.measure("exact", [SquaredError(Estimator("grpo"))]),
    ):
        with pytest.raises(InfeasibleError, match=re.escape("10^10.8 outcomes")):
            refusal()
    assert issubclass(InfeasibleError, InputError)


def test_a_function_that_looks_at_the_order_needs_tuples():
    problem = random_problem(1, "one-context")

    def previous(z, _):
        """The reward before as the baseline, none for the first: unbiased."""
        return z - np.concatenate([np.zeros_like(z[..., :1]), z[..., :-1]], axis=-1)

    quantities = [Projection(Estimator("own", function=previous), j) for j in range(3)]
    cell = GradientCell(problem, 3)
    assert np.abs(exact.measure(cell, quantities, Replications(), tuples=True).mean).max() < 1e-15
    assert np.abs(cell.measure("exact", quantities).mean).max() > 1e-3


def test_memories_of_unequal_length_are_measured_together():
    cell = GradientCell(random_problem(0), 2)
    one, three, grpo = (Estimator(name) for name in ("memory:1", "memory:3", "grpo"))
    alone = [cell.measure("exact", [SquaredError(e)]).mean[0] for e in (one, three, grpo)]
    together = cell.measure("exact", [SquaredError(e) for e in (one, three, grpo)]).mean
    assert together == pytest.approx(alone, rel=1e-12)
    apart = cell.measure("exact", [Distance(one, three)]).mean[0]
    drawn = cell.measure("reference", [Distance(one, three)], replications=20_000)
    assert abs(drawn.mean[0] - apart) < 5 * drawn.standard_error[0]
