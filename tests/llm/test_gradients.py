"""Norms in a layer and sketches are those of gradients by plain autograd."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.models import random_model  # noqa: E402
from ustat_pg.llm.monitor import LayerNorms  # noqa: E402

IDS = torch.tensor([[2, 5, 3, 4, 1], [4, 4, 2, 3, 5], [0, 1, 2, 5, 5]])


def losses(model):
    """One number for each output."""
    return model(input_ids=IDS, use_cache=False).logits.double().log_softmax(-1)[:, 1:, 3].sum(1)


def norms_by_hand(rows, weights):
    """‖d row/d W‖² of each weight, (weights, rows)."""
    return np.array(
        [
            [float(torch.autograd.grad(row, weight, retain_graph=True)[0].square().sum()) for row in rows]
            for weight in weights
        ]
    )  # fmt: skip


def norms_seen(model, found, steps):
    """What is seen at each step, added up, (steps, rows)."""
    seen = np.zeros((steps, len(IDS)))
    for step in range(steps):

        def see(squared, step=step):
            seen[step] += squared.numpy()

        found.begin(step, see)
        losses(model).sum().backward()
        losses(model).detach()
    found.end()
    losses(model).sum().backward()
    found.remove()
    losses(model).sum().backward()
    return seen


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["Qwen2", "GPT2"])
def test_norms_of_each_output_in_linear_layers_and_the_input_embedding(kind, tied):
    heads = {"num_key_value_heads": 2} if kind == "Qwen2" else {}
    model = random_model(kind, vocab_size=6, tie_word_embeddings=tied, **heads)
    found = LayerNorms(model, seed=0)
    assert len(found.layers) == (14 if kind == "Qwen2" else 8)
    rows = losses(model)
    table = model.get_input_embeddings()
    if tied:
        # Its use as an input alone.
        apart = copy.deepcopy(model)
        apart.get_output_embeddings().weight = torch.nn.Parameter(table.weight.detach().clone())
        always = norms_by_hand(losses(apart), [apart.get_input_embeddings().weight])[0]
    else:
        always = norms_by_hand(rows, [table.weight])[0]
    wanted = norms_by_hand(rows, [layer.weight for layer in found.layers])
    turns = len(found.layers)
    seen = norms_seen(model, found, 2 * turns)
    each = (seen - always) / turns
    which = [int(np.argmin(np.abs(wanted - one).max(1))) for one in each]
    np.testing.assert_allclose(each, wanted[which], rtol=1e-3, atol=1e-5 * wanted.max())
    # Every linear layer has its turn in each round, and rounds have orders of their own.
    assert sorted(which[:turns]) == sorted(which[turns:]) == list(range(turns))
    assert which[:turns] != which[turns:]
    np.testing.assert_allclose(seen[:turns].mean(0), always + wanted.sum(0), rtol=1e-4)
