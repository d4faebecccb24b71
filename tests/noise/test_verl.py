"""verl's loop over micro-batches, as a stand-in: two processes of FSDP2 give the numbers of one."""

import warnings
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from tests.support.commands import two_processes
from ustat_pg.noise import NoiseMeter
from ustat_pg.noise.verl import measured


class Engine:
    """verl/workers/engine/fsdp/transformer_impl.py and base.py, at 1dda039."""

    def __init__(self, module, size):
        self.module, self.size = module, size
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-12)

    def get_data_parallel_size(self):
        return self.size

    @contextmanager
    def _gradient_sync_context(self, *, is_last_micro_batch):
        if is_last_micro_batch or self.size == 1:
            yield
            return
        self.module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.module.set_requires_gradient_sync(True)

    def forward_step(self, micro_batch, loss_function, forward_only):
        return loss_function(self.module(micro_batch["input_ids"]), micro_batch)

    def forward_backward_batch(self, micro_batches, loss_function, forward_only=False):
        for k, micro_batch in enumerate(micro_batches):
            with self._gradient_sync_context(is_last_micro_batch=k == len(micro_batches) - 1):
                loss = self.forward_step(micro_batch, loss_function, forward_only)
                loss.backward()
        return {"metrics": {}}

    def optimizer_step(self):
        self.optimizer.step()

    def lr_scheduler_step(self):
        pass

    def train_batch(self, data, loss_function):
        self.optimizer.zero_grad()
        outputs = self.forward_backward_batch(data, loss_function)
        self.optimizer_step()
        return outputs


class Batch(dict):
    def __len__(self):
        return len(self["uid"])


def micro_batches(step):
    rows = torch.randn(4, 4, 5, generator=torch.Generator().manual_seed(step))
    for k in range(4):
        yield rows[k], [f"{step} {2 * part + k // 2}" for part in (0, 0, 1, 1)]


def run(size, rank):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    if size > 1:
        module = fully_shard(module)
    engine = measured(Engine)(module, size)

    def loss(y, batch):
        return size * y.square().sum() / 16

    part = slice(2 * rank, 2 * rank + 2) if size > 1 else slice(None)
    for step in range(12):
        data = [Batch(input_ids=x[part], uid=u[part]) for x, u in micro_batches(step)]
        # The second of two epochs does not count.
        for _ in range(2):
            outputs = engine.train_batch(data, loss)
        engine.lr_scheduler_step()
    return outputs["metrics"]


def alone_and_together():
    """The metrics before there is a process group, and those of one of two processes."""
    alone = run(1, 0)
    dist.init_process_group("gloo")
    together = run(2, dist.get_rank())
    dist.destroy_process_group()
    return alone, together


def test_two_processes_of_fsdp2_give_the_numbers_of_one():
    """Although verl's own loop reduces gradients after the last micro-batch alone."""
    (alone, together), (_, again) = two_processes(alone_and_together)
    assert together == again
    assert alone["noise/steps"] == [12]
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        assert together[name] == pytest.approx(value, rel=1e-3), name


def failing():
    """Warnings of one of two processes, where the second fails in its fifth micro-batch."""
    dist.init_process_group("gloo")
    begin, calls = NoiseMeter.begin, []

    def planted(*given):
        calls.append(0)
        if dist.get_rank() == 1 and len(calls) > 4:
            raise torch.OutOfMemoryError("all is taken")
        return begin(*given)

    with patch.object(NoiseMeter, "begin", planted), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        metrics = run(2, dist.get_rank())
    dist.destroy_process_group()
    return metrics, [str(w.message) for w in told if "noise is off" in str(w.message)]


def test_an_error_on_one_of_two_processes_switches_both_off():
    """They reduce gradients alike until both know; neither waits for the other."""
    first, second = two_processes(failing)
    said, error = "noise is off and the training continues: ", "OutOfMemoryError: all is taken"
    assert first == ({}, [f"{said}on process 1: {error}"])
    assert second == ({}, [f"{said}{error}"])
