"""What the options of single frameworks do to their losses, as a user writes them."""

import pytest

from ustat_pg.catalogue import resolve


@pytest.mark.parametrize(
    ("spec", "aggregation", "penalties"),
    [
        ("rllm", "token-mean", []),
        ("rllm actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum", "sequence-sum", []),
        ("rllm rllm.algorithm.loss_agg_mode=seq-mean-token-mean", "sequence-mean", []),
        ("rllm rllm/backend=tinker loss_agg_mode=seq-mean-token-mean kl_beta=.1", "token-sum", []),
        ("rllm rllm.algorithm.kl_beta=.1", "token-mean", [("k3", 0.1)]),
        ("rllm kl_loss_coef=.1 use_kl_loss=false", "token-mean", []),
        ("rllm kl_loss_coef=.1 use_kl_loss=true kl_loss_type=k1", "token-mean", [("k1", 0.1)]),
        ("rllm use_kl_loss=true", "token-mean", []),
    ],
)
def test_how_a_loss_adds_up_and_its_kl_terms(spec, aggregation, penalties):
    meaning = resolve(spec)
    assert meaning.aggregation.name == aggregation
    assert [(each.form, each.coefficient) for each in meaning.acting_penalties()] == penalties
