"""Gradients of single completions by hooks on layers are those of one backward pass for each."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.support.models import random_model
from tests.support.refusals import refuses
from ustat_pg.noise import NoiseMeter

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

IDS = torch.tensor([[2, 5, 3, 4, 1], [4, 4, 2, 3, 0], [3, 1, 2, 5, 5], [5, 5, 1, 0, 0]])
FACTORS = torch.tensor([-1.0, 0.5, 1.0, 2.0])
WHOLE = {"width": 10**3, "numbers": 10**6}
"""No side is projected, and a sketch keeps all."""


class Scaled(nn.Module):
    """Weights that no hook knows."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 1, 8))

    def forward(self, x):
        return x * self.factor


class Tiny(nn.Module):
    """An embedding that is the output's too, a layer that is used twice, both norms, and attention."""

    def __init__(self, kind=""):
        super().__init__()
        self.kind = kind
        self.table = nn.Embedding(6, 8, padding_idx=0)
        self.first, self.second = nn.LayerNorm(8), nn.RMSNorm(8)
        self.scaled = Scaled() if kind == "unknown" else nn.Identity()
        self.read, self.shared, self.last = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 6)
        self.last.weight = self.table.weight

    def block(self, x):
        q, k, v = self.read(self.first(x)).chunk(3, dim=-1)
        x = x + self.shared(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.scaled(x + self.shared(self.second(x)).tanh())

    def forward(self, ids):
        x = self.table(ids)
        if self.kind.startswith("checkpoint"):
            x = checkpoint(self.block, x, use_reentrant=self.kind == "checkpoint, reentrant")
        else:
            x = self.block(x)
        return x @ self.last.weight.T if self.kind == "fused" else self.last(x)


def model(kind):
    torch.manual_seed(0)
    if not kind.startswith(("Qwen", "GPT", "LoRA")):
        made = Tiny(kind)
        return made.bfloat16() if kind == "bfloat16" else made
    pytest.importorskip("transformers")
    heads = {} if kind == "GPT2" else {"num_key_value_heads": 1}
    tied = {"tie_word_embeddings": kind != "Qwen3"}
    name = "Qwen2" if kind == "LoRA" else kind
    made = random_model(name, vocab_size=6, **heads, **tied)
    if kind == "LoRA":
        peft = pytest.importorskip("peft")
        made = peft.get_peft_model(
            made, peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        )
    return made


def loss(made, ids, factors):
    """The sum over completions, with a factor of each."""
    with torch.autocast(
        "cpu", dtype=torch.bfloat16, enabled=getattr(made, "kind", "") == "autocast"
    ):
        logits = made(ids)
        logits = getattr(logits, "logits", logits)
    logs = logits.float().log_softmax(-1)[:, :-1]
    own = logs.gather(-1, ids[:, 1:, None])[..., 0] * (ids[:, 1:] != 0)
    return own.sum(1) @ factors


def by_hand(made):
    """Gradients of each completion's loss, (n, d)."""
    rows = []
    for k in range(4):
        made.zero_grad()
        loss(made, IDS[k : k + 1], FACTORS[k : k + 1]).backward()
        parts = [p.grad if p.grad is not None else torch.zeros_like(p)
                 for p in made.parameters() if p.requires_grad]  # fmt: skip
        rows.append(torch.cat([part.float().flatten() for part in parts]))
    made.zero_grad()
    return torch.stack(rows).numpy()


def rows(meter, made, parts=(4,)):
    """What a meter holds of one step."""
    meter.clear()
    for ids, factors in zip(IDS.split(parts), FACTORS.split(parts), strict=True):
        with meter.micro_batch(list(range(len(ids)))):
            loss(made, ids, factors).backward()
    made.zero_grad()
    held = torch.cat(meter._sketches)
    if meter.numbers == WHOLE["numbers"]:
        signs = torch.zeros(1, 1, held.shape[1])
        meter._sketch.add(signs, 0, torch.ones(1, held.shape[1]))
        held = held * signs[0]
    return held.numpy()


KINDS = {
    "plain": 1e-5, "checkpoint": 1e-5, "checkpoint, reentrant": 1e-5, "autocast": 2e-2,
    "bfloat16": 2e-2, "Qwen2": 1e-5, "Qwen3": 1e-5, "LoRA": 1e-5,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [(4,), (1, 3)])
def test_gradients_of_completions_are_those_of_a_backward_pass_each(kind, parts):
    """Not a warning, so that no parameter is left out."""
    made = model(kind)
    wanted, found = by_hand(made), rows(NoiseMeter(made, **WHOLE), made, parts)
    assert np.abs(found - wanted).max() < KINDS[kind] * np.abs(wanted).max()


def test_products_of_projections_have_the_mean_of_exact_ones():
    made = model("plain")
    exact = by_hand(made)
    exact = exact @ exact.T
    meter = NoiseMeter(made, width=5, numbers=200)
    drawn = []
    for meter._count in range(200):
        held = rows(meter, made)
        drawn.append(held @ held.T)
    error = np.std(drawn, axis=0) / len(drawn) ** 0.5
    assert (np.abs(np.mean(drawn, axis=0) - exact) < 4 * error).all()
    assert error.max() < 0.05 * np.trace(exact)


def test_what_hooks_do_not_see_is_left_out_and_named():
    """Weights of no layer, a matrix that is used without a call, positions that all completions share."""
    names = {
        "unknown": "scaled.factor", "fused": "table.weight", "GPT2": "transformer.wpe.weight",
    }  # fmt: skip
    for kind, name in names.items():
        made = model(kind)
        sizes = {k: p.numel() for k, p in made.named_parameters()}
        first = sum(list(sizes.values())[: list(sizes).index(name)])
        wanted = by_hand(made)
        total = wanted.sum(0)
        seen = np.delete(np.arange(len(total)), np.arange(first, first + sizes[name]))
        share = 1 - total[seen] @ total[seen] / (total @ total)
        meter = NoiseMeter(made, **WHOLE)
        with pytest.warns(UserWarning, match=f"without {name}, {100 * share:.2g}% of the squared"):
            found = rows(meter, made)
        np.testing.assert_allclose(
            found[:, seen], wanted[:, seen], atol=1e-5 * np.abs(wanted).max()
        )
        assert not found[:, first : first + sizes[name]].any()
        # Single completions are as they are accumulated; and there is one warning.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rows(meter, made)
        alone = rows(NoiseMeter(made, **WHOLE), made, (1,) * 4)
        np.testing.assert_allclose(alone, wanted, atol=1e-5 * np.abs(wanted).max())


def test_refusals():
    made = model("plain")
    meter = NoiseMeter(made)
    value = loss(made, IDS, FACTORS)
    with (
        pytest.warns(UserWarning, match="is off.*run the forward pass inside the block"),
        meter.micro_batch([1] * 4),
    ):
        value.backward()
    assert not meter.step()
    meter = NoiseMeter(made)
    refuses("metric 'adam' needs whole", NoiseMeter, made, metric="adam", optimizer=object())
    refuses("width is 0", NoiseMeter, made, width=0)
    meter.remove()
    assert not any(m._forward_hooks for m in made.modules())
    assert not any(p._backward_hooks for p in copy.copy(made).parameters())
