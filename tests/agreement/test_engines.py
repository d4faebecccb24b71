"""The engines against each other: the same integers, the same numbers, the same truth."""

from __future__ import annotations

import numpy as np
import pytest

from ustat_pg import estimators, rng
from ustat_pg.engines import (
    Distance,
    Estimator,
    GradientCell,
    InfeasibleError,
    Projection,
    SquaredError,
    SquaredProjection,
)
from ustat_pg.engines.gradients import cpu, reference
from ustat_pg.engines.gradients import lanes as bodies
from ustat_pg.problems import KINDS, SoftmaxBandit, digits_problem, random_problem
from ustat_pg.validation import InputError

FAR = 2**40 + 3
FORMS = {"tabular": "plain", "linear": "linear", "shared": "shared-linear"}
DESIGNS = ("iid", "fixed", "without-replacement")
SAMPLING = ("reference", "cpu")
"""The engines that draw; each must draw the same outcomes as the first."""
LEAVE_ONE_OUT = ("grpo", "norm-weighted")

ESTIMATORS = [
    Estimator("vanilla"),
    Estimator("group-mean"),
    Estimator("oracle"),
    Estimator("constant", constant=0.3),
    Estimator("constant", constant=-1.5),
    Estimator("minimum-variance"),
    Estimator("grpo"),
    Estimator("norm-weighted"),
]


def quantities_for(size):
    """Every quantity of every estimator that a group of that size allows."""
    usable = [e for e in ESTIMATORS if size > 1 or e.baseline not in LEAVE_ONE_OUT]
    last = usable[-1]
    return [
        *(SquaredError(e) for e in usable),
        *(Distance(e, last) for e in usable[:-1]),
        *(Projection(e, 1) for e in usable),
        *(SquaredProjection(e, 2) for e in usable),
    ]


def powers(quantities):
    """How each quantity scales with a gradient: 1 for projections, 2 for squares."""
    return np.array([1 if isinstance(q, Projection) else 2 for q in quantities])


def scale_of(problem):
    """The greatest gradient one output can make; 1 where no score moves."""
    norms = np.sqrt(problem.policy.squared_norms.max())
    return float(norms * max(np.abs(problem.outcomes.rewards).max(), 1.5)) or 1.0


def cells(problem, sizes, batches):
    """All cells of those sizes that the designs allow; fixed brings its own batch size."""
    even = problem.restrict(range(problem.contexts), uniform=True)
    for size in sizes:
        for batch in batches:
            yield GradientCell(problem, size, batch)
            if batch <= problem.contexts:
                yield GradientCell(even, size, batch, "without-replacement")
            if batch == problem.contexts:
                yield GradientCell(even, size, batch, "fixed")


@pytest.mark.parametrize("first", [0, FAR])
@pytest.mark.parametrize("form", FORMS)
def test_the_same_integers(form, first):
    designs = set()
    for contexts in (1, 2, 3, 4, 5):
        problem = random_problem(contexts, FORMS[form], contexts=contexts)
        for cell in cells(problem, range(1, 10), range(1, 6)):
            designs.add(cell.design)
            plain = reference.draw(cell, seed=7, first=first, replications=23)
            where, chosen = cpu.draw(cell, seed=7, first=first, replications=23)
            outcomes = cell.problem.outcomes
            assert np.array_equal(plain.contexts, where)
            assert chosen.shape == (23, cell.batch_size, cell.group_size)
            # Outcomes are distinct pairs, so arm and reward name them.
            assert np.array_equal(plain.arms, outcomes.arms[where[..., None], chosen])
            assert np.array_equal(plain.rewards, outcomes.rewards[where[..., None], chosen])
    assert designs == set(DESIGNS)


def test_the_same_integers_on_real_data():
    """1,797 contexts: a guide table with fewer places than contexts."""
    cell = GradientCell(digits_problem(), 6, 5)
    plain = reference.draw(cell, seed=1, first=FAR, replications=400)
    where, chosen = cpu.draw(cell, seed=1, first=FAR, replications=400)
    assert np.array_equal(plain.contexts, where)
    assert np.array_equal(plain.arms, cell.problem.outcomes.arms[where[..., None], chosen])
    cell = GradientCell(digits_problem(), 2, 40, "without-replacement")
    plain = reference.draw(cell, seed=1, first=3, replications=50)
    where, _ = cpu.draw(cell, seed=1, first=3, replications=50)
    assert np.array_equal(plain.contexts, where)


def test_laws_with_corners_give_the_same_integers():
    """Outcomes of probability zero, nearly zero, and rows of unequal length."""
    problem = SoftmaxBandit.tabular(
        [0.0, 0.5, 0.0, 0.5 - 1e-12, 1e-12, 0.0],
        np.tile([0.0, -40.0, 25.0], (6, 1)) * np.arange(6)[:, None],
        np.tile([[1.0, 0.0, 2.0]], (6, 3, 1)),
        np.tile([[0.0, 1e-11, 1 - 1e-11], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], (6, 1, 1)),
    )
    cell = GradientCell(problem, 9, 4)
    plain = reference.draw(cell, seed=2, first=0, replications=500)
    where, chosen = cpu.draw(cell, seed=2, first=0, replications=500)
    assert set(np.unique(where)) <= {1, 3, 4}
    assert np.array_equal(plain.contexts, where)
    assert np.array_equal(plain.arms, problem.outcomes.arms[where[..., None], chosen])
    assert np.array_equal(plain.rewards, problem.outcomes.rewards[where[..., None], chosen])


def test_a_word_on_an_edge_belongs_to_the_outcome_above(monkeypatch):
    """No draw of a test will ever meet an edge: both engines are handed the words."""
    problem = random_problem(4, "uniform-contexts", contexts=5)
    search = cpu._tables(problem).contexts
    edges = [int(end) for end in rng.thresholds(problem.context_probs)]
    words = sorted({0, 2**32 - 1} | {e + d for e in edges[:-1] for d in (-1, 0, 1)})
    expected = [sum(end <= word for end in edges) for word in words]
    assert len(set(expected)) == 5
    for word, x in zip(words, expected, strict=True):
        assert bodies._pick(np.uint64(word), search.ends, search.guide, search.shift) == x

    def handed(key, replications, slots, count):
        shape = np.broadcast_shapes(np.shape(replications), np.shape(slots))
        return np.broadcast_to(np.array(words, np.uint32)[:count], (*shape, count))

    monkeypatch.setattr(rng, "words", handed)
    found = reference.draw(GradientCell(problem, 1, len(words)), seed=0, first=0, replications=2)
    assert found.contexts.tolist() == [expected] * 2
    outcomes = problem.outcomes
    ends = rng.thresholds(outcomes.probs)
    words[:] = sorted({int(e) for e in ends.ravel() if e < 2**32})
    found = reference.draw(
        GradientCell(problem, len(words), 5, "fixed"), seed=0, first=0, replications=1
    )
    for x in range(5):
        chosen = [sum(int(end) <= word for end in ends[x]) for word in words]
        assert found.arms[0, x].tolist() == outcomes.arms[x, chosen].tolist()
        assert found.rewards[0, x].tolist() == outcomes.rewards[x, chosen].tolist()


def compare(cell, replications, tolerance=1e-12, first=FAR, seed=3):
    quantities = quantities_for(cell.group_size)
    plain, *others = (
        cell.measure(name, quantities, seed=seed, first=first, replications=replications)
        for name in SAMPLING
    )
    scale = scale_of(cell.problem) ** powers(quantities)
    for name, found in zip(SAMPLING[1:], others, strict=True):
        assert plain.n == found.n == replications
        off = np.abs(plain.mean - found.mean) / scale
        assert off.max() < tolerance, (name, cell.name, quantities[off.argmax()].label, off.max())
        off = np.abs(plain.products - found.products) / np.outer(scale, scale) / replications
        assert off.max() < tolerance, (name, cell.name, off.max())
        assert np.array_equal(found.products, found.products.T)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_numbers_in_every_size_and_design(form):
    for cell in cells(random_problem(1, FORMS[form], contexts=3), range(1, 10), range(1, 6)):
        compare(cell, 30)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_numbers_on_every_kind(kind):
    for seed in range(3):
        for cell in cells(random_problem(seed, kind), (1, 2, 5), (1, 3)):
            compare(cell, 150)


def test_the_same_numbers_on_real_data():
    part = digits_problem().restrict(range(0, 1797, 60), uniform=True)
    compare(GradientCell(part, 4, 3), 60)
    compare(GradientCell(part, 3, 5, "without-replacement"), 60)


def test_the_same_numbers_where_scores_vanish():
    """All norms zero, all but one arm's zero, and one arm nearly sure: 0/0 and what is near it."""
    rewards, law = [[[1.0], [0.4], [0.7]]], np.ones((1, 3, 1))
    for problem in (
        SoftmaxBandit.linear([1.0], np.zeros((1, 3, 2)), [1.0, 1.0], rewards, law),
        SoftmaxBandit.tabular([1.0], [[0.0, -800.0, -800.0]], rewards, law),
        SoftmaxBandit.tabular([1.0], [[40.0, 0.0, 0.0]], rewards, law),
        SoftmaxBandit.tabular([1.0], [[16.0, 0.0, 0.5]], rewards, law),
    ):
        for batch in (1, 2):
            compare(GradientCell(problem, 4, batch), 200)


@pytest.mark.parametrize("gap", [3.0, 5.0, 6.8, 7.8, 9.0])
def test_one_replication_keeps_its_digits_where_a_norm_dwarfs_the_others(gap):
    """One rare arm in a group: the others' weight is what is left of a sum it dominates."""
    problem = SoftmaxBandit.tabular(
        [1.0], [[gap, 0.0, 0.3]], [[[0.9], [0.37], [0.61]]], np.ones((1, 3, 1))
    )
    cell = GradientCell(problem, 3)
    draws = reference.draw(cell, seed=0, first=0, replications=20_000)
    rare = np.flatnonzero((draws.arms[:, 0] > 0).sum(axis=1) == 1)[:20]
    assert len(rare) > 5
    for number in rare.tolist():
        compare(cell, 1, first=number, seed=0)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_same_numbers_under_a_large_offset(batch):
    """Rewards near 2^30 that are exact: what subtracts them must not lose what is left."""
    near = random_problem(2, "plain")
    rewards = np.round(near.reward_values * 1024) / 1024 + 2.0**30
    problem = SoftmaxBandit.tabular(
        near.context_probs, near.policy.logits, rewards, near.reward_probs
    )
    names = ("grpo", "group-mean", "oracle", "norm-weighted", "minimum-variance")
    quantities = [SquaredError(Estimator(name)) for name in names]
    quantities += [Distance(Estimator("grpo"), Estimator("oracle"))]
    cell = GradientCell(problem, 4, batch)
    plain, *others = (cell.measure(name, quantities, replications=50).mean for name in SAMPLING)
    small = [0, 1, 2, 5]
    assert plain[0] < 10
    for found in others:
        assert found[small] == pytest.approx(plain[small], rel=1e-5)
        assert found == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("kind", ["plain", "linear", "shared-linear"])
def test_blocks_merged_are_one_block(kind):
    cell = GradientCell(random_problem(0, kind), 4, 2)
    quantities = quantities_for(4)
    scale = scale_of(cell.problem) ** powers(quantities)
    for name in SAMPLING:
        whole = cell.measure(name, quantities, seed=1, first=FAR, replications=300)
        merged = None
        for start, stop in ((0, 1), (1, 120), (120, 299), (299, 300)):
            part = cell.measure(
                name, quantities, seed=1, first=FAR + start, replications=stop - start
            )
            merged = part if merged is None else merged.merge(part)
        assert merged.n == whole.n == 300
        assert (np.abs(merged.mean - whole.mean) / scale).max() < 1e-13
        off = np.abs(merged.products - whole.products) / np.outer(scale, scale)
        assert off.max() < 300 * 1e-13


def test_the_order_of_quantities_does_not_matter():
    cell = GradientCell(random_problem(0), 4, 2)
    quantities = quantities_for(4)
    order = np.random.default_rng(0).permutation(len(quantities))
    for name in SAMPLING:
        straight = cell.measure(name, quantities, replications=50)
        mixed = cell.measure(name, [quantities[i] for i in order], replications=50)
        assert np.allclose(mixed.mean, straight.mean[order], rtol=1e-12, atol=1e-15)
        assert np.allclose(
            mixed.products, straight.products[np.ix_(order, order)], rtol=1e-10, atol=1e-14
        )
        for i in (0, 7, 15, 30):
            alone = cell.measure(name, [quantities[i]], replications=50)
            assert alone.mean[0] == pytest.approx(straight.mean[i], rel=1e-12, abs=1e-15)


def test_the_cpu_engine_takes_no_new_baseline_for_another(monkeypatch):
    """One that the body does not know would be computed as no baseline at all."""
    monkeypatch.setitem(estimators.BASELINES, "median", estimators.group_mean)
    cell = GradientCell(random_problem(0), 3)
    quantity = SquaredError(Estimator("median"))
    cell.measure("reference", [quantity], replications=10)
    with pytest.raises(InputError, match="engine cpu cannot run median"):
        cell.measure("cpu", [quantity], replications=10)


def test_the_cpu_engine_refuses_what_it_cannot_run():
    own = Estimator("own", function=lambda z, _: z)
    for quantity in (SquaredError(own), Distance(Estimator("grpo"), own)):
        with pytest.raises(InputError, match="engine cpu cannot run own: use reference or exact"):
            GradientCell(random_problem(0), 2).measure("cpu", [quantity], replications=2)
    for name in LEAVE_ONE_OUT:
        with pytest.raises(InputError, match="at least 2: group size is 1"):
            GradientCell(random_problem(0), 1).measure(
                "cpu", [SquaredError(Estimator(name))], replications=2
            )


@pytest.mark.parametrize("name", ["reference", "cpu"])
@pytest.mark.parametrize("replications", [0, -3, 2.5])
def test_a_block_without_replications_is_refused(name, replications):
    """With n = 0 a result would read as an enumerated mean."""
    with pytest.raises(InputError, match="replications"):
        GradientCell(random_problem(0), 2).measure(
            name, [SquaredError(Estimator("grpo"))], replications=replications
        )


def within_five_errors(cell, name, replications):
    quantities = quantities_for(cell.group_size)
    try:
        truth = cell.measure("exact", quantities).mean
    except InfeasibleError:
        pytest.fail("the test asks for too much")
    found = cell.measure(name, quantities, seed=11, replications=replications)
    error = np.sqrt(np.diagonal(found.covariance) / replications)
    rounding = 1e-13 * scale_of(cell.problem) ** powers(quantities)
    off = np.abs(found.mean - truth) / (5 * error + rounding)
    assert off.max() < 1, (quantities[off.argmax()].label, off.max())
    return error / scale_of(cell.problem) ** powers(quantities)


@pytest.mark.parametrize("kind", KINDS)
def test_simulation_finds_what_enumeration_finds(kind):
    problem = random_problem(5, kind, contexts=2)
    if kind == "near-deterministic":
        # As it is, its rare arms (1e-5) carry the error: a normal interval would take millions.
        problem = problem.with_theta(problem.policy.theta / 2)
    for size, batch in ((2, 1), (4, 1), (2, 2)):
        error = within_five_errors(GradientCell(problem, size, batch), "cpu", 100_000)
        assert error.max() < 0.01


@pytest.mark.parametrize("design", ["fixed", "without-replacement"])
@pytest.mark.parametrize("form", FORMS)
def test_simulation_finds_what_enumeration_finds_in_other_designs(form, design):
    problem = random_problem(5, FORMS[form], contexts=2).restrict([0, 1], uniform=True)
    batch = 2 if design == "fixed" else 1
    within_five_errors(GradientCell(problem, 2, batch, design), "cpu", 50_000)


@pytest.mark.parametrize("kind", ["plain", "linear", "shared-linear", "binary"])
def test_the_reference_finds_what_enumeration_finds(kind):
    problem = random_problem(6, kind, contexts=2)
    within_five_errors(GradientCell(problem, 3, 1), "reference", 10_000)
    within_five_errors(GradientCell(problem, 2, 2), "reference", 10_000)
