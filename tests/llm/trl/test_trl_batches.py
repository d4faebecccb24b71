"""What is read from TRL's batches, and how outputs are dealt among them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ustat_pg.llm.trl.batches import deal, names_of, weights_of

IDS = torch.tensor([[1, 2], [1, 2], [3, 4]])
BATCH = {"prompt_ids": IDS, "prompt_mask": torch.ones_like(IDS)}


def test_groups_are_those_that_a_batch_names():
    given = BATCH | {"group_id": torch.tensor([7, 8, 9])}
    prompts, groups = names_of(given, rows=False)
    assert prompts[0] == prompts[1] != prompts[2]
    assert groups.tolist() == [7, 8, 9]
    for batch, rows in ((given, True), ({"group_id": given["group_id"]}, False)):
        prompts, groups = names_of(batch, rows)
        assert prompts.tolist() == [7, 8, 9]
        assert groups is None
    assert names_of(BATCH, rows=True)[1] is None


@pytest.mark.parametrize(("parts", "count"), [(1, 4), (2, 4), (4, 8), (4, 9)])
def test_groups_are_dealt_among_neighbouring_batches(parts, count):
    groups = np.random.default_rng(0).permutation(np.repeat(np.arange(count), 4))
    batches = [{"own": torch.as_tensor(part)} for part in np.split(groups, count)]
    dealt = deal(batches, groups, parts)
    assert dealt.tolist() == torch.cat([batch["own"] for batch in batches]).tolist()
    assert sorted(dealt) == sorted(groups)
    for group in range(count):
        held = np.flatnonzero(dealt == group) // 4
        assert len(set(held)) >= parts
    first, others = dealt[: 4 * parts], dealt[4 * parts :]
    assert not set(first) & set(others)


def test_weights_are_those_of_whole_completions():
    from trl import GRPOTrainer

    def trainer(mode, loss="dapo"):
        made = object.__new__(GRPOTrainer)
        options = {"vllm_importance_sampling_mode": mode, "loss_type": loss}
        vars(made).update(options, num_iterations=1, beta=0.0, args=SimpleNamespace())
        return made

    inputs = {"importance_sampling_ratio": torch.tensor([[0.5], [1.5]])}
    assert weights_of(trainer("sequence_truncate"), inputs).tolist() == [0.5, 1.5]
    assert weights_of(trainer("token_truncate"), inputs) is None
    assert weights_of(trainer("sequence_mask", "vespo"), inputs) is None
    assert weights_of(trainer("sequence_mask"), {}) is None
