"""The autograd engine on its own: its gradients, its memory, its device."""

import numpy as np
import pytest

from ustat_pg.engines import (
    Distance,
    Estimator,
    GradientCell,
    Projection,
    SquaredError,
    SquaredProjection,
)
from ustat_pg.engines.base import Replications
from ustat_pg.engines.gradients import reference
from ustat_pg.execution import memory
from ustat_pg.policies import TabularSoftmax
from ustat_pg.problems import SoftmaxBandit, bracket_matching, random_problem
from ustat_pg.validation import InputError, changed

torch = pytest.importorskip("torch")

from simulations.engines import autograd  # noqa: E402
from ustat_pg.policies.network import CausalTransformer  # noqa: E402
from ustat_pg.policies.transformer import TransformerPolicy  # noqa: E402


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """Nothing kept from other tests."""
    monkeypatch.setattr(autograd, "_KEPT", {})


BRACKETS = bracket_matching(1, 2, end=True, graded=True)
POLICY = TransformerPolicy.initial(BRACKETS.space, BRACKETS.prompts, width=4, seed=2)
NETWORK = BRACKETS.at(POLICY)
LINEAR = random_problem(1, "linear", contexts=3)

NAMES = ("vanilla", "group-mean", "oracle", "minimum-variance", "grpo", "norm-weighted")
MANY = [
    *(SquaredError(Estimator(name)) for name in NAMES),
    Projection(Estimator("grpo"), 1),
    SquaredProjection(Estimator("grpo"), 2),
    Distance(Estimator("grpo"), Estimator("oracle")),
]
ONE = [SquaredError(Estimator("grpo"))]


# Gradients.


def test_neither_scores_nor_their_products_are_asked_of_the_policy(monkeypatch):
    """What it finds is evidence of its own."""
    cell = GradientCell(SoftmaxBandit.tabular([0.4, 0.6], [[0.1, 0.5]] * 2, [[[1.0], [0.2]]] * 2,
                                      np.ones((2, 2, 1))), 3)  # fmt: skip
    names = ("vanilla", "grpo", "oracle", "norm-weighted")
    quantities = [SquaredError(Estimator(name)) for name in names]
    wanted = cell.measure("reference", quantities, replications=20).mean
    for name in ("combine", "inner", "gram", "scores", "mean_combination", "squared_norms"):
        monkeypatch.setattr(TabularSoftmax, name, None)
    cell = GradientCell(changed(cell.problem), 3)
    result = cell.measure("autograd", quantities, replications=20).mean
    assert result == pytest.approx(wanted, rel=1e-12)


def test_a_function_sees_what_the_reference_shows_it():
    """Each outcome at least once; how often, and in which order, no engine promises."""
    seen = []

    def own(rewards, draws):
        seen.append(draws)
        return rewards - draws.squared_norms * rewards.mean(axis=-1, keepdims=True)

    cell = GradientCell(NETWORK, 3, 2)
    quantities = [SquaredError(Estimator("own", function=own))]
    one, two = (
        engine.measure(cell, quantities, Replications(count=8)) for engine in (reference, autograd)
    )
    assert one.mean == pytest.approx(two.mean, rel=1e-12)
    outcomes, norms = zip(*map(_rows, seen[:2]), strict=True)
    assert np.array_equal(*outcomes)
    assert norms[1] == pytest.approx(norms[0], rel=1e-10)


def _rows(draws):
    """The different outcomes that ``draws`` show, in order: numbers, and the squared norms."""
    shown = [draws.contexts, draws.arms, draws.rewards]
    rows = np.concatenate([each.reshape(len(draws.contexts), -1) for each in shown], axis=1)
    rows, kept = np.unique(rows, axis=0, return_index=True)
    return rows, draws.squared_norms[kept]


def test_a_sum_that_is_not_its_surrogates_gradient_is_refused(monkeypatch):
    cell = GradientCell(NETWORK, 3, 2)
    here = autograd.prepared(NETWORK, "cpu")
    here.gradients[3] *= 1 + 1e-6
    with pytest.raises(
        ArithmeticError, match=r"sums of outputs' gradients are .* off the gradients"
    ):
        autograd.measure(cell, MANY, Replications(2, 7, 30))


# Memory.


@pytest.mark.parametrize("share", [0.0, autograd.KEPT_SHARE])
def test_values_do_not_depend_on_the_chunk(monkeypatch, share):
    monkeypatch.setattr(autograd, "KEPT_SHARE", share)
    cell = GradientCell(NETWORK, 3, 2)
    whole = autograd.measure(cell, MANY, Replications(2, 7, 30))
    for allowed in (2**20, 2**16, 1):
        monkeypatch.setattr(memory, "MEMORY", allowed)
        result = autograd.measure(cell, MANY, Replications(2, 7, 30))
        assert result.mean == pytest.approx(whole.mean, rel=1e-10, abs=1e-14)
        assert result.products == pytest.approx(whole.products, rel=1e-9, abs=1e-13)


def passes_of(monkeypatch, owner, name, cell, replications):
    """How often a method is called while a block is measured."""
    calls, method = [], getattr(owner, name)

    def counted(*args):
        calls.append(args)
        return method(*args)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, counted)
        autograd.measure(cell, MANY, Replications(count=replications))
    return len(calls)


def test_the_network_runs_a_few_times_however_many_replications(monkeypatch):
    """Twice for the target, once for the gradients of its outputs, once for a block's surrogates."""
    for group, replications in ((2, 20), (3, 4000)):
        cell = GradientCell(changed(NETWORK), group)
        monkeypatch.setattr(autograd, "_KEPT", {})
        for passes in (4, 1):
            ran = passes_of(monkeypatch, CausalTransformer, "forward", cell, replications)
            assert ran == passes


def test_a_gpu_takes_a_block_at_once_where_its_memory_holds_it(monkeypatch):
    """The sizes of passes, by a GPU's report of its memory; there is none: the passes are the CPU's."""
    cell, gpu = GradientCell(NETWORK, 3, 2), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    pieces = {}
    for free in (2**36, 2**18, 1):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 2**37))
        with monkeypatch.context() as patch:
            patch.setattr(autograd, "at_once", lambda device, *size: memory.at_once(gpu, *size))
            pieces[free] = passes_of(patch, autograd.Prepared, "values", cell, 200)
    assert pieces[2**36] == 1 < pieces[2**18] < pieces[1] == 200


READS = (
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "item",
    "tolist",
    "cpu",
    "numpy",
    "__array__",
)


@pytest.mark.parametrize("share", [0.0, autograd.KEPT_SHARE])
def test_nothing_of_a_block_is_read_but_its_sums(monkeypatch, share):
    """What a first block looks at, of a problem and its estimators, no later one does."""
    monkeypatch.setattr(autograd, "KEPT_SHARE", share)
    quantities = [*MANY, *(SquaredError(Estimator(name)) for name in ("std", "pass-at-k:2"))]
    for cell in (GradientCell(NETWORK, 3, 2), GradientCell(LINEAR, 3, 4)):
        here = autograd.prepared(cell.problem, "cpu")
        first = here.sums(cell, quantities, Replications(2, 0, 30))
        with monkeypatch.context() as patch:
            for name in READS:
                patch.setattr(torch.Tensor, name, None)
            again = here.sums(cell, quantities, Replications(2, 0, 30))
            here.sums(cell, quantities, Replications(2, 30, 30))
        assert torch.equal(first, again)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_is_waited_for_once_a_block():
    cell = GradientCell(changed(NETWORK), 3, 2, device="cuda")
    here, block = autograd.prepared(cell.problem, "cuda"), Replications(2, 0, 30)
    here.sums(cell, MANY, block)
    torch.cuda.set_sync_debug_mode("error")
    try:
        sums = here.sums(cell, MANY, block)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    there = autograd.prepared(cell.problem, "cpu").sums(cell, MANY, block)
    assert sums.cpu().numpy()[1:] == pytest.approx(there.numpy()[1:], rel=1e-11)


def test_rewards_that_an_estimator_does_not_take_are_refused_in_the_first_block():
    problem = random_problem(2, "plain")
    assert not problem.binary
    table = Estimator("count-table:0.5,0,0,-0.5")
    for _ in range(2):
        with pytest.raises(InputError, match="a table by counts needs rewards that are 0 or 1"):
            GradientCell(problem, 2).measure("autograd", [SquaredError(table)], replications=5)


# Devices.


@pytest.mark.parametrize("problem", [NETWORK, LINEAR], ids=["network", "linear"])
def test_nothing_is_made_on_another_device(problem):
    """A tensor made without a device would land on the default one and fail."""
    own = Estimator("own", function=lambda z, draws: z * draws.squared_norms)
    even = problem.restrict(range(3), uniform=True)
    with torch.device("meta"):
        for cell in (GradientCell(problem, 3, 2), GradientCell(even, 3, 2, "without-replacement")):
            for quantities in (ONE, [*MANY, SquaredError(own)]):
                autograd.measure(cell, quantities, Replications(count=3))
