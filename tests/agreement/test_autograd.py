"""The autograd engine against the others: same integers, same sums of a block, same truth."""

from __future__ import annotations

import numpy as np
import pytest

from simulations import Suite, claim
from tests.agreement import test_engines as shared
from ustat_pg import rng
from ustat_pg.checks import RivalVerdict, Verdict
from ustat_pg.engines import Distance, Estimator, GradientCell, SquaredError
from ustat_pg.engines.gradients import cpu, reference
from ustat_pg.experiment import Options, Store, run_claims
from ustat_pg.policies import OutputSpace
from ustat_pg.problems import (
    SoftmaxBandit,
    TokenProblem,
    bracket_matching,
    digits_problem,
    random_problem,
)

torch = pytest.importorskip("torch")

from tests.agreement.test_tokens import SMALL, SORTING, network, prefix  # noqa: E402
from ustat_pg.engines.gradients import autograd  # noqa: E402
from ustat_pg.engines.gradients.autograd import AutogradEngine  # noqa: E402
from ustat_pg.engines.networks import models as torch_models  # noqa: E402
from ustat_pg.policies.transformer import TransformerPolicy  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


BRACKETS = bracket_matching(1, 2, end=True, graded=True)
"""Prompts of no token to two."""


def bare(problem):
    """A network that is not put in tables."""
    policy = TransformerPolicy.initial(problem.space, problem.prompts, width=4, seed=2)
    return problem.bandit(policy)


MAKERS = {
    "tabular": lambda: random_problem(1, "plain", contexts=3),
    "linear": lambda: random_problem(1, "linear", contexts=3),
    "shared": lambda: random_problem(1, "shared-linear", contexts=3),
    "prefix": lambda: prefix(SMALL),
    "prefix-shared": lambda: prefix(SORTING, shared=True),
    "transformer": lambda: network(SORTING),
    "transformer-ragged": lambda: network(BRACKETS),
    "transformer-bare": lambda: bare(BRACKETS),
}
each = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)

ROUNDING = {"float64": (1e-9, 1e-13), "float32": (1e-3, 1e-6)}
"""Relative, and of what the greatest single output could make of it."""


def same_integers(cell, replications=50, first=shared.FAR, seed=7):
    plain = reference.draw(cell, seed=seed, first=first, replications=replications)
    where, chosen = autograd.draw(cell, seed=seed, first=first, replications=replications)
    assert where.dtype == chosen.dtype == torch.int64
    assert np.array_equal(plain.contexts, where)
    assert np.array_equal(plain.arms, cell.problem.outcomes.arms[where[..., None], chosen])
    assert np.array_equal(plain.rewards, cell.problem.outcomes.rewards[where[..., None], chosen])
    theirs = cpu.draw(cell, seed=seed, first=first, replications=replications)
    assert np.array_equal(theirs[0], where)
    assert np.array_equal(theirs[1], chosen)


def compare(cell, replications=40, precision="float64", quantities=None, first=shared.FAR):
    """A block's sums against the reference engine's."""
    quantities = quantities or shared.quantities_for(cell.group_size)
    where = {"seed": 3, "first": first, "replications": replications}
    plain = cell.measure("reference", quantities, **where)
    found = AutogradEngine(precision=precision).measure(cell, quantities, **where)
    relative, floor = ROUNDING[precision]
    scale = shared.scale_of(cell.problem) ** shared.powers(quantities)
    assert found.n == plain.n == replications
    off = np.abs(found.mean - plain.mean) / (relative * np.abs(plain.mean) + floor * scale)
    assert off.max() < 1, (cell.name, quantities[off.argmax()].label, off.max())
    spread = np.sqrt(np.diagonal(plain.products))
    allowed = relative * np.outer(spread, spread)
    allowed += floor * replications * np.outer(scale, scale)
    off = np.abs(found.products - plain.products) / allowed
    assert off.max() < 1, (cell.name, off.max())


@each
def test_the_same_integers(make):
    problem, designs = make(), set()
    for cell in shared.cells(problem, (1, 2, 5), (1, 2, problem.contexts)):
        designs.add(cell.design)
        for first in (0, shared.FAR, 2**63 - 50):
            same_integers(cell, first=first)
    assert designs == set(shared.DESIGNS)


def test_the_same_integers_on_real_data():
    """1,797 contexts, and more of them drawn at once than one block of words holds."""
    same_integers(GradientCell(digits_problem(), 6, 5), 400)
    same_integers(GradientCell(digits_problem(), 2, 40, "without-replacement"))


def test_laws_with_corners_give_the_same_integers():
    """Outcomes of probability zero, nearly zero, and rows of unequal length."""
    problem = SoftmaxBandit.tabular(
        [0.0, 0.5, 0.0, 0.5 - 1e-12, 1e-12, 0.0],
        np.tile([0.0, -40.0, 25.0], (6, 1)) * np.arange(6)[:, None],
        np.tile([[1.0, 0.0, 2.0]], (6, 3, 1)),
        np.tile([[0.0, 1e-11, 1 - 1e-11], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], (6, 1, 1)),
    )
    same_integers(GradientCell(problem, 9, 4), 500, first=0)


def test_a_word_on_an_edge_belongs_to_the_outcome_above(monkeypatch):
    """No draw of a test will ever meet an edge: the engine is handed the words."""
    problem = random_problem(4, "uniform-contexts", contexts=5)
    words = []

    def handed(key, replications, slots, count, first=0):
        shape = torch.broadcast_shapes(replications.shape, slots.shape)
        return torch.tensor(words[first : first + count]).expand(*shape, count)

    monkeypatch.setattr(autograd.torch_draws, "words", handed)
    edges = [int(end) for end in rng.thresholds(problem.context_probs)]
    words[:] = sorted({0, 2**32 - 1} | {e + d for e in edges[:-1] for d in (-1, 0, 1)})
    expected = [sum(end <= word for end in edges) for word in words]
    where, _ = autograd.draw(GradientCell(problem, 1, len(words)), seed=0, first=0, replications=2)
    assert where.tolist() == [expected] * 2
    ends = rng.thresholds(problem.outcomes.probs)
    inner = {int(e) + d for e in ends.ravel() for d in (-1, 0) if e < 2**32}
    words[:] = sorted(inner | {0, 2**32 - 1})
    cell = GradientCell(problem, len(words), 5, "fixed")
    _, chosen = autograd.draw(cell, seed=0, first=0, replications=1)
    for x in range(5):
        assert chosen[0, x].tolist() == [sum(int(e) <= word for e in ends[x]) for word in words]


@each
@pytest.mark.parametrize("precision", ROUNDING)
def test_the_same_sums(make, precision):
    problem = make()
    for cell in shared.cells(problem, (1, 2, 5), (1, problem.contexts)):
        compare(cell, precision=precision)


@each
def test_the_same_sums_of_few_estimators(make):
    """Some take a surrogate each; one more and they share the outputs' own gradients."""
    cell = GradientCell(make(), 4, 2)
    for count in range(1, autograd._FEW + 2):
        names = ("norm-weighted", "grpo", "oracle", "minimum-variance")[:count]
        assert len(names) == count
        few = [SquaredError(Estimator(name)) for name in names]
        few += [Distance(Estimator(names[0]), Estimator(names[-1]))] * (count > 1)
        for precision in ROUNDING:
            compare(cell, precision=precision, quantities=few)


def test_the_same_sums_on_real_data():
    part = digits_problem().restrict(range(0, 1797, 60), uniform=True)
    compare(GradientCell(part, 4, 3), 30)
    compare(GradientCell(part, 3, 5, "without-replacement"), 30)


def test_the_same_sums_where_scores_vanish():
    """All norms zero, all but one arm's zero, and one arm nearly sure."""
    rewards, law = [[[1.0], [0.4], [0.7]]], np.ones((1, 3, 1))
    for problem in (
        SoftmaxBandit.linear([1.0], np.zeros((1, 3, 2)), [1.0, 1.0], rewards, law),
        SoftmaxBandit.tabular([1.0], [[0.0, -800.0, -800.0]], rewards, law),
        SoftmaxBandit.tabular([1.0], [[40.0, 0.0, 0.0]], rewards, law),
    ):
        for batch in (1, 2):
            compare(GradientCell(problem, 4, batch), 100)


def test_the_same_sums_under_a_large_offset():
    """Rewards near 2^30: the target must not lose what is left of them."""
    near = random_problem(2, "plain")
    rewards = np.round(near.reward_values * 1024) / 1024 + 2.0**30
    problem = SoftmaxBandit.tabular(
        near.context_probs, near.policy.logits, rewards, near.reward_probs
    )
    names = ("grpo", "group-mean", "oracle", "minimum-variance")
    quantities = [SquaredError(Estimator(name)) for name in names]
    cell = GradientCell(problem, 4, 2)
    plain = cell.measure("reference", quantities, replications=50).mean
    assert plain[0] < 10
    for precision, rounding in (("float64", 1e-5), ("float32", 1e-3)):
        found = AutogradEngine(precision=precision).measure(cell, quantities, replications=50)
        assert found.mean == pytest.approx(plain, rel=rounding)


@each
def test_simulation_finds_what_enumeration_finds(make):
    problem = make()
    for cell in (GradientCell(problem, 2), GradientCell(problem, 3), GradientCell(problem, 2, 2)):
        shared.within_five_errors(cell, "autograd", 4000)


def test_blocks_merged_are_one_block():
    cell, quantities = GradientCell(network(BRACKETS), 3, 2), shared.quantities_for(3)
    whole = cell.measure("autograd", quantities, seed=1, first=shared.FAR, replications=60)
    merged = None
    for start, stop in ((0, 1), (1, 25), (25, 59), (59, 60)):
        where = {"first": shared.FAR + start, "replications": stop - start}
        part = cell.measure("autograd", quantities, seed=1, **where)
        merged = part if merged is None else merged.merge(part)
    scale = shared.scale_of(cell.problem) ** shared.powers(quantities)
    assert (np.abs(merged.mean - whole.mean) / scale).max() < 1e-13


def test_many_outputs_and_parameters():
    """A thousand outputs of a network of some thousand parameters, few of them ever drawn."""
    space = OutputSpace(10, 3)
    problem = TokenProblem(space, [(3,), (1, 4)], lambda x, y: float(sum(y) % 10 == x[0]))
    policy = TransformerPolicy.initial(space, problem.prompts, width=8, seed=2)
    assert policy.d > 1000
    cell = GradientCell(problem.at(policy), 8, 2)
    quantities = [SquaredError(Estimator(name)) for name in ("grpo", "vanilla", "oracle")]
    for precision in ROUNDING:
        compare(cell, 20, precision, quantities)


def test_a_claim_holds_and_its_rivals_do_not(tmp_path):
    """Theorem 2 as it stands, on a policy per prefix, with this engine's evidence alone."""
    suite = Suite("smoke", user=prefix(SMALL))
    options = Options("smoke", engine="autograd")
    (done,) = run_claims([claim("mse", suite)], options, Store(tmp_path)).claims
    assert done.verdict is Verdict.CONFIRMED
    verdicts = [rival.verdict for rival in done.rivals]
    assert RivalVerdict.SURVIVED not in verdicts
    assert verdicts.count(RivalVerdict.REFUTED) >= 6


# Wrong gradients, which the sums of a block must refuse.


def _scaled(monkeypatch, factor):
    original = autograd._Prepared.estimates
    monkeypatch.setattr(
        autograd._Prepared,
        "estimates",
        lambda self, contexts, outputs, weights: (
            factor(outputs.shape[1]) * original(self, contexts, outputs, weights)
        ),
    )


def _full_mean(monkeypatch):
    original = autograd.advantages
    names = {"grpo": "group-mean"}
    monkeypatch.setattr(
        autograd, "advantages", lambda name, z, **known: original(names.get(name, name), z, **known)
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
@pytest.mark.parametrize("precision", ROUNDING)
def test_a_wrong_gradient_is_refused(monkeypatch, wrong, few, precision):
    cell = GradientCell(network(BRACKETS), 4, 2)
    quantities = [SquaredError(Estimator("grpo"))]
    if not few:
        shifts = range(autograd._FEW)
        quantities += [SquaredError(Estimator("constant", constant=0.1 * i)) for i in shifts]
    compare(cell, precision=precision, quantities=quantities)
    wrong(monkeypatch)
    with pytest.raises(AssertionError):
        compare(cell, precision=precision, quantities=quantities)


@pytest.mark.parametrize("factor", [0.0, 1.01, -1.0])
def test_a_wrong_target_is_refused(monkeypatch, factor):
    """By the sums of a block, and by what enumeration finds."""
    cell = GradientCell(MAKERS["prefix"](), 2)
    original = autograd._Prepared._target
    monkeypatch.setattr(autograd, "_KEPT", {})
    monkeypatch.setattr(autograd._Prepared, "_target", lambda self, m: factor * original(self, m))
    with pytest.raises(AssertionError):
        compare(cell)
    if factor != 1.01:
        with pytest.raises(AssertionError):
            shared.within_five_errors(cell, "autograd", 4000)
