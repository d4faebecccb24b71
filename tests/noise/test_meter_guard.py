"""What fails while a meter measures ends no loop, what it cannot measure it says, and copies are small."""

import copy
import warnings
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.commands import two_processes
from tests.support.meters import one_step
from tests.support.refusals import refuses
from ustat_pg.noise import NoiseMeter, scaling, sketch

WHOLE = {"width": 10**3, "numbers": 10**6}


@pytest.mark.parametrize(
    "place", ["_add", "_opened", "_closed", "_finished", "_counted", "_merged"]
)
def test_an_error_while_it_measures_is_one_warning(place):
    """And the loop goes on, as without the meter; wrong arguments are errors all the same."""
    theta = torch.nn.Parameter(torch.ones(2))
    meter = NoiseMeter([theta])
    assert one_step(meter, theta)
    with (
        patch.object(NoiseMeter, place, side_effect=torch.OutOfMemoryError("all is taken")),
        pytest.warns(
            UserWarning, match="is off and the training continues: OutOfMemoryError: all is"
        ) as told,
    ):
        assert not one_step(meter, theta)
    assert len(told) == 1
    assert not theta._backward_hooks
    theta.grad = None
    assert not one_step(meter, theta)
    assert meter.left_out == "the meter is off: OutOfMemoryError: all is taken"
    assert theta.grad.tolist() == [10.0, 10.0]
    assert meter.steps == 1
    refuses("give one number or text for each completion", meter.begin, [])
    refuses("1 steps count.*the meter is off", meter.estimate)


@pytest.mark.parametrize("state", ["none", "another"])
def test_an_optimizer_without_second_moments_is_said(state):
    """Betas and eps and no exp_avg_sq: the first step that has a state says so, or the 23rd."""

    class Eight(torch.optim.Optimizer):
        def step(self):
            if state == "another":
                self.state[theta]["state2"] = torch.zeros(2)

    theta = torch.nn.Parameter(torch.ones(2))
    optimizer = Eight([theta], {"betas": (0.9, 0.999), "eps": 1e-8})
    meter = NoiseMeter([theta], metric="adam", optimizer=optimizer)
    for _ in range(1 if state == "another" else 22):
        assert not one_step(meter, theta)
        optimizer.step()
    with pytest.warns(UserWarning, match="is off.*Eight keeps no exp_avg_sq of all parameters"):
        assert not one_step(meter, theta)
    refuses("metric is 'adam', and SGD has no betas", NoiseMeter, [theta], metric="adam",
            optimizer=torch.optim.SGD([theta]))  # fmt: skip


def huge(kind):
    """A gradient of two pieces and a half, as a pass makes it."""
    rows, dtype = 2560, torch.bfloat16 if kind != "float32" else torch.float32
    theta = nn.Parameter(torch.zeros(rows, 1024, dtype=dtype))
    values = torch.arange(rows * 1024).remainder(251).to(dtype).view(1024, rows)
    if kind == "one row":
        theta, values = (
            nn.Parameter(theta.detach().view(1, -1)),
            values.T.contiguous().view(1, -1).T,
        )
    return theta, values


@pytest.mark.parametrize("kind", ["bfloat16", "float32", "one row"])
@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("fold", ["loops", "windows"])
def test_no_copy_as_large_as_a_parameter_is_made(kind, adam, fold, monkeypatch):
    """Where a gradient is contiguous or not: the sketch is the same as that of all numbers at once."""
    if fold == "windows":
        monkeypatch.setattr("ustat_pg.noise.loops.by_loops", sketch.by_windows)
        monkeypatch.setattr("ustat_pg.noise.loops.scaled_by_loops", scaling.scaled_by_tensors)
    theta, values = huge(kind)
    theta.grad = torch.zeros_like(theta)
    optimizer = torch.optim.AdamW([theta])
    if adam:
        moment = torch.ones_like(theta)
        optimizer.state[theta] |= {"step": torch.tensor(1e6), "exp_avg_sq": 4 * moment}
    meter = NoiseMeter([theta], metric="adam" if adam else "euclidean", optimizer=optimizer)
    sizes, known = [], {t.untyped_storage().data_ptr() for t in (theta, theta.grad, values)}
    for t in optimizer.state[theta].values():
        known.add(t.untyped_storage().data_ptr())

    class Allocated(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for t in pytree.tree_leaves(result):
                if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in known:
                    sizes.append(t.untyped_storage().nbytes())
            return result

    gradient = values.T
    meter.begin([0])
    with Allocated():
        for hook in theta._backward_hooks.values():
            hook(gradient)
    held = meter._table[0, 0].clone()
    meter.end()
    assert max(sizes) <= 3 * 2**20 * 4 < gradient.numel() * 4 / 0.8
    wanted = torch.zeros(1, 1, meter.numbers)
    divisor = (2 + 1e-8) ** 0.5 if adam else 1
    meter.begin([0])
    meter._sketch.add(wanted, 0, gradient.float().reshape(1, -1) / divisor)
    torch.testing.assert_close(held, wanted[0, 0], rtol=1e-3, atol=1e-1)


def by_two():
    """By one of two processes, with known layers alone and with another."""
    dist.init_process_group("gloo")
    said = [of_sharded(()), of_sharded((Strange(),))]
    dist.destroy_process_group()
    return said


def of_sharded(others):
    """Of FSDP2, reduced at the last micro-batch of a step alone: what the meter says given the parameters,
    given the model, and given a model on one process.
    """

    def made():
        torch.manual_seed(0)
        layers = nn.Embedding(6, 8), nn.RMSNorm(8), nn.Linear(8, 3)
        return nn.Sequential(*layers, *copy.deepcopy(others))

    def loss(model, rows):
        return model(rows).square().sum() / 12

    model, one = made(), made()
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    # FSDP2 forbids a call of a part before one of the whole.
    meters = [
        NoiseMeter(list(model.parameters())),
        NoiseMeter(model, **WHOLE),
        NoiseMeter(one, **WHOLE),
    ]
    told = []
    for step in range(4):
        rows = torch.randint(6, (2, 4, 3, 5), generator=torch.Generator().manual_seed(step))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for k in range(4):
                model.set_requires_gradient_sync(k == 3)
                with meters[0].micro_batch([k // 2] * 3), meters[1].micro_batch([k // 2] * 3):
                    loss(model, rows[dist.get_rank(), k]).backward()
                for p in range(2):
                    with meters[2].micro_batch([k // 2] * 3):
                        (loss(one, rows[p, k]) / 2).backward()
        told += [str(w.message) for w in caught if "single completions" in str(w.message)]
        for meter in meters[:2]:
            meter.step()
        with patch("torch.distributed.is_initialized", return_value=False):
            meters[2].step()
        model.zero_grad()
        one.zero_grad()
    try:
        meters[0].estimate()
    except ValueError as error:
        refused = str(error)
    return refused, *(meter.estimate().metrics() for meter in meters[1:]), told


class Strange(nn.Module):
    """Weights of no layer that is known."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.scale


def test_shards_that_are_reduced_once_a_step_are_measured_by_layers_or_refused():
    """They were a signal of 0, for ever."""
    (first, strange), (second, _) = two_processes(by_two)
    assert first == second
    refused, parts, whole, told = first
    assert refused.startswith(
        "gradients are sharded and reduced only at the last micro-batch of a step"
    )
    assert whole["signal"] > 0
    assert parts == pytest.approx(whole, rel=1e-3)
    assert not told
    *_, told = strange
    assert len(told) == 2
    assert told[0].startswith("gradients of single completions are without 3.scale, because hooks")


def test_other_shards_are_refused():
    """ZeRO 3 leaves parameters empty, FSDP1 has gradients of more numbers than its flat parameters."""
    empty = torch.nn.Parameter(torch.zeros(0))
    refuses("parameters have no numbers on this process.*ZeRO 3", NoiseMeter, [empty])
    theta = torch.nn.Parameter(torch.ones(2))
    meter = NoiseMeter([theta])
    meter.begin([0])
    (hook,) = theta._backward_hooks.values()
    with pytest.warns(UserWarning, match="a gradient has 4 numbers and its parameter 2.*FSDP1"):
        hook(torch.ones(4))
    flat = nn.Linear(2, 2)
    flat.weight = nn.Parameter(flat.weight.detach().flatten())
    refuses("weight is a matrix and has shape .4,. on this process", NoiseMeter, flat)
    assert not flat._forward_hooks
