"""Minibatches drawn from a bandit: what is drawn, its advantages by loops, and where its gradient is."""

import numpy as np
import pytest

from tests.support.refusals import refusals
from ustat_pg.predictions import best_table, gradient_covariance
from ustat_pg.problems import SoftmaxBandit, WeightedBandit, random_problem

GRADED = random_problem(3, "plain")
BINARY = SoftmaxBandit.bernoulli(
    [[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]], [[1, 0, 0.5]] * 2, [0.25, 0.75]
)
COIN = SoftmaxBandit.bernoulli([0.5, 0.5], [1, 0])


def the_others(group, i):
    return [output for j, output in enumerate(group) if j != i]


def grpo(problem, x, group, i):
    return np.mean([z for _, z in the_others(group, i)])


def oracle(problem, x, group, i):
    return problem.policy.probs[x] @ problem.mean_rewards[x]


def minimum_variance(problem, x, group, i):
    weights = [
        p * float(s @ s)
        for p, s in zip(problem.policy.probs[x], problem.policy.scores(x), strict=True)
    ]
    return np.average(problem.mean_rewards[x], weights=weights)


def norm_weighted(problem, x, group, i):
    others, scores = the_others(group, i), problem.policy.scores(x)
    return np.average(
        [z for _, z in others], weights=[float(scores[k] @ scores[k]) for k, _ in others]
    )


LOOPS = {
    "grpo": (grpo, {}),
    "oracle": (oracle, {}),
    "minimum-variance": (minimum_variance, {}),
    "norm-weighted": (norm_weighted, {}),
    "constant": (lambda problem, x, group, i: 0.25, {"constant": 0.25}),
    "critic": (lambda problem, x, group, i: x / 4, {"critic": np.arange(3) / 4}),
}


@pytest.mark.parametrize("name", LOOPS)
def test_advantages_and_the_gradient_match_a_loop(name):
    baseline, given = LOOPS[name]
    drawn = GRADED.sample(np.random.default_rng(1), 5, 4, name, **given)
    gradient = np.zeros(GRADED.d)
    for b, x in enumerate(drawn.contexts.tolist()):
        group = list(zip(drawn.actions[b].tolist(), drawn.rewards[b].tolist(), strict=True))
        for i, (arm, reward) in enumerate(group):
            assert reward in GRADED.reward_values[x, arm][GRADED.reward_probs[x, arm] > 0]
            assert drawn.scores[b, i].tolist() == GRADED.policy.scores(x)[arm].tolist()
            advantage = reward - baseline(GRADED, x, group, i)
            assert drawn.advantages[b, i] == pytest.approx(advantage, rel=1e-12, abs=1e-12)
            gradient += drawn.scores[b, i] * advantage / 20
    assert drawn.gradient == pytest.approx(gradient, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("problem", [BINARY, GRADED], ids=["bernoulli", "graded"])
def test_the_mean_of_gradients_is_the_gradient(problem):
    """Along each parameter within 4.5 standard errors, exact ones: 1e-4 of seeds would fail for d = 15."""
    rng, draws = np.random.default_rng(11), 4_000
    gradients = [problem.sample(rng, 3, 2).gradient for _ in range(draws)]
    error = np.sqrt(np.diag(gradient_covariance(problem, "grpo", 3, 2)) / draws)
    off = np.abs(np.mean(gradients, axis=0) - problem.gradient())
    assert (error > 0).all()
    assert (off <= 4.5 * error).all()
    # The interval is narrow enough to see the group mean's bias, 1/G of the gradient.
    assert (np.abs(problem.gradient()) / 3 > 4.5 * error).any()


def test_prompts_and_outcomes_have_their_chances():
    drawn = BINARY.sample(np.random.default_rng(2), 50, 2_000)
    for x, chance in enumerate(BINARY.context_probs):
        there = drawn.contexts == x
        assert there.mean() == pytest.approx(
            chance, abs=4.5 * (chance * (1 - chance) / 2_000) ** 0.5
        )
        for arm, p in enumerate(BINARY.policy.probs[x]):
            took = drawn.actions[there] == arm
            assert took.mean() == pytest.approx(p, abs=4.5 * (p * (1 - p) / took.size) ** 0.5)
            rate = BINARY.mean_rewards[x, arm]
            won = drawn.rewards[there][took].mean()
            assert won == pytest.approx(rate, abs=4.5 * (rate * (1 - rate) / took.sum()) ** 0.5)


def test_functions_tables_and_estimators_may_be_sampled():
    def draw(estimator, problem=BINARY):
        return problem.sample(np.random.default_rng(5), 4, 3, estimator)

    def half(rewards):
        return rewards - rewards.mean(axis=-1, keepdims=True) / 2

    assert draw(half).advantages.tolist() == half(draw("grpo").rewards).tolist()
    table = best_table(BINARY, 4)
    won = (rewards := draw("grpo").rewards).sum(axis=1, keepdims=True).astype(int)
    baselines = table.baseline[won - (rewards == 1)]
    assert draw(table.estimator).advantages == pytest.approx(rewards - baselines, abs=1e-12)
    # Weighted scores are drawn as scores are.
    halved = WeightedBandit.of(BINARY, np.full((2, 3), 0.5))
    assert draw("oracle", halved).gradient == pytest.approx(draw("oracle").gradient / 2, rel=1e-12)


def test_a_generator_moves_on_and_a_seed_repeats():
    rng = np.random.default_rng(7)
    one, two = BINARY.sample(rng, 8, 4), BINARY.sample(rng, 8, 4)
    assert one.actions.tolist() != two.actions.tolist()
    assert BINARY.sample(np.random.default_rng(7), 8, 4).actions.tolist() == one.actions.tolist()


def sample(*arguments, **options):
    return lambda: COIN.sample(np.random.default_rng(0), *arguments, **options)


test_refused = refusals(
    (lambda: COIN.sample(0, 4), "rng is 0: it must be a NumPy Generator"),
    (sample(0), "group size is 0"),
    (sample(1), "grpo needs a group of at least 2"),
    (sample(2, 0), "batch size is 0"),
    (sample(2, estimator="rlooo"), "'rlooo' is unknown, did you mean rloo"),
    (sample(2, constant=0.5), "constant is given, which grpo does not take"),
    (sample(2, estimator="constant"), "constant needs its constant: write constant=0.5"),
    (sample(2, estimator="critic", critic=[1, 2]), "critic has 2 values: one per context"),
    (sample(2, estimator="critic"), "critic needs its predicted_value"),
    (sample(2, estimator="best"), "best needs its best_table: .*estimator=best_table\\(problem"),
    (sample(2, estimator=lambda z: z[0]), "advantages have shape \\(2,\\) for rewards \\(1, 2\\)"),
    (sample(2, estimator=lambda z: z * np.nan), "advantages holds nan"),
)
