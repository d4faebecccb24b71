"""Norms in a layer and inner products of sketches are those of gradients by plain autograd."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.models import random_model  # noqa: E402
from ustat_pg.llm.gradients import LayerNorms, Sketch  # noqa: E402

IDS = torch.tensor([[2, 5, 3, 4, 1], [4, 4, 2, 3, 5], [0, 1, 2, 5, 5]])


def losses(model):
    """One number for each output."""
    return model(input_ids=IDS, use_cache=False).logits.double().log_softmax(-1)[:, 1:, 3].sum(1)


@pytest.mark.parametrize("kind", ["Qwen2", "GPT2"])
def test_norms_of_each_output_in_every_layer(kind):
    heads = {"num_key_value_heads": 2} if kind == "Qwen2" else {}
    model = random_model(kind, vocab_size=6, **heads)
    found = LayerNorms(model, seed=0)
    rows = losses(model)
    wanted = [
        [float(torch.autograd.grad(row, layer.weight, retain_graph=True)[0].square().sum()) for row in rows]
        for layer in found.layers
    ]  # fmt: skip
    seen = []
    for step in range(40):
        found.begin(step, lambda squared: seen.append(squared.tolist()))
        losses(model).sum().backward()
        losses(model).detach()
    found.end()
    losses(model).sum().backward()
    found.remove()
    assert len(seen) == 40
    which = [int(np.argmin([abs(one[0] - each[0]) for each in wanted])) for one in seen]
    np.testing.assert_allclose(seen, [wanted[place] for place in which], rtol=1e-4)
    # Every linear layer but the output embedding has its turn.
    assert set(which) == set(range(len(found.layers)))
    assert len(found.layers) == (14 if kind == "Qwen2" else 8)


def test_inner_products_of_sketches_are_unbiased():
    model = random_model("Qwen2", vocab_size=6, num_key_value_heads=2, tie_word_embeddings=True)
    parameters = list(model.parameters())
    rows = losses(model)
    exact = [
        torch.cat([p.flatten() for p in torch.autograd.grad(row, parameters, retain_graph=True)])
        for row in rows[:2]
    ]
    found = []
    for seed in range(60):
        sketch = Sketch(parameters, 16, seed)
        squares = []
        for row in rows[:2]:
            squares.append(sketch.begin(3, torch.device("cpu")))
            row.backward(retain_graph=True)
        sketch.end()
        rows[2].backward(retain_graph=True)
        sketch.remove()
        found.append(
            [float((a * b).sum()) for a, b in ((squares[0], squares[1]), [squares[0]] * 2)]
        )
    wanted = [float(exact[0] @ exact[1]), float(exact[0] @ exact[0])]
    errors = np.std(found, axis=0, ddof=1) / 60**0.5
    assert (np.abs(np.mean(found, axis=0) - wanted) < 4 * errors).all()
    assert errors[1] < wanted[1] / 20
