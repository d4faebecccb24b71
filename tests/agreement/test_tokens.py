"""Token policies under every engine: same integers, same numbers, same truth, same predictions."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from simulations import Suite, claim
from tests.agreement import test_engines as shared
from ustat_pg.checks import RivalVerdict, Verdict
from ustat_pg.engines import Distance, Estimator, GradientCell, SquaredError
from ustat_pg.engines.gradients import cpu, reference
from ustat_pg.experiment import Options, Store, run_claims
from ustat_pg.policies import OutputSpace, PrefixSoftmax
from ustat_pg.predictions import gradient_mse
from ustat_pg.problems import TokenProblem, modular_sum, sorting
from ustat_pg.validation import changed

GRADIENT_STEMS = ("ustatistic", "mse", "minibatch", "oracle", "optimality")
BASELINES = ("vanilla", "group-mean", "oracle", "minimum-variance", "grpo")


def prefix(problem, **options):
    return problem.at(PrefixSoftmax.random(problem.space, problem.contexts, seed=6, **options))


def network(problem, **options):
    from ustat_pg.policies.transformer import TransformerPolicy

    policy = TransformerPolicy.initial(problem.space, problem.prompts, width=4, seed=6)
    return problem.at(policy, **options)


SMALL = modular_sum(2, 2, end=True, graded=True, probs=[0.3, 0.7])
"""Seven outputs, so that groups can be enumerated."""

SORTING = sorting(2, 2, graded=True, prompts=[(1, 0), (1, 1), (0, 0)])

MAKERS = {
    "prefix": lambda: prefix(SMALL),
    "prefix-shared": lambda: prefix(SMALL, shared=True),
    "sorting": lambda: prefix(SORTING),
}
if find_spec("torch") is not None:
    MAKERS |= {
        "transformer": lambda: network(SMALL),
        "transformer-short": lambda: network(SMALL, memory=24 * 14**2),
        "transformer-sorting": lambda: network(SORTING),
    }
each = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@each
def test_the_same_integers_and_numbers(make):
    problem = make()
    for cell in shared.cells(problem, (1, 2, 5), (1, problem.contexts)):
        plain = reference.draw(cell, seed=7, first=0, replications=50)
        where, chosen = cpu.draw(cell, seed=7, first=0, replications=50)
        assert np.array_equal(plain.contexts, where)
        assert np.array_equal(plain.arms, cell.problem.outcomes.arms[where[..., None], chosen])
        shared.compare(cell, 100)


@each
def test_simulation_finds_what_enumeration_finds(make):
    problem = make()
    for cell in (GradientCell(problem, 2), GradientCell(problem, 3), GradientCell(problem, 2, 2)):
        for name in ("reference", "cpu"):
            shared.within_five_errors(cell, name, 20_000 if name == "cpu" else 2_000)


@each
@pytest.mark.parametrize("design", ["iid", "fixed", "without-replacement"])
def test_predictions_are_what_enumeration_finds(make, design):
    """The MSE of every baseline with a closed form, in every design, and grpo's distance."""
    problem = make()
    batch = problem.contexts if design == "fixed" else 2
    if design != "iid":
        problem = problem.restrict(range(problem.contexts), uniform=True)
    size = 2
    cell = GradientCell(problem, size, batch, design)
    estimators = [Estimator(name) for name in BASELINES]
    quantities = [SquaredError(e) for e in estimators]
    quantities += [Distance(Estimator("grpo"), Estimator("oracle"))]
    found = cell.measure("exact", quantities).mean
    moments = problem.moments()
    scale = max(found)
    for value, name in zip(found, BASELINES, strict=False):
        predicted = gradient_mse(moments, name, size, batch, design=design).mse
        assert value == pytest.approx(predicted, abs=1e-12 * scale), name
    # Rivals: the full mean's factor is no rounding, and vanilla is another number.
    assert abs(found[1] - found[4]) > 1e-3 * scale
    assert abs(found[0] - found[4]) > 1e-3 * scale


@each
def test_a_moment_that_is_one_percent_off_is_seen(make):
    problem = make()
    moments = problem.moments()
    wrong = changed(moments, gradient_sq=moments.gradient_sq * 1.01)
    value = GradientCell(problem, 2).measure("exact", [SquaredError(Estimator("grpo"))]).mean[0]
    assert gradient_mse(moments, "grpo", 2).mse == pytest.approx(value, rel=1e-11)
    assert gradient_mse(wrong, "grpo", 2).mse != pytest.approx(value, rel=1e-6)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch not installed")
def test_coordinates_of_the_span_give_the_same_errors():
    """Scores as they are, and in coordinates from their inner products alone."""
    dense, short = MAKERS["transformer"](), MAKERS["transformer-short"]()
    assert short.d < dense.d
    quantities = [SquaredError(Estimator(name)) for name in (*BASELINES, "norm-weighted")]
    for size in (2, 3):
        one, two = (GradientCell(p, size).measure("exact", quantities).mean for p in (dense, short))
        assert one == pytest.approx(two, rel=1e-9)


@pytest.mark.parametrize("name", [n for n in ("prefix", "transformer-short") if n in MAKERS])
def test_the_claims_hold_and_no_rival_survives(name, tmp_path):
    """The gradient-level claims as they stand, on a token problem as if it were a user's."""
    suite = Suite("smoke", user=MAKERS[name]())
    claims = [claim(stem, suite) for stem in GRADIENT_STEMS]
    done = run_claims(claims, Options("smoke"), Store(tmp_path)).claims
    assert [(one.stem, one.verdict) for one in done] == [
        (stem, Verdict.CONFIRMED) for stem in GRADIENT_STEMS
    ]
    rivals = [rival for one in done for rival in one.rivals]
    # A rival that needs a problem of its own is not tested on a user's.
    refuted = [rival for rival in rivals if rival.verdict is not RivalVerdict.NOT_TESTED]
    assert {rival.verdict for rival in refuted} <= {
        RivalVerdict.REFUTED,
        RivalVerdict.NOT_DISTINGUISHABLE,
    }
    assert sum(rival.verdict is RivalVerdict.REFUTED for rival in rivals) >= 20


def test_many_outputs_under_the_compiled_engine():
    """A thousand outputs: grpo's simulated MSE is the predicted one."""
    space = OutputSpace(10, 3)
    problem = TokenProblem(space, [(3,)], lambda x, y: float(sum(y) % 10 == x[0]))
    bandit = problem.at(PrefixSoftmax.random(space, 1, seed=2, scale=0.5))
    cell = GradientCell(bandit, 8)
    found = cell.measure("cpu", [SquaredError(Estimator("grpo"))], replications=20_000)
    error = float(np.sqrt(found.covariance[0, 0] / found.n))
    predicted = gradient_mse(bandit.moments(), "grpo", 8).mse
    assert abs(found.mean[0] - predicted) < 5 * error
    assert error < 0.02 * predicted
