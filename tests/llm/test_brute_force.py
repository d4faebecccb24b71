"""Brute force against enumeration and the pool, on a language model whose outputs can be listed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.support.models import OUTPUTS, every_output, random_model
from tests.support.refusals import refuses

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from ustat_pg.llm.brute_force import BASELINES, brute_force  # noqa: E402

PROMPTS = ((2, 3, 2), (3, 0))
SINGLE = 1e-6
"""Qwen2 computes norms and rotations in single precision, whatever the type of its weights."""


@pytest.fixture(scope="module")
def model():
    """Random, in double precision, with a few parameters frozen."""
    small = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "std": 0.5}
    small |= {"num_key_value_heads": 1, "tie_word_embeddings": True, "pad_token_id": None}
    made = random_model(seed=3, vocab_size=4, eos_token_id=1, bos_token_id=None, **small).double()
    made.model.norm.weight.requires_grad_(False)
    return made


class Listed:
    """Every completion of every prompt: probability, score, reward."""

    def __init__(self, model):
        self.probs, self.scores, _ = every_output(model, PROMPTS)
        coins = np.random.default_rng(0).integers(0, 2, self.probs.shape)
        self.rewards = coins + 0.5 * np.array([len(output) == 2 for output in OUTPUTS])

    @property
    def norms(self):
        return (self.scores**2).sum(axis=2)

    @property
    def values(self):
        return (self.probs * self.rewards).sum(axis=1)

    def choose(self, x, count, rng):
        return rng.choice(len(OUTPUTS), count, p=self.probs[x] / self.probs[x].sum())

    def draw(self, x, count, seed):
        arms = self.choose(x, count, np.random.default_rng([seed, 17]))
        return [OUTPUTS[k] for k in arms], self.rewards[x, arms]

    def advantages(self, name, x, arms):
        """By the definition: row i holds the weights of the others."""
        z = self.rewards[x, arms]
        own = {"vanilla": 0.0, "oracle": self.values[x]}
        if name in own:
            return z - own[name]
        weights = {"grpo": np.ones_like(self.norms), "norm-weighted": self.norms}
        others = weights[name][x, arms] * (1 - np.eye(len(arms)))
        return z - others @ z / others.sum(axis=1)

    def mse(self, name, x, group_size):
        """E‖ĝ - g‖² over all groups."""
        gradient = (self.probs[x] * self.rewards[x]) @ self.scores[x]
        total = 0.0
        for group in itertools.product(range(len(OUTPUTS)), repeat=group_size):
            arms = np.array(group)
            found = self.advantages(name, x, arms) @ self.scores[x, arms] / group_size
            total += self.probs[x, arms].prod() * ((found - gradient) ** 2).sum()
        return total


@pytest.fixture(scope="module")
def listed(model):
    return Listed(model)


def test_the_list_is_complete_and_its_scores_have_mean_zero(listed):
    assert listed.probs.sum(axis=1) == pytest.approx([1, 1], rel=SINGLE)
    mean = np.einsum("xk,xkd->xd", listed.probs, listed.scores)
    assert np.abs(mean).max() < SINGLE * np.abs(listed.scores).max()
    # Neither a sure policy nor an even one.
    assert 0.2 < listed.probs.max() < 0.9


@pytest.fixture(scope="module")
def found(model, listed):
    asked = {"group_sizes": [2, 3], "baselines": BASELINES, "replications": 120}
    return brute_force(model, PROMPTS, listed.draw, seed=5, values=listed.values, **asked)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("group_size", [2, 3])
def test_brute_force_agrees_with_enumeration(found, listed, name, group_size):
    i, j = found.baselines.index(name), found.group_sizes.index(group_size)
    for x in range(len(PROMPTS)):
        exact = listed.mse(name, x, group_size)
        assert abs(found.mse[i, j, x] - exact) < 4.5 * found.se[i, j, x]
        assert found.se[i, j, x] < 0.4 * exact


def test_the_errors_tell_baselines_and_group_sizes_apart(listed):
    """What the agreement above would not see: a formula whose value another one shares."""
    values = [listed.mse(name, 0, size) for name in BASELINES for size in (2, 3)]
    gaps = np.abs(np.subtract.outer(values, values)) / max(values)
    # At G = 2 all leave-one-out means are the one other reward.
    assert (gaps < 1e-9).sum() == len(values) + 2


def test_gradients_do_not_depend_on_batches(model, listed):
    asked = {"group_sizes": [5], "baselines": ["vanilla", "norm-weighted"], "replications": 4}
    whole = brute_force(model, PROMPTS[:1], listed.draw, batch=64, **asked)
    parts = brute_force(model, PROMPTS[:1], listed.draw, batch=2, **asked)
    assert np.allclose(whole.mse, parts.mse, rtol=SINGLE)


def test_draws_are_fresh_for_every_group_size_and_shared_by_baselines(model, listed):
    asked = []

    def draw(x, count, seed):
        asked.append((x, count, seed))
        return listed.draw(x, count, seed)

    words = {"group_sizes": [2, 3], "baselines": ["grpo", "vanilla"], "replications": 4}
    result = brute_force(model, PROMPTS, draw, **words)
    assert [(x, count) for x, count, _ in asked] == [(0, 8), (1, 8), (0, 12), (1, 12)]
    assert len({seed for _, _, seed in asked}) == 4
    assert result.rollouts.tolist() == [16, 24]
    assert (result.seconds > 0).all()
    assert np.array_equal(result.mse, brute_force(model, PROMPTS, draw, **words).mse)
    frame = result.frame()
    assert frame.shape == (4, 6)
    assert frame.mse[0] == result.mse[0, 0].mean()


def test_variance_and_error_are_those_of_the_gradients_themselves(model, listed):
    """Against all gradients held at once, from the list's own scores."""
    asked = {"group_sizes": [2], "baselines": ["grpo"], "replications": 6}
    result = brute_force(model, PROMPTS[:1], listed.draw, **asked)
    seed = int(np.random.SeedSequence([0, 0, 2]).generate_state(1)[0])
    arms = listed.choose(0, 12, np.random.default_rng([seed, 17])).reshape(6, 2)
    gradients = np.array([listed.advantages("grpo", 0, a) @ listed.scores[0, a] / 2 for a in arms])
    assert result.mse[0, 0, 0] == pytest.approx(gradients.var(axis=0, ddof=1).sum(), rel=SINGLE)
    pairs = ((gradients[::2] - gradients[1::2]) ** 2).sum(axis=1) / 2
    assert result.se[0, 0, 0] == pytest.approx(pairs.std(ddof=1) / math.sqrt(3), rel=SINGLE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"baselines": ["critic"]}, "'critic' is unknown"),
        ({"baselines": []}, "no baselines are given"),
        ({"baselines": "grpo"}, "give a list of names"),
        ({"group_sizes": []}, "at least one prompt and one group size"),
        ({"group_sizes": [1]}, "leave-one-out needs at least 2"),
        ({"replications": 5}, "must be even"),
        ({"replications": 2}, "at least 4"),
        ({"baselines": ["oracle"]}, "values are given with, and only with"),
        ({"values": [0.5, 0.5]}, "values are given with, and only with"),
        ({"baselines": ["oracle"], "values": [0.5]}, "there are 2 prompts"),
        ({"prompt_ids": [(), (1,)]}, "a prompt is empty"),
        ({"draw": lambda x, n, seed: ([(2,)] * n, np.ones(n - 1))}, "there must be 8 of each"),
        ({"draw": lambda x, n, seed: ([()] * n, np.ones(n))}, "is empty: it must have a token"),
        ({"draw": lambda x, n, seed: ([(2,)] * n, np.full(n, np.nan))}, "must be finite"),
    ],
)
def test_bad_input_is_refused(model, listed, change, message):
    given = {"prompt_ids": PROMPTS, "draw": listed.draw, "group_sizes": [2]}
    given |= {"baselines": ["grpo"], "replications": 4} | change
    refuses(message, brute_force, model, given.pop("prompt_ids"), given.pop("draw"), **given)


def test_models_that_train_or_have_nothing_to_train_are_refused(listed):
    asked = {"group_sizes": [2], "baselines": ["grpo"]}
    refuses("in training mode", brute_force, torch.nn.Linear(2, 2), PROMPTS, listed.draw, **asked)
    frozen = torch.nn.Linear(2, 2).eval().requires_grad_(False)
    refuses("no parameter of the model", brute_force, frozen, PROMPTS, listed.draw, **asked)
