"""The autograd engine by all its ways, and wrong gradients, which the sums of a block must refuse."""

from __future__ import annotations

import pytest

from tests.support import laws
from tests.support.laws import SUBJECTS, errors_of
from tests.support.problems import NAMED, SMALL, named, prefix
from ustat_pg.engines import Distance, Estimator, GradientCell, SquaredError
from ustat_pg.policies import OutputSpace
from ustat_pg.problems import TokenProblem

torch = pytest.importorskip("torch")

from ustat_pg.engines.gradients import autograd  # noqa: E402
from ustat_pg.engines.gradients import models as torch_models  # noqa: E402
from ustat_pg.policies.transformer import TransformerPolicy  # noqa: E402

PRECISIONS = [SUBJECTS["autograd"], SUBJECTS["autograd-float32"]]
each_precision = pytest.mark.parametrize("subject", PRECISIONS, ids=lambda s: s.name)


@each_precision
@pytest.mark.parametrize("problem", [name for name in NAMED if name != "transformer-short"])
def test_the_same_sums_of_few_estimators(problem, subject):
    """Some take a surrogate each; one more and they share the outputs' own gradients."""
    cell = GradientCell(named(problem), 4, 2)
    for count in range(1, autograd.SEPARATE_GRADIENTS + 2):
        names = ("norm-weighted", "grpo", "oracle", "minimum-variance")[:count]
        assert len(names) == count
        few = errors_of(*names)
        few += [Distance(Estimator(names[0]), Estimator(names[-1]))] * (count > 1)
        laws.same_numbers(subject, cell, few)


@each_precision
def test_many_outputs_and_parameters(subject):
    """A thousand outputs of a network of some thousand parameters, few of them ever drawn."""
    space = OutputSpace(10, 3)
    problem = TokenProblem(space, [(3,), (1, 4)], lambda x, y: float(sum(y) % 10 == x[0]))
    policy = TransformerPolicy.initial(space, problem.prompts, width=8, seed=2)
    assert policy.d > 1000
    cell = GradientCell(problem.at(policy), 8, 2)
    laws.same_numbers(subject, cell, errors_of("grpo", "vanilla", "oracle"), replications=20)


# Wrong gradients, which the sums of a block must refuse.


def _scaled(monkeypatch, factor):
    original = autograd.Prepared.estimates
    monkeypatch.setattr(
        autograd.Prepared,
        "estimates",
        lambda self, contexts, outputs, weights: (
            factor(outputs.shape[1]) * original(self, contexts, outputs, weights)
        ),
    )


def _full_mean(monkeypatch):
    original, wrong = autograd.Prepared.advantages, Estimator("group-mean")
    monkeypatch.setattr(
        autograd.Prepared,
        "advantages",
        lambda self, e, *drawn: original(self, wrong if e.baseline == "grpo" else e, *drawn),
    )


def _first_token_only(monkeypatch):
    def log_prob(self, theta, contexts, outputs):
        choices = self.choice_log_probs(theta, contexts, outputs)
        return choices[:, 0].gather(1, outputs[:, :1])[:, 0]

    monkeypatch.setattr(torch_models.Model, "log_prob", log_prob)


def _one_replication_later(monkeypatch):
    original = autograd._draw
    monkeypatch.setattr(
        autograd,
        "_draw",
        lambda cell, ends, seed, first, count: original(cell, ends, seed, first + 1, count),
    )


WRONG = {
    "divided by B only": lambda patch: _scaled(patch, lambda n: n / 2),
    "not divided": lambda patch: _scaled(patch, lambda n: n),
    "other sign": lambda patch: _scaled(patch, lambda n: -1),
    "one percent": lambda patch: _scaled(patch, lambda n: 1.01),
    "full mean": _full_mean,
    "first token only": _first_token_only,
    "one replication later": _one_replication_later,
}


@pytest.mark.parametrize("few", [True, False], ids=["surrogates", "outputs"])
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@each_precision
def test_a_wrong_gradient_is_refused(monkeypatch, wrong, few, subject):
    cell, quantities = GradientCell(named("transformer-ragged"), 4, 2), errors_of("grpo")
    if not few:
        shifts = range(autograd.SEPARATE_GRADIENTS)
        quantities += [SquaredError(Estimator("constant", constant=0.1 * i)) for i in shifts]
    laws.same_numbers(subject, cell, quantities)
    wrong(monkeypatch)
    with pytest.raises(AssertionError):
        laws.same_numbers(subject, cell, quantities)


@pytest.mark.parametrize("factor", [0.0, 1.01, -1.0])
def test_a_wrong_target_is_refused(monkeypatch, factor):
    """By the sums of a block, and by what enumeration finds."""
    cell, subject = GradientCell(prefix(SMALL), 2), SUBJECTS["autograd"]
    original = autograd.Prepared._target
    monkeypatch.setattr(autograd, "_KEPT", {})
    monkeypatch.setattr(autograd.Prepared, "_target", lambda self, m: factor * original(self, m))
    with pytest.raises(AssertionError):
        laws.same_numbers(subject, cell)
    if factor != 1.01:
        with pytest.raises(AssertionError):
            laws.finds_the_truth(subject, cell)
