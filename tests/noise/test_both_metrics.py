"""The meter in the gradient's own norm and in that of Adam's step, beside each other."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.meters import one_step
from ustat_pg.noise import NoiseMeter
from ustat_pg.noise.estimate import estimate_noise, step_sums

PROMPTS, GROUP, STEPS, PARTS = 6, 4, 50, 12
BETA, EPS = 0.99, 1e-3
ROWS = PROMPTS * GROUP // PARTS
FEATURES = torch.tensor(np.random.default_rng(0).normal(size=(PROMPTS, 5)) * [3, 1, 1, 0.3, 0.1])
RIGHT = torch.tensor([[0], [0], [1], [0], [0], [1]])
"""The right one of two answers to each prompt."""


def inputs(net, step):
    """Features, answers and advantages of a step, (micro-batches, rows, ...), drawn from the policy."""
    with torch.no_grad():
        chance = net(FEATURES).softmax(-1)[:, :1]
    drawn = torch.tensor(np.random.default_rng(step).random((PROMPTS, GROUP)))
    answers = (drawn > chance).long()
    rewards = (answers == RIGHT).double()
    leave_one_out = (rewards - rewards.mean(dim=1, keepdim=True)) * GROUP / (GROUP - 1)
    features = FEATURES.repeat_interleave(GROUP, dim=0).reshape(PARTS, ROWS, 5)
    return features, answers.reshape(PARTS, ROWS), leave_one_out.reshape(PARTS, ROWS)


GROUPS = np.repeat(np.arange(PROMPTS), GROUP).reshape(PARTS, ROWS)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def losses(net, features, answers, advantages):
    """The loss of each completion, over the completions of a step."""
    own = net(features).log_softmax(-1).gather(-1, answers[..., None])[..., 0]
    return -advantages * own / (PARTS * ROWS)


def measured(steps=range(STEPS), saved=None, net=None, optimizer=None, **settings):
    """A meter after some steps, the net and its optimizer."""
    net = net or model()
    optimizer = optimizer or torch.optim.AdamW(net.parameters(), 1e-3, (0.9, BETA), EPS)
    meter = NoiseMeter(
        net.parameters(),
        100,
        leave_one_out=True,
        optimizer=optimizer,
        population=PROMPTS,
        **settings,
    )
    if saved is not None:
        meter.load_state_dict(json.loads(json.dumps(saved)))
    for step in steps:
        for *part, groups in zip(*inputs(net, step), GROUPS, strict=True):
            with meter.micro_batch(groups, advantages=part[-1]):
                losses(net, *part).sum().backward()
        meter.step()
        optimizer.step()
        optimizer.zero_grad()
    return meter, net, optimizer


def by_hand():
    """The sums of each step in both metrics, from gradients of single completions and Adam's own rule."""
    net, sums = model(), ([], [])
    parameters = list(net.parameters())
    optimizer = torch.optim.AdamW(parameters, 1e-3, (0.9, BETA), EPS)
    second = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for step in range(STEPS):
        given = inputs(net, step)
        each = [
            torch.cat(
                [g.flatten() for g in torch.autograd.grad(loss, parameters, retain_graph=True)]
            )
            for part in zip(*given, strict=True)
            for loss in losses(net, *part)
        ]
        rows = torch.stack(each).reshape(PARTS, ROWS, -1).sum(dim=1)
        scales = [torch.ones_like(second)]
        if step >= 22:
            scales.append(((second / (1 - BETA**step)).sqrt() + EPS) ** -0.5)
        for kept, scale in zip(sums, scales, strict=False):
            h = (rows * scale * PARTS * ROWS).numpy()
            kept.append(
                step_sums(h @ h.T, list(GROUPS), list(given[-1].numpy()), leave_one_out=True)
            )
        whole = rows.sum(dim=0)
        second = BETA * second + (1 - BETA) * whole**2
        places = np.cumsum([p.numel() for p in parameters])[:-1].tolist()
        for p, part in zip(parameters, whole.tensor_split(places), strict=True):
            p.grad = part.reshape(p.shape)
        optimizer.step()
    return [estimate_noise(np.array(kept), leave_one_out=True, population=PROMPTS) for kept in sums]


def test_both_metrics_are_those_of_single_completions():
    meter, _, _ = measured()
    _, adam = by_hand()
    found = meter.adam.estimate()
    assert (meter.steps, meter.adam.steps, found.constant_steps) == (STEPS, STEPS - 22, STEPS - 22)
    # The sketch of 34 numbers is whole, in single precision.
    for name in ("signal", "noise_to_signal", "k_crit", "c1", "g_star"):
        assert getattr(found, name).value == pytest.approx(getattr(adam, name).value, rel=1e-3), (
            name
        )
    logged = meter.metrics()
    assert logged["adam/k_crit"] == found.k_crit.value != logged["k_crit"]
    kinds = ("noise_to_signal", "k_crit", "budget_over_critical", "g_star")
    assert all(f"adam/{name}" in logged for name in kinds)
    assert not any(name.startswith(("adam/signal", "adam/c")) for name in logged)


def test_the_plain_metric_is_not_changed_by_the_other():
    both, _, _ = measured()
    plain, _, _ = measured(metric="euclidean")
    assert plain.adam is None
    assert repr(both.estimate()) == repr(plain.estimate())
    assert not any(name.startswith("adam/") for name in plain.metrics())


def test_other_optimizers_have_the_plain_metric_alone():
    net = model()
    meter, _, _ = measured(net=net, optimizer=torch.optim.SGD(net.parameters(), 1e-3))
    assert meter.adam is None
    assert not any(name.startswith("adam/") for name in meter.metrics())


def test_with_the_identity_both_metrics_agree():
    """Second moments that make P = 1 before each step."""
    theta = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
    optimizer = torch.optim.Adam([theta], 1e-9, (0.9, 0.99), eps=0.0)
    plain, both = NoiseMeter([theta], 3), NoiseMeter([theta], 3, optimizer=optimizer)
    rng = np.random.default_rng(0)
    for step in range(30):
        with plain.micro_batch([1, 1]), both.micro_batch([1, 1]):
            (theta @ torch.tensor(rng.normal(size=3) + 0.5).float()).backward()
        with plain.micro_batch([2, 2]), both.micro_batch([2, 2]):
            (theta @ torch.tensor(rng.normal(size=3) + 0.5).float()).backward()
        plain.step()
        both.step()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.state[theta]["exp_avg_sq"].fill_(1 - 0.99 ** (step + 1))
    found, wanted = both.adam.estimate().metrics(), plain.estimate().metrics()
    assert found == pytest.approx(wanted, rel=1e-4)
    assert found["signal"] > 0


def test_a_state_goes_on_in_both_metrics():
    whole, _, _ = measured()
    first, net, optimizer = measured(range(36))
    second, _, _ = measured(range(36, STEPS), first.state_dict(), net, optimizer)
    assert repr(second.adam.estimate()) == repr(whole.adam.estimate())
    assert second.metrics() == whole.metrics()
    plain, _, _ = measured(range(36, STEPS), first.state_dict(), net, optimizer, metric="euclidean")
    assert plain.steps == STEPS


def test_an_error_in_adam_s_metric_leaves_the_other_on():
    """The optimizer updates other parameters than those that are measured."""
    theta, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    meter = NoiseMeter([theta], optimizer=torch.optim.Adam([other]))
    for _ in range(22):
        assert one_step(meter, theta)
    with pytest.warns(UserWarning, match="noise in Adam's metric is off.*Adam keeps no exp_avg_sq"):
        assert one_step(meter, theta)
    assert one_step(meter, theta)
    assert (meter.steps, meter.adam.steps) == (24, 0)


def test_a_step_cut_short_counts_in_neither():
    meter, net, _ = measured()
    part = [each[0] for each in inputs(net, 0)]

    def fails():
        with meter.micro_batch(GROUPS[0]):
            losses(net, *part).sum().backward()
            raise RuntimeError("own")

    with pytest.raises(RuntimeError, match="own"):
        fails()
    assert not meter.step()
    assert (meter.steps, meter.adam.steps) == (STEPS, STEPS - 22)
    meter.remove()
    assert not any(p._backward_hooks for p in net.parameters())
