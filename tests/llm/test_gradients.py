"""Norms in a layer and sketches are those of gradients by plain autograd."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.models import random_model  # noqa: E402
from ustat_pg.llm.gradients import LayerNorms, SketchedGradients  # noqa: E402
from ustat_pg.llm.scores.sums import Sketch  # noqa: E402

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


def test_a_sketch_is_that_of_the_whole_gradient_of_the_passes_it_is_told_of():
    model = random_model("Qwen2", vocab_size=6, num_key_value_heads=2, tie_word_embeddings=True)
    parameters = list(model.parameters())
    rows = losses(model)
    found = SketchedGradients(parameters, 16, seed=5)
    for row, step in ((rows[0], 3), (rows[1], 3), (rows[0], 4)):
        gradients = torch.autograd.grad(row, parameters, retain_graph=True)
        whole = torch.cat([each.flatten() for each in gradients])[None]
        wanted = torch.zeros(1, 1, 16)
        Sketch(whole.shape[1], 16, whole, [5, step]).add(wanted, 0, whole)
        seen = found.begin(step, torch.device("cpu"))
        row.backward(retain_graph=True)
        found.end()
        rows[2].backward(retain_graph=True)
        assert torch.allclose(seen, wanted[0, 0], rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))
    found.remove()
