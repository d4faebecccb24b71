"""Squared norms of scores of a plain module, against one backward pass for each example."""

from __future__ import annotations

import pytest

from tests.support.commands import python
from tests.support.networks import WITHOUT_TORCH
from tests.support.refusals import refuses
from ustat_pg.estimators import norm_weighted, squared_score_norms

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def one_by_one(model, inputs, outputs, log):
    """‖s‖² by autograd, an example at a time."""
    found = []
    for x, y in zip(inputs, outputs, strict=True):
        model.zero_grad()
        log(model(x[None])[0], y).backward()
        found.append(sum(float((p.grad**2).sum()) for p in model.parameters() if p.requires_grad))
    return torch.tensor(found)


def choice(out, y):
    return torch.log_softmax(out, -1)[y]


def policy(**options):
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)).double()


@pytest.mark.parametrize("chunk_size", [None, 1, 3, 100])
def test_choices(chunk_size):
    model, x, y = policy(), torch.randn(7, 3).double(), torch.randint(4, (7,))
    found = squared_score_norms(model, x, y, chunk_size=chunk_size)
    torch.testing.assert_close(found, one_by_one(model, x, y, choice).double())
    assert not found.requires_grad
    # On its way to advantages: outputs of one prompt in a group of 7.
    rewards = (y == 1).double()
    assert norm_weighted(rewards, squared_norms=found).shape == (7,)


def test_frozen_parameters_do_not_count():
    model, x, y = policy(), torch.randn(5, 3).double(), torch.randint(4, (5,))
    whole = squared_score_norms(model, x, y)
    model[0].requires_grad_(False)
    found = squared_score_norms(model, x, y)
    torch.testing.assert_close(found, one_by_one(model, x, y, choice).double())
    assert bool((found < whole).all())
    model.requires_grad_(False)
    refuses("no parameter that requires a gradient", squared_score_norms, model, x, y)


class Reader(nn.Module):
    """Logits of every place of a row of tokens."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 6), nn.Linear(6, 5)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, ids):
        return self.head(torch.cumsum(self.embed(ids), dim=1) * self.scale)


def test_tokens_past_the_end_do_not_count():
    model = Reader().double()
    ids, outputs = torch.randint(5, (6, 4)), torch.randint(5, (6, 4))
    lengths = torch.tensor([1, 2, 3, 4, 4, 2])
    mask = (torch.arange(4) < lengths[:, None]).double()

    def tokens(out, row):
        y, inside = row
        return (torch.log_softmax(out, -1).gather(-1, y[:, None])[:, 0] * inside).sum()

    wanted = one_by_one(model, ids, list(zip(outputs, mask, strict=True)), tokens)
    found = squared_score_norms(model, ids, outputs, mask=mask)
    torch.testing.assert_close(found, wanted.double())
    assert bool((squared_score_norms(model, ids, outputs)[:3] != found[:3]).all())


def test_a_law_of_ones_own():
    model = nn.Linear(2, 1).double()
    x, y = torch.randn(4, 2).double(), torch.randn(4, 1).double()

    def normal(out, output):
        return -0.5 * ((output - out) ** 2).sum()

    found = squared_score_norms(model, x, y, log_prob=normal)
    error = (y - model(x).detach())[:, 0]
    torch.testing.assert_close(found, error**2 * (1 + (x**2).sum(1)))


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.5), nn.BatchNorm1d(3)], ids=["dropout", "batch norm"]
)
def test_models_in_training_mode_that_mix_are_refused(layer):
    model = nn.Sequential(layer, nn.Linear(3, 4))
    x, y = torch.randn(4, 3), torch.randint(4, (4,))
    refuses(r"call model.eval\(\)", squared_score_norms, model, x, y)
    found = squared_score_norms(model.eval(), x, y)
    torch.testing.assert_close(found, one_by_one(model, x, y, choice))


def test_what_is_refused():
    model, x, y = policy(), torch.zeros(3, 3).double(), torch.zeros(3, dtype=torch.int64)
    refuses("model is a function", squared_score_norms, choice, x, y)
    refuses("outputs have 2 rows and inputs 3", squared_score_norms, model, x, y[:2])
    refuses("chunk size is 0", squared_score_norms, model, x, y, chunk_size=0)
    own = {"mask": torch.ones(3, 1), "log_prob": choice}
    refuses("mask is for", squared_score_norms, model, x, y, **own)


def test_without_torch_it_says_so():
    done = python(
        "import sys\n" + WITHOUT_TORCH + "from ustat_pg.estimators import squared_score_norms\n"
        "squared_score_norms(None, [], [])"
    )
    assert "squared_score_norms needs torch: pip install 'ustat_pg[torch]'" in done.stderr
