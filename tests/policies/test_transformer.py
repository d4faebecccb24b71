"""The transformer against finite differences, backward loops, torch's own layer and its tables."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import attrs
import numpy as np
import pytest

from tests.support.refusals import refusals, refuses
from ustat_pg.execution import memory as limits
from ustat_pg.policies import OutputSpace
from ustat_pg.problems import bracket_matching, modular_sum
from ustat_pg.validation import InputError

torch = pytest.importorskip("torch")

from tests.support.policies import ENDED as PROBLEM  # noqa: E402
from tests.support.policies import policy_of  # noqa: E402
from tests.support.policies import transformer as make  # noqa: E402
from ustat_pg.policies import softmax  # noqa: E402
from ustat_pg.policies.network import Layer  # noqa: E402
from ustat_pg.policies.transformer import TransformerPolicy  # noqa: E402


def test_moments_without_tables_match_the_tables():
    policy = make()
    lazy, table = PROBLEM.bandit(policy).moments(), PROBLEM.at(policy).moments()
    for name in ("value", "fisher_trace", "norm_advantage", "norm_squared_advantage"):
        assert np.allclose(getattr(lazy, name), getattr(table, name), rtol=1e-11, atol=1e-13), name
    assert np.allclose(lazy.gradient_sq, table.gradient_sq, rtol=1e-10)
    assert lazy.mean_gradient_sq == pytest.approx(table.mean_gradient_sq, rel=1e-10)


def test_a_table_of_scores_that_does_not_fit_is_refused(monkeypatch):
    refuses("scores of 60 outputs in 307 parameters need", PROBLEM.at, make(), memory=10)
    monkeypatch.setattr(softmax, "GRAM_BYTES", 0)
    with pytest.raises(InputError, match="inner products of all pairs of 15 outputs"):
        make().gram(0, 0)


@pytest.mark.parametrize("memory", [1, 60_000])
def test_the_memory_changes_no_number(memory, monkeypatch):
    policy, plain = make(), make()
    weights = np.random.default_rng(0).normal(size=15)
    wanted = plain.squared_norms, plain.logits, plain.combine(0, weights), plain.scores(1)
    monkeypatch.setattr(limits, "MEMORY", memory)
    result = policy.squared_norms, policy.logits, policy.combine(0, weights), policy.scores(1)
    for one, other in zip(result, wanted, strict=True):
        assert np.allclose(one, other, rtol=1e-12, atol=1e-12)


def test_a_block_matches_torchs_layer():
    """The same weights in ``nn.TransformerEncoderLayer`` give the same outputs."""
    torch.manual_seed(0)
    own = Layer(8, 2).double()
    theirs = torch.nn.TransformerEncoderLayer(
        8, 2, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    pairs = {
        "norm1": "norm1",
        "norm2": "norm2",
        "out": "self_attn.out_proj",
        "up": "linear1",
        "down": "linear2",
    }
    state = {
        f"{new}.{kind}": own.state_dict()[f"{old}.{kind}"]
        for old, new in pairs.items()
        for kind in ("weight", "bias")
    }
    state |= {
        f"self_attn.in_proj_{kind}": own.state_dict()[f"qkv.{kind}"] for kind in ("weight", "bias")
    }
    theirs.load_state_dict(state)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert torch.allclose(own(x, later), theirs(x, src_mask=later), rtol=0, atol=1e-13)


def test_no_token_sees_a_later_one():
    policy = policy_of("transformer-deep")
    tokens = torch.tensor([[0, 1, 0, 1], [0, 1, 1, 0]])
    out = torch.func.functional_call(policy.network, policy.state, (tokens,))
    assert torch.allclose(out[0, :2], out[1, :2], rtol=0, atol=1e-13)
    assert not torch.allclose(out[0, 2:], out[1, 2:])


def test_restriction_other_parameters_and_copies():
    policy = make()
    part = policy.restrict(np.array([3, 0]))
    assert part.prompts == (policy.prompts[3], policy.prompts[0])
    assert not np.allclose(policy.with_theta(policy.theta * 2).logits, policy.logits)
    small = pickle.dumps(make(width=16))
    fresh = make(width=16)
    _ = fresh.state, fresh.logits, fresh.squared_norms, fresh.gram(0, 0)
    assert len(pickle.dumps(fresh)) == len(small)
    bandit = PROBLEM.at(policy)
    assert bandit.restrict([3, 0]).digest == PROBLEM_PART.at(part).digest


PROBLEM_PART = bracket_matching(1, 3, end=True, prompts=[PROBLEM.prompts[3], PROBLEM.prompts[0]])


test_refused = refusals(
    (lambda: TransformerPolicy.initial(OutputSpace(2, 2), []), "set of prompts is empty"),
    (lambda: TransformerPolicy.initial(OutputSpace(2, 2), [(-1,)]), "prompt token is -1"),
    (lambda: make(width=5), "must be a multiple of heads, 2"),
    (lambda: make().with_theta(np.ones(3)), "theta has 3 entries: the network has 307"),
    (lambda: make().with_theta(np.full(307, np.nan)), "theta holds nan"),
    (lambda: make().with_theta(np.full(307, 1e200)).logits, "log-probabilities hold nan"),
    (lambda: attrs.evolve(make(), space=OutputSpace(5, 2)), "tokens: outputs have 5"),
    (
        lambda: modular_sum(3, 2).at(
            TransformerPolicy.initial(OutputSpace(3, 2), [(0,), (1,), (1,)], width=4)
        ),
        "the policy's prompts are",
    ),
)


def test_scores_that_are_not_finite_are_refused(monkeypatch):
    """A log-probability may be finite where its slope is not."""
    original = TransformerPolicy.log_prob

    def steep(self, state, sequences, outputs):
        bend = torch.sqrt(state["head.bias"] * 0).sum()
        return original(self, state, sequences, outputs) + bend

    monkeypatch.setattr(TransformerPolicy, "log_prob", steep)
    policy = make()
    assert np.isfinite(policy.logits).all()
    for ask in (lambda: policy.scores(0), lambda: policy.squared_norms, lambda: policy.gram(0, 0)):
        refuses("scores of context 0 are not finite", ask)


def test_threads_do_not_disturb_one_another():
    """functional_call puts parameters into its module: each thread has a module of its own."""
    policies = [make(seed=seed) for seed in (1, 2)]
    alone = [policy.logits for policy in policies]
    for _ in range(5):
        fresh = [attrs.evolve(policy) for policy in policies * 4]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda policy: (policy.logits, policy.squared_norms), fresh))
        for (logits, _), wanted in zip(together, alone * 4, strict=True):
            assert np.array_equal(logits, wanted)
    assert policies[0].network is policies[1].network
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: policies[0].network).result() is not policies[0].network
