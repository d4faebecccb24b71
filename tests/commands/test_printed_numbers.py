"""Each number that ``predict`` and ``explain`` print of one small problem, against a list of all that can
be drawn: two prompts at a time, with scores and advantages written out here.
"""

from __future__ import annotations

import json
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.commands import out_of
from ustat_pg.cli import main

SIZE = 4
PROMPTS, LOGITS = np.array([0.4, 0.6]), np.array([[0.0, 0.7], [0.0, -0.4]])
SUCCESS = np.array([[0.1, 0.65], [0.8, 0.3]])
ARMS = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
VALUES = (ARMS * SUCCESS).sum(axis=1)


def mean_of_others(z, weights=1.0):
    weighed = weights * z
    weights = np.broadcast_to(weights, z.shape)
    return (weighed.sum(-1, keepdims=True) - weighed) / (weights.sum(-1, keepdims=True) - weights)


def over(top, bottom):
    return np.where(bottom > 1e-12, top / np.maximum(bottom, 1e-12), 0.0)


def others(z):
    """How many of the others succeed."""
    return (z.sum(-1, keepdims=True) - z).astype(int)


def centred(z):
    return z - z.mean(-1, keepdims=True)


ADVANTAGES = {
    "vanilla": lambda z, value, norms: z,
    "oracle": lambda z, value, norms: z - value,
    "grpo": lambda z, value, norms: z - mean_of_others(z),
    "std": lambda z, value, norms: over(centred(z), z.std(-1, keepdims=True)),
    "maxrl": lambda z, value, norms: over(centred(z), z.mean(-1, keepdims=True)),
    "norm-weighted": lambda z, value, norms: z - mean_of_others(z, norms),
}


def groups_of(prompt):
    """Chance, rewards (N, G), scores (N, G, d) of every group of a prompt."""
    chance, reward, score = [], [], []
    for arm, success in product((0, 1), (0, 1)):
        share = SUCCESS[prompt, arm]
        chance.append(ARMS[prompt, arm] * (share if success else 1 - share))
        reward.append(float(success))
        # Of a softmax of its own: the drawn arm less the probabilities.
        each = np.zeros((2, 2))
        each[prompt] = np.eye(2)[arm] - ARMS[prompt]
        score.append(each.ravel())
    drawn = np.array(list(product(range(4), repeat=SIZE)))
    return np.array(chance)[drawn].prod(axis=1), np.array(reward)[drawn], np.array(score)[drawn]


GROUPS = [groups_of(prompt) for prompt in (0, 1)]


def enumerated(weigh, batch):
    """The law of one prompt's estimate, and what follows of the mean of one or two."""
    laws = []
    for value, (chance, rewards, scores) in zip(VALUES, GROUPS, strict=True):
        a = weigh(rewards, value, (scores**2).sum(-1))
        laws.append((chance, np.einsum("ng,ngd->nd", a, scores) / SIZE))
    means = np.array([chance @ each for chance, each in laws])
    own = np.array([c @ (rewards[:, :1] * scores[:, 0]) for c, rewards, scores in GROUPS])
    target, mean = PROMPTS @ own, PROMPTS @ means
    chance = np.concatenate([p * law[0] for p, law in zip(PROMPTS, laws, strict=True)])
    each = np.concatenate([law[1] for law in laws])
    if batch == 2:
        chance = np.outer(chance, chance).ravel()
        each = (each[:, None] + each[None]).reshape(-1, 4) / 2
        between = sum(
            PROMPTS[i] * PROMPTS[j] * np.sum(((means[i] + means[j]) / 2 - mean) ** 2)
            for i, j in product((0, 1), (0, 1))
        )
    else:
        between = PROMPTS @ ((means - mean) ** 2).sum(axis=1)
    mse = chance @ ((each - target) ** 2).sum(axis=1)
    spread = chance @ ((each - mean) ** 2).sum(axis=1)
    return SimpleNamespace(
        mse=mse,
        variance=spread,
        between=between,
        bias=np.sum((mean - target) ** 2),
        noise=spread / (mean @ mean),
        cosine=mean @ target / np.sqrt((mean @ mean) * (target @ target)),
        factors=(means * own).sum(axis=1) / (own * own).sum(axis=1),
    )


def table_of_least_variance():
    """b(0), ..., b(G-1) by the successes of the others: the estimate is linear in it."""
    matrix, vector = np.zeros((SIZE, SIZE)), np.zeros(SIZE)
    for share, (chance, rewards, scores) in zip(PROMPTS, GROUPS, strict=True):
        plain = np.einsum("ng,ngd->nd", rewards, scores)
        moved = np.einsum("ngk,ngd->nkd", np.eye(SIZE)[others(rewards)], scores)
        matrix += share * np.einsum("n,nkd,nld->kl", chance, moved, moved)
        vector += share * np.einsum("n,nkd,nd->k", chance, moved, plain)
    return np.linalg.solve(matrix, vector)


TABLE = table_of_least_variance()
ADVANTAGES["best"] = lambda z, value, norms: z - TABLE[others(z)]


@pytest.fixture
def file(tmp_path):
    rewards = np.broadcast_to([0.0, 1.0], (2, 2, 2)).tolist()
    problem = {"context_probs": PROMPTS.tolist(), "logits": LOGITS.tolist()}
    problem |= {
        "reward_values": rewards,
        "reward_probs": np.stack([1 - SUCCESS, SUCCESS], -1).tolist(),
    }
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem))
    return str(path)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_predict_prints_what_is_enumerated(capsys, file, name, batch):
    words = ["predict", file, "--baseline", name, "--group-size", str(SIZE)]
    words += ["--batch-size", str(batch)] + ["--enumerate"] * (name == "norm-weighted")
    text = out_of(capsys, main, *words)
    said = {
        line[:42].strip(): [float(word) for word in line[42:].split()] for line in text.splitlines()
    }
    own, oracle, vanilla = (
        enumerated(ADVANTAGES[each], batch) for each in (name, "oracle", "vanilla")
    )
    # Of grpo alone the error is told apart from the oracle's.
    second = own.mse - oracle.mse if name == "grpo" else 0.0
    expected = {
        "MSE of the minibatch gradient": own.mse,
        "from the choice of prompts": own.between,
        "from the outputs, order 1/G": own.variance - own.between - second,
        "from not knowing the value, order 1/G²": second,
        "squared bias": own.bias,
        "MSE of the oracle": oracle.mse,
        "MSE of vanilla": vanilla.mse,
        "noise to signal, tr Cov ĝ/‖E ĝ‖²": own.noise,
        "cosine of E ĝ to the gradient": own.cosine,
        "MSE over that of the oracle": own.mse / oracle.mse,
        "MSE over that of the vanilla": own.mse / vanilla.mse,
    }
    if name in ("std", "maxrl"):
        expected["mean estimate over gradient, by prompt"] = own.factors
    if name == "best":
        expected["table b(0) ... b(G-1)"] = TABLE
    if (bound := said.pop("MSE with the explicit bound", None)) is not None:
        assert bound[0] >= own.mse
    assert set(said) == set(expected)
    for label, value in expected.items():
        # As many digits as are printed.
        digits = 5e-4 if np.ndim(value) else 1e-5
        assert said[label] == pytest.approx(np.atleast_1d(value), rel=digits, abs=1e-12), label


def explained(capsys, name, *words):
    """What ``explain`` says, as JSON, where its text has the same numbers to four digits."""
    words = ("explain", "--name", name, "--group-size", str(SIZE), *words)
    said = json.loads(out_of(capsys, main, *words, "--json"))
    text = " ".join(out_of(capsys, main, *words).split())
    ratios = ("noise_to_rloo", "noise_to_oracle", "best_noise_to_rloo")
    shown = [f"MSE {said['mse']:.4g}, ", f"noise over signal {said['noise_to_signal']:.4g} "]
    # What is 1 times RLOO's is said to be RLOO's.
    shown += [f"{said[key]:.4g} times" for key in ratios if f"{said[key]:.4g}" != "1"] + [
        f"{said['silent_share']:.1%} of groups"
    ]
    if not said["unbiased"]:
        pairs = zip(said["mean_factor"], said["pass_rates"], strict=True)
        shown += [f"{w:.4g} at p = {p:.4g}" for w, p in pairs]
        shown += [f"cosine to the gradient is {said['cosine']:.4f}"]
    assert [each for each in shown if each not in text] == []
    return said


def agrees(said, own, oracle, rloo, best, **more):
    expected = {
        "mse": own.mse,
        "noise_to_signal": own.noise,
        "cosine": own.cosine,
        "mean_factor": own.factors,
        "noise_to_rloo": own.noise / rloo.noise,
        "noise_to_oracle": own.noise / oracle.noise,
        "best_noise_to_rloo": best.noise / rloo.noise,
        "scale": 1.0,
        **more,
    }
    for key, value in expected.items():
        assert said[key] == pytest.approx(value, rel=1e-9), key


@pytest.mark.parametrize("name", ["vanilla", "grpo", "std", "maxrl", "best"])
def test_explain_says_what_is_enumerated_of_a_problem(capsys, file, name):
    said = explained(capsys, name, "--problem", file)
    known = (enumerated(ADVANTAGES[each], 1) for each in (name, "oracle", "grpo", "best"))
    silent = sum(
        share * chance[np.ptp(rewards, axis=1) == 0].sum()
        for share, (chance, rewards, _) in zip(PROMPTS, GROUPS, strict=True)
    )
    agrees(said, *known, silent_share=silent, best_table=TABLE, pass_rates=VALUES)


RATES = np.array([0.2, 0.7])


def of_rates(weigh, rates=RATES):
    """Of prompts with these pass rates alone: variance, noise over signal in units of E‖s‖²/‖∇J‖², for
    scores of one norm whatever the reward and gradients of squared lengths p(1-p).
    """
    rewards = np.array(list(product((0.0, 1.0), repeat=SIZE)))
    variance, factors = 0.0, []
    for p in rates:
        chance = np.where(rewards == 1, p, 1 - p).prod(axis=1)
        a = weigh(rewards, p, np.ones_like(rewards))
        variance += chance @ (a**2).sum(axis=1) / SIZE**2 / len(rates)
        factors.append(chance @ (a * (rewards - p)).sum(axis=1) / (SIZE * p * (1 - p)))
    w, squares = np.array(factors), rates * (1 - rates)
    signal = (w**2 @ squares) / squares.sum()
    cosine = (w @ squares) / np.sqrt((w**2 @ squares) * squares.sum())
    return SimpleNamespace(mse=variance, noise=variance / signal, cosine=cosine, factors=w)


@pytest.mark.parametrize("name", ["vanilla", "grpo", "std", "maxrl"])
def test_explain_says_what_is_enumerated_of_pass_rates(capsys, name):
    said = explained(capsys, name, "--pass-rate", ",".join(map(str, RATES)))
    # Of least variance is the mean pass rate given the successes of the others.
    n = np.arange(SIZE)
    shares = RATES ** n[:, None] * (1 - RATES) ** (SIZE - 1 - n[:, None])
    table = (shares @ RATES) / shares.sum(axis=1)
    known = (of_rates(ADVANTAGES[each]) for each in (name, "oracle", "grpo"))
    best = of_rates(lambda z, value, norms: z - table[others(z)])
    silent = np.mean(RATES**SIZE + (1 - RATES) ** SIZE)
    agrees(said, *known, best, silent_share=silent, best_table=table, pass_rates=RATES)
    inner = slice(1, -1)
    rates, w = (np.array(said["weight"][key])[inner] for key in ("pass_rate", "w"))
    assert w == pytest.approx(of_rates(ADVANTAGES[name], rates).factors, rel=1e-9)
