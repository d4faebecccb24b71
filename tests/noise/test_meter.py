"""The meter measures α, β and γ of enumeration, in any composition of micro-batches."""

import itertools
import json
import math
import pickle
import re
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.support.commands import python, two_processes
from tests.support.meters import one_step
from tests.support.refusals import refuses
from ustat_pg.noise import NoiseMeter
from ustat_pg.noise.estimate import Sums, _slopes, estimate_noise, step_sums

GROUP, PROMPTS, ARMS = 4, 2, 3
LOGITS = torch.tensor([[0.3, -0.2, 0.1], [-0.5, 0.4, 0.0]], dtype=torch.float64)
REWARDS = torch.tensor([[1.0, 0.2, 0.0], [0.1, 1.0, 0.6]], dtype=torch.float64)
LENGTHS = torch.tensor([2.0, 5.0, 3.0], dtype=torch.float64)
FEATURES = torch.tensor(
    [[[1.0, 0.2], [0.0, 0.7], [-1.0, 0.1]], [[0.8, 0.0], [0.3, 0.3], [-1.0, 1.0]]],
    dtype=torch.float64,
)


def advantages(rewards, kind):
    apart = rewards - rewards.mean(-1, keepdim=True)
    if kind in ("std", "clipped", "k3"):
        return apart / (rewards.std(-1, correction=0, keepdim=True) + 1e-4)
    if kind == "std-ddof1":
        return apart / (rewards.std(-1, keepdim=True) + 1e-4)
    return apart * GROUP / (GROUP - 1)


def losses(theta, x, arms, advantage, kind):
    """A completion's own loss, for arrays of prompts and arms."""
    logp = torch.log_softmax(FEATURES[x] @ theta + LOGITS[x], -1)
    own = logp.gather(-1, arms[..., None])[..., 0]
    if kind == "clipped":
        # Rollouts are of an older policy: some ratios leave the band.
        ratio = (own - old()[x, arms]).exp()
        return -torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage)
    if kind == "lengths":
        return -advantage * own / LENGTHS[arms]
    if kind == "k3":
        log_ratio = torch.log_softmax(LOGITS[x], -1).gather(-1, arms[..., None])[..., 0] - own
        return -advantage * own + 0.5 * (log_ratio.exp() - log_ratio - 1)
    return -advantage * own


THETA = torch.tensor([0.3, -0.2], dtype=torch.float64)


def old():
    return torch.log_softmax(FEATURES @ (0.3 * THETA) + LOGITS, -1)


def behaviour(kind):
    """Probabilities of the policy that drew the rollouts, (prompts, arms)."""
    return (old() if kind == "clipped" else torch.log_softmax(FEATURES @ THETA + LOGITS, -1)).exp()


def terms(kind):
    """All groups of each prompt: their probabilities, (X, N), and gradients of each loss, (X, N, G, d)."""
    arms = torch.tensor(list(itertools.product(range(ARMS), repeat=GROUP)))
    probs, gradients = [], []
    for x in range(2):
        where = torch.full_like(arms, x)
        advantage = advantages(REWARDS[x][arms], kind)
        table = torch.func.jacrev(lambda t: losses(t, where, arms, advantage, kind))(THETA)  # noqa: B023
        gradients.append(table)
        probs.append(behaviour(kind)[x][arms].prod(-1))
    return torch.stack(probs), torch.stack(gradients), arms


def enumerated(kind):
    """α, β and γ, exactly; two prompts equally often."""
    probs, v, _ = terms(kind)
    mean = (probs[..., None, None] * v).sum(1).mean((0, 1))
    alpha = (probs[..., None] * v.square().sum(-1)).sum(1).mean()
    total = (probs * v.sum(2).square().sum(-1)).sum(1).mean()
    return float(alpha), float((total - GROUP * alpha) / (GROUP * (GROUP - 1))), float(mean @ mean)


def products(kind):
    """Means of products of completions of two groups, (2G, 2G)."""
    probs, v, _ = terms(kind)
    within = torch.einsum("xn,xnid,xnjd->ij", probs, v, v) / 2
    mean = torch.einsum("xn,xnid->id", probs, v) / 2
    whole = torch.block_diag(within, within)
    whole[:GROUP, GROUP:] = whole[GROUP:, :GROUP] = mean @ mean.T
    return whole.numpy()


KINDS = ["rloo", "std", "std-ddof1", "clipped", "lengths", "k3"]
DEALS = {
    "one": [1] * 8,
    "halves": [2] * 4,
    "whole": [4] * 2,
    "unequal": [1, 4, 3],
    "most": [6, 2],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deal", DEALS)
@pytest.mark.parametrize("shuffled", [False, True])
def test_expectations_are_those_of_enumeration(kind, deal, shuffled):
    """Mean products over all pairs of groups, weighed by their probability: no randomness is left."""
    alpha, beta, gamma = enumerated(kind)
    if deal == "most" and not shuffled:
        pytest.skip("one pair of micro-batches, with both kinds of pairs of completions")
    dealt = []
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(8) if shuffled else np.arange(8)
        parts = np.split(order, np.cumsum(DEALS[deal])[:-1])
        indicator = np.array([[i in part for i in range(8)] for part in parts], dtype=float)
        dealt.append(
            step_sums(indicator @ products(kind) @ indicator.T, [part // GROUP for part in parts])
        )
    sums = np.mean(dealt, axis=0)
    got_beta, got_gamma = _slopes(sums)
    estimate = estimate_noise(np.stack([sums, sums]), leave_one_out=False)
    assert estimate.signal.value == pytest.approx(gamma, rel=1e-9)
    assert got_gamma == pytest.approx(gamma, rel=1e-9)
    noise = alpha + (GROUP - 1) * beta - GROUP * gamma
    assert estimate.k_crit.value == pytest.approx(noise / gamma, rel=1e-9)
    assert estimate.noise_to_signal.value == pytest.approx(noise / gamma / 8, rel=1e-9)
    own = Sums.of(sums)
    if own.same_same > 0:
        assert got_beta == pytest.approx(beta, rel=1e-9)
        got_alpha = (own.squares - got_beta * own.same - got_gamma * own.other) / own.completions
        assert got_alpha == pytest.approx(alpha, rel=1e-9)


def run(deal, *, kind="rloo", steps=6, seed=0, meter=None, clip=1.0, start=0, **options):
    """A plain loop over a frozen policy; the meter, and by hand what its steps are."""
    theta = torch.nn.Parameter(THETA.clone())
    meter = meter(theta) if meter else NoiseMeter([theta], 100, **options)
    sums = []
    for step in range(start, steps):
        rng = np.random.default_rng([seed, step])
        x = torch.as_tensor(rng.integers(2, size=PROMPTS))
        arms = torch.stack(
            [torch.as_tensor(rng.choice(ARMS, GROUP, p=behaviour(kind)[i].numpy())) for i in x]
        )
        advantage = advantages(REWARDS[x[:, None], arms], kind).flatten()
        place, arms = torch.arange(PROMPTS).repeat_interleave(GROUP), arms.flatten()
        order = torch.as_tensor(rng.permutation(8))
        rows, groups = [], []
        for part in order.split(deal):
            with meter.micro_batch(place[part], scale=clip):
                each = losses(theta, x[place[part]], arms[part], advantage[part], kind)
                (each.sum() * clip / 8).backward()
            rows.append(torch.autograd.grad(
                losses(theta, x[place[part]], arms[part], advantage[part], kind).sum(), theta
            )[0].numpy())  # fmt: skip
            groups.append(place[part].numpy())
        assert meter.step()
        theta.grad = None
        rows = np.array(rows)
        sums.append(step_sums(rows @ rows.T, groups))
    return meter, np.array(sums)


@pytest.mark.parametrize("deal", DEALS)
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_plain_loop_measures_its_own_gradients(deal, scale):
    meter, sums = run(DEALS[deal], clip=scale)
    wanted = estimate_noise(sums)
    assert meter.estimate().signal.value == pytest.approx(wanted.signal.value, rel=1e-4)
    assert meter.estimate().k_crit.interval == pytest.approx(wanted.k_crit.interval, rel=1e-3)
    assert math.isnan(meter.estimate().c1.value)


def drawn(rng, steps, signal=1.0):
    """Sums of steps of 8 prompts and 4 completions in 20 dimensions."""
    sums = []
    for _ in range(steps):
        v = 0.7 * rng.standard_normal((8, 1, 20)) + 1.5 * rng.standard_normal((8, 4, 20))
        v[..., 0] += signal
        h = v.reshape(-1, 2, 20).sum(1)
        sums.append(step_sums(h @ h.T, list(np.repeat(np.arange(8), 2)[:, None].repeat(2, 1))))
    return np.array(sums)


def test_a_resumed_run_goes_on():
    whole, _ = run([2] * 4)
    first, _ = run([2] * 4, steps=3)
    state = json.loads(json.dumps(first.state_dict()))

    def resumed(theta):
        meter = NoiseMeter([theta], 100)
        meter.load_state_dict(state)
        return meter

    second, _ = run([2] * 4, start=3, meter=resumed)
    assert repr(second.estimate()) == repr(whole.estimate())
    assert second.taken == whole.taken == whole.steps


def test_adam_s_metric():
    """Of 22 steps or more; an entry that never had a gradient has none."""
    theta = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 3.0]))
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = torch.optim.AdamW([theta], lr=1e-9)
    meter = NoiseMeter([theta, frozen], metric="adam", optimizer=optimizer)
    rows = torch.tensor([[1.0, 0.1, 3.0, 0.0], [2.0, -0.3, 1.0, 0.0]])
    for step in range(25):
        for row in rows:
            row = row + torch.tensor([0.0, 0.0, 0.0, step == 24])
            with meter.micro_batch([int(row[0])]):
                (theta @ row).backward()
        assert meter.step() is (step >= 22)
        assert step >= 22 or "second moments cover fewer than 22" in meter.left_out
        optimizer.step()
        optimizer.zero_grad()
    scaled = rows[:, :3] / (rows.sum(0)[:3].abs() + 1e-8).sqrt() * 2
    assert meter.estimate().steps == 3
    assert meter.estimate().signal.value == pytest.approx(float(scaled[0] @ scaled[1]), rel=1e-4)


def test_checkpointing_autocast_and_bfloat16():
    for dtype, checkpoint in ((torch.float32, True), (torch.bfloat16, False)):
        torch.manual_seed(0)
        layer = torch.nn.Linear(5, 3).to(dtype)
        rows = torch.randn(4, 5).to(dtype)

        def loss(row, layer=layer, checkpoint=checkpoint):
            if checkpoint:
                return torch.utils.checkpoint.checkpoint(layer, row, use_reentrant=False).sum()
            return layer(row).square().sum()

        meter = NoiseMeter(layer.parameters())
        for _ in range(2):
            for place, row in enumerate(rows):
                with meter.micro_batch([place // 2]), torch.autocast("cpu", enabled=checkpoint):
                    loss(row).backward()
            meter.step()
        grads = [torch.autograd.grad(loss(row), list(layer.parameters())) for row in rows]
        h = np.array([torch.cat([g.float().flatten() for g in each]).numpy() for each in grads])
        sums = step_sums(h @ h.T, [np.array([i // 2]) for i in range(4)])
        wanted = estimate_noise(np.stack([sums, sums]))
        # The meter measures the mean over the completions of a step: here the step is their sum.
        assert meter.estimate().signal.value == pytest.approx(16 * wanted.signal.value, rel=2e-2)


def test_refusals():
    theta = torch.nn.Parameter(torch.ones(2))
    meter = NoiseMeter([theta])
    refuses("the step has no micro-batch", meter.step)
    refuses("0 steps count", meter.estimate)
    refuses("no parameter is trained", NoiseMeter, [])
    refuses("metric is 'adam': give the optimizer", NoiseMeter, [theta], metric="adam")
    for prompts in ([], "ab", [[1], [2]]):
        refuses("give one number or text for each completion", meter.begin, prompts)
    refuses("scale is 0", meter.begin, [1], scale=0)
    refuses("no micro-batch is open", meter.end)
    meter.begin(["a"])
    refuses("already open", meter.begin, ["b"])
    refuses("a micro-batch is open", meter.step)
    meter.end()
    refuses("there was no gradient: call loss.backward", meter.step)
    with pytest.raises(TypeError, match="cannot be copied"):
        pickle.dumps(meter)


def test_whatever_names_a_group_will_do():
    """Texts of NumPy or Python, numbers, tensors, beyond 64 bits: the same groups, the same numbers."""
    theta, signals = torch.nn.Parameter(torch.ones(2)), set()
    for kind in (int, str, np.str_, np.uint64, torch.tensor, lambda i: 2**70 + i):
        meter = NoiseMeter([theta])
        for _ in range(2):
            one_step(meter, theta, [kind(i) for i in (0, 0, 1, 1)])
        signals.add(meter.estimate().signal.value)
    assert len(signals) == 1
    for names in ([1.5], [None], [(1, 2)], None, 3):
        refuses("give one number or text for each completion", meter.begin, names)


def test_a_block_without_a_backward_pass_counts_as_zeros():
    theta = torch.nn.Parameter(torch.ones(2))
    skipped, zeros = NoiseMeter([theta]), NoiseMeter([theta])
    for _ in range(2):
        assert one_step(skipped, theta, grads=(1.0, 2.0, None, None))
        assert one_step(zeros, theta, grads=(1.0, 2.0, 0.0, 0.0))
    assert repr(skipped.estimate()) == repr(zeros.estimate())


def test_a_step_that_met_an_error_does_not_count():
    """A loop that catches it goes on with part of a step, whose sum is not what was measured."""
    theta = torch.nn.Parameter(torch.ones(2))
    meter = NoiseMeter([theta])
    with pytest.raises(RuntimeError, match="memory"), meter.micro_batch([0]):
        raise RuntimeError("memory")
    assert not one_step(meter, theta)
    assert one_step(meter, theta)
    # A block inside a block is an error of the inner one.
    with pytest.raises(ValueError, match="already open"), meter.micro_batch([0]):
        meter.begin([1])
    assert not one_step(meter, theta)
    assert one_step(meter, theta)
    assert meter.steps == 2


def test_steps_that_are_not_finite_do_not_count():
    """A GradScaler skips such a step as well; later ones are unscaled by its new scale."""
    theta = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
    meter = NoiseMeter([theta])
    assert not one_step(meter, theta, grads=(1e5, 1.0, 1.0, 1.0))
    for _ in range(2):
        assert one_step(meter, theta, grads=(2.0, 4.0, 6.0, 8.0), scale=2.0)
    assert meter.estimate().signal.value == pytest.approx(2 * 16 * (1 + 2) * (3 + 4) / 4)


def test_gradients_of_zero_and_one_prompt_a_step_raise_nothing():
    theta = torch.nn.Parameter(torch.ones(2))
    silent, single = NoiseMeter([theta]), NoiseMeter([theta])
    for _ in range(12):
        one_step(silent, theta, grads=(0.0,) * 4)
        one_step(single, theta, prompts=(0,) * 4)
    estimate = silent.estimate()
    assert (estimate.signal.value, estimate.k_crit.value) == (0, math.inf)
    # What is not known is not logged as 0.
    assert set(estimate.metrics()) == {"lagged_pairs", "signal", "signal_se", "steps"}
    assert "not known yet: none of 12 steps shows any of it" in str(estimate)
    assert math.isnan(single.estimate().signal.value)
    assert "cannot be separated" in str(single.estimate())
    assert set(single.estimate().metrics()) <= {"phi_over_tau", "steps"} | set(estimate.metrics())


def test_hooks_see_nothing_outside_blocks_and_go_when_removed():
    theta = torch.nn.Parameter(torch.ones(2))
    meter, other = NoiseMeter([theta]), NoiseMeter([theta])
    for _ in range(2):
        theta.sum().backward()
        one_step(other, theta)
        one_step(meter, theta)
    assert meter.estimate().signal.value == other.estimate().signal.value
    # A model is copied and kept without what hangs on it.
    assert not pickle.loads(pickle.dumps(theta))._backward_hooks
    meter.remove()
    other.remove()
    assert not theta._backward_hooks
    refuses("there was no gradient", one_step, meter, theta)


def test_steps_of_one_prompt_are_measured_two_at_a_time():
    """In expectation over both prompts, each by its mean gradient, the signal is that of enumeration."""
    probs, v, _ = terms("rloo")
    means = (probs[..., None, None] * v).sum(1).sum(1)
    theta, sums = torch.nn.Parameter(THETA.clone()), []
    for pair in itertools.product(range(2), repeat=2):
        meter = NoiseMeter([theta])
        for name, x in enumerate(pair):
            with meter.micro_batch([name] * GROUP):
                (theta @ means[x] / GROUP).backward()
            assert meter.step()
            assert meter.steps == meter.taken == name
        sums.append(meter.state_dict()["steps"][0])
    gamma = enumerated("rloo")[2]
    assert estimate_noise(np.array(sums)).signal.value == pytest.approx(gamma, rel=1e-4)


def test_sparse_gradients():
    table = torch.nn.Embedding(5, 2, sparse=True)
    meter = NoiseMeter(table.parameters())
    for _ in range(2):
        for row in range(4):
            with meter.micro_batch([row // 2]):
                table(torch.tensor([row % 2])).sum().backward()
        meter.step()
    # All steps are alike, and so are prompts: no noise is left.
    assert meter.estimate().signal.value == pytest.approx(16.0)
    assert str(meter.estimate()).startswith("The noise is not distinguishable")


def test_the_share_of_the_largest_hundredth():
    theta = torch.nn.Parameter(torch.ones(1))
    meter = NoiseMeter([theta], 25)
    for step in range(30):
        one_step(meter, theta, grads=(1.0, 1.0, 1.0, 10.0 if step == 29 else 1.0))
    state = json.loads(json.dumps(meter.state_dict()))
    again = NoiseMeter([theta], 25)
    again.load_state_dict(state)
    for result in (meter.estimate(), again.estimate()):
        assert result.top_share == pytest.approx(100 / 199)
        assert result.metrics()["top_share"] == result.top_share
    few = NoiseMeter([theta], 24)
    few.load_state_dict(state)
    assert math.isnan(few.estimate().top_share)
    older = state | {"steps": [row[:14] for row in state["steps"]]}
    refuses("another release: it has 14 sums of each step", few.load_state_dict, older)
    assert math.isnan(few.estimate().top_share)


def test_the_sentence():
    rng = np.random.default_rng(3)
    known = estimate_noise(drawn(rng, 100))
    low, high = known.budget_over_critical.interval
    assert (
        str(known)
        == f"A step of 32 completions is {low:.1g} to {high:.1g} times the critical batch size."
    )
    short = estimate_noise(drawn(rng, 16))
    assert re.fullmatch(
        r"A step of 32 completions is [\d.]+ to [\d.]+ times the critical batch size; about \d+ more steps "
        r"make it known to 30%\.", str(short),
    )  # fmt: skip
    assert str(estimate_noise(drawn(rng, 12, 0.0))).startswith("The signal is not yet dist")


ALONE = """
import sys
others = ("numba", "sklearn", "statsmodels", "scipy", "pandas", "transformers", "trl")
sys.modules |= dict.fromkeys(others)
import torch
from ustat_pg.noise import NoiseMeter
theta = torch.nn.Parameter(torch.ones(3))
meter = NoiseMeter([theta])
for _ in range(2):
    for prompt in range(2):
        with meter.micro_batch([prompt]):
            (theta * prompt + theta).sum().backward()
    meter.step()
print(meter.estimate().signal.value)
"""


def test_torch_and_numpy_alone_will_do():
    """A module that stands as None among the loaded ones cannot be imported."""
    assert float(python(ALONE).stdout) == 24


KINDS = ["ddp", "fsdp", "ddp layers", "fsdp layers"]


def by_two():
    """What a meter says, and what one says without a process group, by kind; by one of two processes."""
    dist.init_process_group("gloo")
    said = {kind: with_and_without(kind) for kind in KINDS}
    dist.destroy_process_group()
    return said


def with_and_without(kind):
    kind, _, layers = kind.partition(" ")

    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))

    def loss(model, rows):
        return model(rows).square().sum() / 12

    model, one = made(), made()
    if kind == "fsdp":
        model = fully_shard(model)
    elif kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    meter = NoiseMeter(model if layers else model.parameters(), numbers=16)
    alone = NoiseMeter(one if layers else one.parameters(), numbers=16)
    names = [[k // 2 if kind == "ddp" else f"p{k // 2}"] for k in range(4)]
    for step in range(3):
        rows = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(step))
        for k in range(4):
            with meter.micro_batch(names[k] * 3):
                loss(model, rows[dist.get_rank(), k]).backward()
        meter.step()
        model.zero_grad()
        if kind == "ddp" or layers:
            for p, k in itertools.product(range(2), range(4)):
                with alone.micro_batch(names[k] * 3):
                    (loss(one, rows[p, k]) / 2).backward()
        else:
            for k in range(4):
                with alone.micro_batch(names[k] * 6):
                    ((loss(one, rows[0, k]) + loss(one, rows[1, k])) / 2).backward()
        with patch("torch.distributed.is_initialized", return_value=False):
            alone.step()
        one.zero_grad()
    return meter.estimate().metrics(), alone.estimate().metrics()


def test_two_processes_give_the_numbers_of_one():
    one, two = two_processes(by_two)
    for kind in KINDS:
        (first, alone), (second, _) = one[kind], two[kind]
        assert first == second, kind
        assert first == pytest.approx(alone, rel=1e-3), kind
