"""The engines of gradients: the same draws and so the same numbers, and the same truth."""

from functools import partial
from importlib import import_module

import numpy as np
import pytest
from array_api_compat import array_namespace

from simulations import Suite, claim
from simulations.evidence import Options, RivalVerdict, Store, Verdict, run_claims
from simulations.problems import Entry
from tests.support import laws
from tests.support.estimators import tables_of
from tests.support.laws import COMPARED, SUBJECTS, errors_of
from tests.support.problems import (
    FORMS,
    NAMED,
    cornered,
    far_from_zero,
    named,
    vanishing,
)
from tests.support.refusals import refuses
from ustat_pg import estimators, registry
from ustat_pg.engines import Distance, Estimator, GradientCell, SquaredError, base
from ustat_pg.engines.gradients import exact, reference
from ustat_pg.problems import SoftmaxBandit, digits_problem, random_problem
from ustat_pg.sampling import rng

BASELINES = ("vanilla", "group-mean", "oracle", "minimum-variance", "grpo")


def pairs(names, problems=NAMED):
    """Every engine of that list on every problem that it takes."""
    return pytest.mark.parametrize(
        ("subject", "problem"),
        [
            pytest.param(SUBJECTS[name], problem, id=f"{name}-{problem}")
            for name in names
            for problem in problems
            # Coordinates of the span of scores are no parameters of a network.
            if not (name.startswith("autograd") and problem == "transformer-short")
        ],
    )


def engines(names):
    return pytest.mark.parametrize("subject", [SUBJECTS[name] for name in names], ids=names)


# Draws.

EDGES = random_problem(4, "uniform-contexts", contexts=5)


def edge_words(ends):
    """Words on the edges and beside them, and what lies above each."""
    inner = {int(end) + step for end in np.ravel(ends) for step in (-1, 0, 1)}
    return sorted({0, 2**32 - 1} | {word for word in inner if 0 <= word < 2**32})


def above(ends, words):
    return [sum(int(end) <= word for end in ends) for word in words]


def test_a_word_on_an_edge_belongs_to_the_outcome_above(monkeypatch):
    """No draw of a test will ever meet an edge: the engines are handed the words."""
    ends = rng.thresholds(EDGES.context_probs)
    prompts, inner = edge_words(ends[:-1]), edge_words(rng.thresholds(EDGES.outcomes.probs))
    assert len(set(above(ends, prompts))) == 5
    handed: list[int] = []

    def words(key, replications, slots, count):
        xp = array_namespace(replications)
        slots = xp.asarray(slots)
        shape = *xp.broadcast_arrays(replications, slots)[0].shape, count
        return xp.broadcast_to(xp.asarray(handed[:count]), shape)

    monkeypatch.setattr(rng, "words", words)
    handed[:] = prompts
    cell = GradientCell(EDGES, 1, len(prompts))
    drawn = reference.draw(cell, seed=0, first=0, replications=1)
    assert drawn.contexts.tolist() == [above(ends, prompts)]
    handed[:] = inner
    cell = GradientCell(EDGES, len(inner), 5, "fixed")
    drawn = reference.draw(cell, seed=0, first=0, replications=1)
    for x, law in enumerate(rng.thresholds(EDGES.outcomes.probs)):
        chosen = above(law, inner)
        assert drawn.arms[0, x].tolist() == EDGES.outcomes.arms[x, chosen].tolist()
        assert drawn.rewards[0, x].tolist() == EDGES.outcomes.rewards[x, chosen].tolist()


# Numbers.


@pairs(COMPARED)
def test_the_same_numbers(subject, problem):
    problem = named(problem)
    for cell in laws.cells(problem, (1, 2, 5), (1, problem.contexts)):
        laws.same_numbers(subject, cell)


@pairs([name for name in COMPARED if name == "autograd"])
def test_the_same_numbers_where_every_surrogate_is_differentiated(subject, problem, monkeypatch):
    """Where gradients are too many to keep."""
    autograd = import_module("simulations.engines.autograd")
    monkeypatch.setattr(autograd, "_KEPT", {})
    monkeypatch.setattr(autograd, "KEPT_SHARE", 0.0)
    asked = errors_of("norm-weighted", "grpo", "oracle")
    asked += [Distance(Estimator("norm-weighted"), Estimator("oracle"))]
    laws.same_numbers(subject, GradientCell(named(problem), 4, 2), asked)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_numbers_in_every_size_and_design(form):
    """Compiled draws take four words at a time: every remainder of outputs and prompts."""
    problem = random_problem(1, FORMS[form], contexts=5)
    for cell in laws.cells(problem, range(1, 10), range(1, 6)):
        laws.same_numbers(SUBJECTS["cpu"], cell, replications=30)


@engines(COMPARED)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_same_numbers_of_every_table_by_counts(subject, size):
    """One prompt and several, which compiled engines have a body each for."""
    tables = tables_of(size)
    asked = [*map(SquaredError, tables), *(Distance(e, tables[-1]) for e in tables[:-1])]
    for cell in laws.cells(random_problem(1, "binary", contexts=2), (size,), (1, 2)):
        laws.same_numbers(subject, cell, asked, replications=60)


def test_the_same_numbers_on_real_data_and_in_corners():
    """1,797 contexts: fewer places in a guide table, more than one block of words."""
    whole, quantities = digits_problem(), errors_of("grpo", "oracle")
    for cell in (GradientCell(whole, 6, 5), GradientCell(whole, 2, 40, "without-replacement")):
        laws.same_numbers(SUBJECTS["cpu"], cell, quantities, replications=200)
    cell = GradientCell(cornered(), 9, 4)
    laws.same_numbers(SUBJECTS["cpu"], cell, first=0, replications=500)
    drawn = reference.draw(cell, seed=3, first=0, replications=500)
    assert set(np.unique(drawn.contexts)) <= {1, 3, 4}


@engines(COMPARED)
def test_the_same_numbers_on_real_data_and_where_scores_vanish(subject):
    part = digits_problem().restrict(range(0, 1797, 60), uniform=True)
    laws.same_numbers(subject, GradientCell(part, 4, 3))
    laws.same_numbers(subject, GradientCell(part, 3, 5, "without-replacement"))
    # For a near-certain arm 1 - p is rounding, and differs between autograd and the tables.
    for problem in vanishing() if subject.name == "cpu" else vanishing()[:-1]:
        for batch in (1, 2):
            laws.same_numbers(subject, GradientCell(problem, 4, batch), replications=200)


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
        laws.same_numbers(SUBJECTS["cpu"], cell, first=number, seed=0, replications=1)


@engines(COMPARED)
@pytest.mark.parametrize("batch", [1, 2])
def test_the_same_numbers_under_a_large_offset(subject, batch):
    cell = GradientCell(far_from_zero(), 4, batch)
    quantities = errors_of("grpo", "group-mean", "oracle", "minimum-variance")
    quantities += [Distance(Estimator("grpo"), Estimator("oracle"))]
    plain = cell.measure("reference", quantities, replications=50).mean
    result = subject.measure(cell, quantities, replications=50).mean
    assert plain[0] < 10
    loose = max(subject.relative, 1e-5)
    small = [0, 1, 2, 4]
    assert result[small] == pytest.approx(plain[small], rel=loose)
    assert result == pytest.approx(plain, rel=max(loose, 1e-4))


@pytest.mark.parametrize("engine", ["exact", *(name for name in SUBJECTS if name != "cpu")])
def test_a_function_is_measured_as_the_librarys_own(engine):
    own = Estimator("own", function=lambda z, _: z - z.mean(axis=-1, keepdims=True))
    quantities = [SquaredError(own), *errors_of("group-mean")]
    quantities += [Distance(own, Estimator("group-mean"))]
    cell = GradientCell(random_problem(1, "plain", contexts=2), 3)
    result = cell.measure(engine, quantities, replications=20).mean
    assert result[0] == pytest.approx(result[1], rel=1e-13)
    assert result[2] == pytest.approx(0.0, abs=1e-30)


# Blocks.


@pairs(
    SUBJECTS,
    [*FORMS, *(n for n in ("prefix", "transformer-ragged", "transformer-bare") if n in NAMED)],
)
def test_blocks_of_a_cell(subject, problem):
    cell = GradientCell(named(problem), 4, 2)
    laws.blocks_merge(subject, cell, 60 if subject.name == "autograd" else 300)
    laws.order_does_not_matter(subject, cell)
    laws.same_seed_same_bytes(subject, cell)
    laws.threads_serve_blocks(subject, cell)


@pytest.mark.parametrize(("engine", "most"), [(exact, 1), (reference, 5000)])
def test_chunks_are_pieces_of_the_whole(engine, most, monkeypatch):
    cell, name = (
        GradientCell(random_problem(0, contexts=2), 2, 2),
        engine.__name__.rpartition(".")[2],
    )
    whole = cell.measure(name, errors_of("grpo"), first=5, replications=50)
    monkeypatch.setattr(engine, "_CHUNK_BYTES", most)
    assert max(len(chance) for _, chance in exact.minibatches(cell)) == 64 or name != "exact"
    pieces = cell.measure(name, errors_of("grpo"), first=5, replications=50)
    assert pieces.n == whole.n
    assert pieces.mean == pytest.approx(whole.mean, rel=1e-13 if name == "exact" else 0)
    assert np.array_equal(pieces.products, whole.products)


# Refusals.


@engines(SUBJECTS)
def test_every_engine_refuses_bad_cells(subject):
    """A group of one has no others; with n = 0 a result would read as an enumerated mean."""
    problem = random_problem(0)
    alone, measure = GradientCell(problem, 1), partial(subject.measure, replications=2)
    for name in ("grpo", "norm-weighted"):
        refuses("at least 2", measure, alone, errors_of(name))
    pair = GradientCell(problem, 2), errors_of("grpo")
    for replications in (0, -3, 2.5):
        refuses("replications", subject.measure, *pair, replications=replications)
    refuses(r"replications end at 2\^63", measure, *pair, first=2**63 - 1)
    refuses("at least one quantity", measure, pair[0], [])


def test_the_cpu_engine_takes_no_function_and_no_new_baseline_for_another(monkeypatch):
    """One that the body does not know would be computed as no baseline at all."""
    cell, own = GradientCell(random_problem(0), 3), Estimator("own", function=lambda z, _: z)
    measure = partial(cell.measure, "cpu", replications=10)
    said = "engine cpu cannot run own: use reference .* within_rewards"
    for quantity in (SquaredError(own), Distance(Estimator("grpo"), own)):
        refuses(said, measure, [quantity])
    monkeypatch.setitem(registry.ESTIMATORS, "median", registry.Record("median"))
    monkeypatch.setitem(estimators.FUNCTIONS, "median", estimators.group_mean)
    monkeypatch.setattr(base, "RUNNABLE", (*base.RUNNABLE, "median"))
    cell.measure("reference", errors_of("median"), replications=10)
    refuses("engine cpu cannot run median", measure, errors_of("median"))


# The truth.


@pytest.mark.parametrize("problem", NAMED)
def test_the_reference_engine_finds_what_enumeration_finds(problem):
    """The others find the reference engine's numbers, draw by draw."""
    for size, batch in ((3, 1), (2, 2)):
        laws.finds_the_truth(GradientCell(named(problem), size, batch), 4_000)


# Predictions on token problems.


@pytest.mark.skipif("transformer" not in NAMED, reason="torch not installed")
def test_coordinates_of_the_span_give_the_same_errors():
    """Scores as they are, and in coordinates from their inner products alone."""
    dense, short = named("transformer"), named("transformer-short")
    assert short.d < dense.d
    quantities = errors_of(*BASELINES, "norm-weighted")
    for size in (2, 3):
        one, two = (GradientCell(p, size).measure("exact", quantities).mean for p in (dense, short))
        assert one == pytest.approx(two, rel=1e-9)


@pytest.mark.skipif("autograd" not in SUBJECTS, reason="torch not installed")
def test_a_claim_holds_by_the_autograd_engine_and_no_rival_survives(tmp_path):
    """As it stands, on one token problem; by the others ``make networks`` asks all."""
    suite = Suite("smoke", on="tokens")
    vars(suite)["token_problems"] = (Entry("prefix", "made-up", named("prefix")),)
    options = Options("smoke", engine="autograd")
    (done,) = run_claims([claim("mse", suite)], options, Store(tmp_path)).claims
    result = [each for check in done.checks for each in check.findings.values()]
    assert {each.verdict for each in result} == {Verdict.CONFIRMED}
    verdicts = [rival.verdict for rival in done.rivals]
    # A rival that needs a problem of its own is not tested on another.
    assert RivalVerdict.SURVIVED not in verdicts
    assert verdicts.count(RivalVerdict.REFUTED) >= 6
