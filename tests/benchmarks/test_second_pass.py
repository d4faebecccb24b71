"""The benchmark of later passes: its formula, its derivatives and its two tables."""

from itertools import product

import numpy as np
import pytest

from ustat_pg.predictions import reuse_bias
from ustat_pg.problems import SoftmaxBandit, reuse_moments

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks import second_pass  # noqa: E402

# torch calls its own deprecated function when it loads derivatives of second order.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


def test_the_formula_is_estimated_without_bias():
    pi, z, u = np.array([0.2, 0.5, 0.3]), np.array([1.0, 0.0, 0.4]), np.array([0.7, -1.0, 0.2])
    scores = np.eye(3) - pi
    changes = scores * (scores @ u)[:, None] - (scores.T * pi) @ scores @ u
    mean = 0.0
    for drawn in product(range(3), repeat=4):
        y = list(drawn)
        mean += np.prod(pi[y]) * second_pass.first_order(changes[y] @ scores[y].T, z[y], 5)
    known = reuse_bias(reuse_moments(SoftmaxBandit.from_probs(pi, z)), 5, rate=1.0)
    assert mean == pytest.approx(u @ known.slope, rel=1e-12)


@pytest.fixture(scope="module")
def setting():
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setattr(second_pass, "BEFORE", 8)
        return second_pass.Setting.of("embedded:short", prompts=2, group_size=4)


@pytest.mark.parametrize("ratio", second_pass.RATIOS)
def test_derivatives_are_those_of_the_batch(setting, ratio):
    policy, u = setting.policy, setting.along
    batch = policy.draw(8, seed=1)
    assert batch.rewards.std(axis=1).all()
    scores, changes = policy.curved(batch, u, ratio)
    step = policy.gradient(policy.start, batch, ratio)
    torch.testing.assert_close(batch.weights @ scores, step, rtol=1e-3, atol=1e-4)
    ahead, behind = (policy.gradient(policy.start + e * step, batch, ratio) for e in (1e-4, -1e-4))
    slope = float(batch.weights @ changes @ step)
    assert slope == pytest.approx(float((ahead - behind) @ u) / 2e-4, rel=0.02)


def test_what_is_beyond_the_first_order_vanishes_with_the_square_of_the_rate(setting, monkeypatch):
    beyond = []
    for rate in (1e-3, 1e-4):
        monkeypatch.setattr(second_pass, "RATES", (("sgd", rate),))
        beyond.append(np.abs(setting.replication(1)["beyond"]))
    assert (beyond[1] < 0.05 * beyond[0]).all(), beyond


def test_a_row_for_each_rate_ratio_and_pass(monkeypatch, capsys):
    monkeypatch.setattr(second_pass, "BEFORE", 2)
    words = ["--model", "embedded:short", "--prompts", "2", "--replications", "2"]
    assert second_pass.main([*words, "--group-size", "4"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    ratios, kinds, rates, passes = (
        len(each)
        for each in (
            second_pass.RATIOS,
            second_pass.KINDS,
            second_pass.RATES,
            second_pass.PASSES,
        )
    )
    assert len(rows) == 2 + ratios * kinds + rates * ratios * passes
