"""Scores through hooks are what differentiation gives, whatever the architecture, padding or memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.models import output_by_hand, random_model
from tests.support.refusals import refuses
from ustat_pg.execution.memory import ChunkWarning
from ustat_pg.llm.scores import Asked, Scores, layers
from ustat_pg.llm.scores.sums import squares
from ustat_pg.noise import loops
from ustat_pg.noise.sketch import Sketch, by_windows

VOCABULARY, WIDTH = 40, 24
COMMON = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 36}
COMMON |= {"bos_token_id": None, "eos_token_id": 1}
SHAPE = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
MODELS = {
    "Qwen2": ("Qwen2", SHAPE | UNTIED),
    "Qwen2 tied": ("Qwen2", SHAPE | TIED),
    "Qwen3": ("Qwen3", SHAPE | TIED | {"head_dim": 8}),
    "Llama": ("Llama", SHAPE | UNTIED | {"attention_bias": True, "mlp_bias": True}),
    "GPT-2": ("GPT2", {"n_head": 4}),
}
LENGTHS = (1, 4, 7, 7, 3, 9)


def built(name="Qwen2 tied", dtype=torch.float64, seed=0):
    kind, config = MODELS[name]
    model = random_model(kind, seed=seed, **COMMON | config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        for parameter in model.parameters():
            # Norms and biases begin at one and zero, where much that is wrong does not show.
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.to(dtype).eval()


GENERATOR = np.random.default_rng(0)
PROMPT, *COMPLETIONS = (tuple(GENERATOR.integers(0, VOCABULARY, n).tolist()) for n in (5, *LENGTHS))
COMPLETIONS.append(COMPLETIONS[0])


def off(found, expected):
    """The largest difference, relative to the largest entry."""
    found, expected = (
        x.double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, dtype=float)
        for x in (found, expected)
    )
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


FIELDS = ("squared_norms", "scores", "token_proxy", "surprise", "surprise_variance")


def differences(one, other):
    return {name: off(getattr(one, name), getattr(other, name)) for name in FIELDS}


def agrees_with_the_loop(model, scores, **options):
    loop = everything(Scores(model, method="loop", **options))
    assert max(differences(everything(scores), loop).values()) < 1e-12


def everything(scores):
    return scores.of(PROMPT, COMPLETIONS)


def gram(model, completions=COMPLETIONS, **options):
    """Inner products of scores that are kept whole."""
    made = Scores(model, sketch=10**6, **options).of(PROMPT, completions).scores.astype(float)
    return made @ made.T


# Against differentiation.


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("name", MODELS)
def test_hooks_and_loop_agree(name, dtype, limit):
    model = built(name, dtype)
    loop, hooks = (everything(Scores(model, method=method)) for method in ("loop", "hooks"))
    assert max(differences(hooks, loop).values()) < limit
    for method in ("hooks", "loop"):
        alone = Scores(model, method=method, sketch=None)
        assert off(alone.norms(PROMPT, COMPLETIONS), loop.squared_norms) < limit
        assert alone.of(PROMPT, COMPLETIONS).scores.shape == (len(COMPLETIONS), 0)


@pytest.mark.parametrize("method", ["hooks", "loop"])
@pytest.mark.parametrize("name", ["Qwen2 tied", "GPT-2"])
def test_both_agree_with_plain_differentiation(name, method):
    """One gradient at a time, so that padding changes nothing; parameters in their order."""
    model = built(name)
    listed = [output_by_hand(model, PROMPT, completion) for completion in COMPLETIONS]
    table = np.array([score for _, score, _ in listed])
    scores = Scores(model, method=method, sketch=10**6)
    assert scores.names == tuple(name for name, _ in model.named_parameters())
    assert scores.d == table.shape[1]
    result = everything(scores)
    assert off(result.squared_norms, (table**2).sum(axis=1)) < 1e-12
    # A sketch of more numbers than parameters is the score, entries with a sign.
    assert off(np.abs(result.scores), np.abs(table)) < 1e-12
    assert off(result.scores @ result.scores.T, table @ table.T) < 1e-12
    assert off(result.token_proxy, [proxy for _, _, proxy in listed]) < 1e-12


# Several prompts at once.


def asked(*names):
    """Prompts of different lengths, with as many completions and sums as come."""
    generator, result = np.random.default_rng(2), []
    for x, name in enumerate(names):
        prompt, *rows = (generator.integers(0, VOCABULARY, n) for n in (3 + 2 * x, 4, 1, 6, 9 - x))
        rows = [*rows[x % 2 :], rows[-1]]
        factors = [generator.normal(size=len(row)) for row in rows] if x == 1 else None
        result.append(Asked(prompt.tolist(), [r.tolist() for r in rows], factors, name))
    return result


def at_once(monkeypatch, tokens=10**6):
    """A CPU that takes several prompts as a GPU does."""
    monkeypatch.setattr("ustat_pg.llm.scores.passes._TOKENS", {"cpu": tokens})


def each(scores, prompts):
    return [scores.of(p.prompt_ids, p.completion_ids, p.token_weights) for p in prompts]


@pytest.mark.parametrize("name", ["Qwen2 tied", "Llama", "GPT-2"])
def test_prompts_at_once_give_what_each_does_alone(name, monkeypatch):
    model, prompts = built(name), asked("a", "b", "c", "d")
    # So much longer that padding the others to it would cost more than a pass.
    prompts.append(Asked(PROMPT * 9, COMPLETIONS))
    expected = each(Scores(model, method="loop"), prompts)
    scores = Scores(model)
    scores.norms(PROMPT, COMPLETIONS)
    tried = out_beyond(monkeypatch, 99)
    at_once(monkeypatch)
    found = list(scores.many(iter(prompts)))
    assert tried == [sum(tried) - 6, 6]
    for one, other in zip(found, expected, strict=True):
        assert max(differences(one, other).values()) < 1e-12


def test_prompts_that_memory_does_not_hold_at_once_are_split(needs, monkeypatch):
    model, size = needs
    prompts = [Asked(PROMPT, COMPLETIONS, name=name) for name in "abcd"]
    (whole,) = each(Scores(model, sketch=16), prompts[:1])
    for held, blocks in ((24.5, [24]), (12.5, [12, 12]), (6.5, [6] * 4), (2.5, [2] * 12)):
        scores = Scores(model, memory=allowing(held * size), sketch=16)
        scores.norms(PROMPT, COMPLETIONS[:2])
        with monkeypatch.context() as patch:
            tried = out_beyond(patch, 99)
            at_once(patch)
            found = list(scores.many(prompts))
        assert tried == blocks
        for one in found:
            assert max(differences(one, whole).values()) < 1e-12
    # Where it runs out all the same too.
    scores = Scores(model, sketch=16)
    scores.norms(PROMPT, COMPLETIONS[:2])
    tried = out_beyond(monkeypatch, 7)
    at_once(monkeypatch)
    with pytest.warns(ChunkWarning) as warned:
        found = list(scores.many(prompts))
    assert ["12" in str(w.message) for w in warned] == [True, True]
    assert tried[-4:] == [6] * 4
    assert max(differences(found[3], whole).values()) < 1e-12


def test_a_prompt_is_refused_by_its_own_name_when_it_is_its_turn(monkeypatch):
    model = built("Qwen2")
    own = min({*range(VOCABULARY)}.difference(PROMPT, *COMPLETIONS))
    model.model.embed_tokens.weight.data[own] = float("nan")
    good, bad = (Asked((*PROMPT, last), COMPLETIONS, name=str(last)) for last in (PROMPT[0], own))
    at_once(monkeypatch)
    made = Scores(model).many([good, bad, good])
    assert np.isfinite(next(made).squared_norms).all()
    refuses(f"prompt '{own}': scores are not finite", next, made)


@pytest.mark.parametrize("planted", ["targets", "factors"])
def test_padding_that_counts_changes_what_is_given(planted, monkeypatch):
    """The equalities above see it: of one prompt and of several."""
    from ustat_pg.llm.scores.tokens import Batch

    original = getattr(Batch, planted)

    def unmasked(self):
        made = original(self)
        return (made[0], made[1] | True) if planted == "targets" else torch.ones_like(made)

    model, prompts = built(), asked("a", "b")
    right = each(Scores(model, method="loop"), prompts)
    scores = Scores(model)
    scores.norms(PROMPT, COMPLETIONS)
    at_once(monkeypatch)
    monkeypatch.setattr(Batch, planted, unmasked)
    field = "token_proxy" if planted == "targets" else "squared_norms"
    for found in (list(scores.many(prompts)), each(scores, prompts)):
        for one, other in zip(found, right, strict=True):
            assert off(getattr(one, field), getattr(other, field)) > 1e-3


def test_surprise_is_the_log_probability_less_what_it_is_on_average():
    """Every token of one position: -log π - H has the mean 0, and the variance that is said."""
    model = built()
    for method in ("hooks", "loop"):
        result = Scores(model, method=method).of(PROMPT, [(v,) for v in range(VOCABULARY)])
        with torch.no_grad():
            logits = model(torch.tensor([PROMPT])).logits[0, -1]
        log = torch.log_softmax(logits, dim=-1).numpy()
        entropy = -(np.exp(log) * log).sum()
        assert off(result.surprise, -log - entropy) < 1e-12
        assert np.exp(log) @ result.surprise == pytest.approx(0, abs=1e-12)
        assert (
            off(result.surprise_variance, np.full(VOCABULARY, np.exp(log) @ result.surprise**2))
            < 1e-11
        )


def test_a_padding_row_has_no_gradient_through_the_embedding():
    """Token 0 is the padding index: autograd gives it nothing where it is read."""
    model = built("Qwen2")
    with_padding = [(3, 0, 5, 0, 2), (0, 0, 7, 1, 4)]
    hooks, loop = (
        Scores(model, parameters=["*embed*"], method=method).of(PROMPT, with_padding)
        for method in ("hooks", "loop")
    )
    assert max(differences(hooks, loop).values()) < 1e-12
    assert np.abs(hooks.scores.reshape(2, VOCABULARY, -1)[:, 0]).max() == 0


# A parameter with two uses.


def uses_apart(self, key, slope, right=layers.Hooks._backward):
    """Planted: the uses of a parameter taken one by one, so that their cross terms are lost."""
    opened, self._open = self._open, dict.fromkeys(self._open, 1)
    right(self, key, slope)
    self._open = opened


def test_a_tied_parameter_has_any_of_its_names_and_counts_once():
    """Alone, beside others, by a pattern that two of its names match; frozen ones are never taken."""
    model = built("Qwen2 tied")
    first, last = "model.embed_tokens.weight", "lm_head.weight"
    norms = ("model.norm.weight",)
    for names, wanted in (
        (last, (first,)),
        (first, (first,)),
        ("lm_*", (first,)),
        ([first, last], (first,)),
        (["model.norm.*", last], (first, *norms)),
        (norms, norms),
    ):
        assert Scores(model, parameters=names).names == wanted
    assert Scores(built("Qwen2"), parameters=last).names == (last,)
    refuses("no parameter is named like 'lm_tail", Scores, model, parameters=[last, "lm_tail*"])
    model.get_output_embeddings().weight.requires_grad_(False)
    assert Scores(model, parameters=[last, *norms]).names == norms
    refuses("all have requires_grad=False", Scores, model, parameters=last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tied_embedding_without_cross_terms_is_refused(monkeypatch, dtype):
    model = built("Qwen2 tied", dtype)
    right = gram(model, method="loop")
    monkeypatch.setattr(layers.Hooks, "_backward", uses_apart)
    text = r"in model.embed_tokens.weight is .* method='loop'"
    refuses(text, Scores(model).of, PROMPT, COMPLETIONS)
    unchecked = Scores(model)
    unchecked._checked = 2
    assert off(unchecked.norms(PROMPT, COMPLETIONS), np.diag(right)) > 1e-3
    # Without two uses the same plant is no error.
    untied = built("Qwen2", dtype)
    assert off(gram(untied), gram(untied, method="loop")) < 1e-5


# Sketches.


@pytest.mark.parametrize("rows", [1, 3])
def test_a_sketch_is_the_same_piece_by_piece_and_its_rows_add_up(rows):
    d, k = 1000, 64
    vectors = torch.randn(2, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sketch = Sketch(d, k, vectors)
    whole = torch.zeros(2, 1, k, dtype=torch.float64)
    sketch.add(whole, 0, vectors)
    table = torch.zeros(2, rows, k, dtype=torch.float64)
    for start, stop in ((0, 10), (10, 64), (64, 500), (500, 999), (999, 1000)):
        sketch.add(table, start, vectors[:, start:stop])
    assert torch.allclose(table.sum(dim=1), whole[:, 0], rtol=1e-12)
    # Vectors of no more than k numbers are kept whole.
    small = torch.zeros(2, 1, 50, dtype=torch.float64)
    Sketch(50, k, vectors).add(small, 0, vectors[:, :50])
    assert torch.allclose(small.square().sum(dim=(1, 2)), vectors[:, :50].square().sum(dim=1))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cpu_and_a_device_make_the_same_sketch(dtype, rows, monkeypatch):
    vectors = torch.randn(2, 1000, dtype=dtype, generator=torch.Generator().manual_seed(0))
    # As a part of a wider array, too.
    sketch, piece = Sketch(1000, 64, vectors), vectors[:, 70:930]
    tables = torch.zeros(2, 2, rows, 64, dtype=dtype)
    sketch.add(tables[0], 70, piece)
    monkeypatch.setattr(loops, "by_loops", by_windows)
    sketch.add(tables[1], 70, piece)
    assert torch.allclose(*tables, rtol=1e-5)
    assert tables[0].abs().min() > 0


PLACES = torch.arange(640.0)
COLUMN = (PLACES.fmod(32) == 5).float()
"""One column of a matrix whose rows have as many entries as a sketch has numbers."""


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("u", "v"),
    [
        (torch.sin(PLACES) + 1, PLACES.fmod(32) / 32),
        (COLUMN, COLUMN),
        (COLUMN, COLUMN * torch.cos(PLACES)),
        ((PLACES.fmod(16) == 3).float(), (PLACES.fmod(128) < 2).float() + 0.1),
        (torch.ones(640), torch.ones(640)),
    ],
)
def test_inner_products_of_sketches_are_unbiased_with_the_variance_that_is_said(u, v, rows):
    """Over many draws; the vectors have structures that equal signs or places would not break."""
    d, k = len(u), 32
    pair = torch.stack([u, v]).double()
    result = []
    for seed in range(2000):
        table = torch.zeros(2, rows, k, dtype=torch.float64)
        Sketch(d, k, pair, seed).add(table, 0, pair)
        result.append(float((table[0] * table[1]).sum()))
    error = np.std(result) / np.sqrt(len(result))
    true = float(pair[0] @ pair[1])
    assert abs(np.mean(result) - true) < 4 * error
    # Only of constant vectors the signs that stretches share are seen.
    most = 4 if (u == u[0]).all() else 2
    assert np.var(result) < most * 1.15 * float(u.square().sum() * v.square().sum()) / (rows * k)


# Which parameters.


def test_parameters_by_pattern_add_up_to_all():
    model = built()
    groups = (["*self_attn*"], ["*mlp*"], ["*norm*"], ["*embed_tokens*"])
    parts = [Scores(model, parameters=group) for group in groups]
    total = sum(gram(model, parameters=group) for group in groups)
    assert sum(part.d for part in parts) == Scores(model).d
    assert off(total, gram(model)) < 1e-12
    agrees_with_the_loop(model, parts[0], parameters=groups[0])


def test_frozen_parameters_are_left_out():
    model = built()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1" in name)
    scores = Scores(model)
    assert all("layers.1" in name for name in scores.names)
    agrees_with_the_loop(model, scores)
    refuses("all have requires_grad=False", Scores, model, parameters=["*layers.0*"])


@pytest.mark.filterwarnings("ignore:.*")
def test_lora():
    peft = pytest.importorskip("peft")
    random = {"init_lora_weights": False, "lora_dropout": 0.1}
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"], **random)
    model = peft.get_peft_model(built(), config).double().eval()
    scores = Scores(model)
    assert len(scores.names) == 8
    assert all("lora_" in name for name in scores.names)
    agrees_with_the_loop(model, scores)


def test_the_model_is_left_as_it_was():
    model = built()
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    model.model.norm.weight.requires_grad_(False)
    before = {name: (p.requires_grad, p.clone()) for name, p in model.named_parameters()}
    for method in ("hooks", "loop"):
        Scores(model, method=method).of(PROMPT, COMPLETIONS)
        Scores(model, method=method).norms(PROMPT, COMPLETIONS)
    for name, p in model.named_parameters():
        assert p.requires_grad == before[name][0]
        assert torch.equal(p, before[name][1])
        assert (p.grad is None) == (p is not model.lm_head.weight)
    assert bool((model.lm_head.weight.grad == 1).all())
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


# Precision.


@pytest.mark.parametrize("name", ["Qwen2", "Qwen2 tied"])
@pytest.mark.parametrize("kind", ["weights", "autocast"])
def test_sixteen_bits(kind, name):
    """bfloat16 rounds every activation by up to 2⁻⁹, which grows along the layers of a random model.

    Over seeds 0 to 9 the Gram matrix was off by at most 8% of its largest entry and the gradient by
    10% of its norm; a loop in the same precision by as much. The limit is 15%. What hooks and loop
    differ by is less: they read the same activations, and only the loop rounds its gradients.
    """
    exact = gram(built(name, torch.float32))
    autocast = kind == "autocast"
    model = built(name, torch.float32 if autocast else torch.bfloat16)
    hooks, loop = (gram(model, autocast_bf16=autocast, method=way) for way in ("hooks", "loop"))
    assert 1e-4 < off(hooks, exact) < 0.15
    assert off(hooks, loop) < 0.05


def test_long_sums_are_made_in_float64():
    """10⁷ equal squares: float32 alone loses digits that stretches of it do not."""
    row = torch.full((1, 10**7), 0.1)
    assert float(squares(row)) == pytest.approx(10**5, rel=1e-6)
    assert abs(float(row @ row.T) / 10**5 - 1) > 1e-6


# Memory.


@pytest.fixture
def needs():
    """A model, and the bytes that one completion takes in a pass."""
    model = built()
    scores = Scores(model, memory=2**30)
    scores.of(PROMPT, COMPLETIONS)
    return model, scores.room.bounds[len(PROMPT), max(LENGTHS)]


def allowing(room):
    """A memory flag that leaves so much room beside the working space."""
    return int(max(room * 8 / 7, room + 2**16)) + 16


@pytest.mark.parametrize(("held", "blocks"), [(1.3, 6), (2.3, 3), (4.3, 2), (6.3, 1)])
def test_blocks_give_the_same_in_one_pass(needs, monkeypatch, held, blocks):
    model, each = needs
    whole = Scores(model, sketch=16).of(PROMPT, COMPLETIONS)
    scores = Scores(model, memory=allowing(held * each), sketch=16)
    scores.of(PROMPT, COMPLETIONS)
    tried = out_beyond(monkeypatch, 99)
    result = everything(scores)
    # Every completion goes through the model once.
    assert (len(tried), sum(tried)) == (blocks, 6)
    assert max(differences(result, whole).values()) < 1e-12


def test_too_little_memory_is_refused_before_and_after(needs):
    model, each = needs
    scores = Scores(model, memory=allowing(0.9 * each), sketch=16)
    text = r"memory is \d+ bytes: completions of 9 tokens after a "
    refuses(text, scores.of, PROMPT, COMPLETIONS)
    refuses(text, scores.require, len(PROMPT), max(LENGTHS))
    # Sketches are held beside a pass; norms need none.
    held = len(set(COMPLETIONS)) * 8 * 4096
    refuses(text, Scores(model, memory=allowing(0.9 * each + held)).of, PROMPT, COMPLETIONS)
    Scores(model, memory=allowing(1.1 * each + held)).require(len(PROMPT), max(LENGTHS))
    whole = everything(Scores(model)).squared_norms
    alone = Scores(model, memory=allowing(1.1 * each), sketch=None)
    assert off(alone.norms(PROMPT, COMPLETIONS), whole) < 1e-12


def test_what_is_held_stays_within_the_flag(needs, monkeypatch):
    """Tensors that torch has at once, by its own account, in blocks."""
    model, each = needs
    memory = allowing(2.3 * each)
    scores = Scores(model, memory=memory, sketch=64)
    scores.of(PROMPT, COMPLETIONS)
    assert allocated(lambda: scores.of(PROMPT, COMPLETIONS)) < memory
    # The same count sees what a single pass takes.
    assert allocated(lambda: Scores(model).of(PROMPT, COMPLETIONS)) > 1.5 * memory


def allocated(run):
    """The peak of bytes that torch's CPU allocator had given out and not got back."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run()
    now = most = 0
    for event in sorted(record.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def out_beyond(monkeypatch, most):
    """A machine whose memory holds a pass of so many completions."""
    original, tried = Scores._pass, []

    def limited(self, batch, sink):
        tried.append(batch.count)
        if batch.count > most:
            raise MemoryError
        return original(self, batch, sink)

    monkeypatch.setattr(Scores, "_pass", limited)
    return tried


def test_where_memory_runs_out_blocks_shrink(monkeypatch):
    model = built()
    whole = Scores(model).of(PROMPT, COMPLETIONS)
    tried = out_beyond(monkeypatch, 2)
    scores = Scores(model)
    with pytest.warns(ChunkWarning) as warned:
        result = scores.of(PROMPT, COMPLETIONS)
    text = "out of memory with {} completions at once: going on with {}"
    assert [str(w.message) for w in warned] == [text.format(6, 3), text.format(3, 1)]
    assert max(differences(result, whole).values()) < 1e-12
    # The next prompt begins where this one ended, without a warning.
    tried.clear()
    scores.of(PROMPT, COMPLETIONS)
    assert set(tried) == {1}


# What hooks cannot do.


class Gate(nn.Module):
    """A layer that no hook knows."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.sigmoid(self.weight)


class SquaredRMSNorm(Gate):
    """A norm by its name, with another formula."""

    def forward(self, x):
        return self.weight**2 * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class ShiftedRMSNorm(Gate):
    """The norm of Gemma."""

    def forward(self, x):
        return (1 + self.weight) * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Functional(nn.Module):
    """A linear layer whose weight is read, and which is never called."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return nn.functional.linear(x, self.inner.weight, self.inner.bias)


class Twice(Functional):
    """A linear layer that is called, and whose weight is read besides."""

    def forward(self, x):
        return self.inner(x) + nn.functional.linear(x, self.inner.weight)


class Flat(Functional):
    """A linear layer that reads the tokens of all completions in one row, as experts do."""

    def forward(self, x):
        return self.inner(x.flatten(0, 1)).view(x.shape)


class Shared(Functional):
    """A linear layer that is called twice, which hooks see."""

    def forward(self, x):
        return self.inner(torch.tanh(self.inner(x)))


def with_norm(layer):
    model = built("Qwen2")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model.model.norm = layer(WIDTH)
    return model.double().eval()


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Gate, "model.norm.weight belongs to a layer of class Gate, .* method='loop'"),
        (SquaredRMSNorm, "belongs to a layer of class SquaredRMSNorm, .* method='loop'"),
        (Functional, "the layer of model.norm.inner.weight was not called .* method='loop'"),
        (Twice, "score in model.norm.inner.weight is .* method='loop'"),
        (Flat, "a layer of class Linear reads an array of shape .* method='loop'"),
    ],
)
def test_layers_that_hooks_do_not_know_are_refused(layer, message):
    model = with_norm(layer)
    refuses(message, lambda: Scores(model).of(PROMPT, COMPLETIONS))
    assert np.isfinite(Scores(model, method="loop").norms(PROMPT, COMPLETIONS)).all()
    # Without that layer's parameters the others are scored.
    others = ["*layers*"]
    agrees_with_the_loop(model, Scores(model, parameters=others), parameters=others)


@pytest.mark.parametrize("layer", [ShiftedRMSNorm, Shared, nn.RMSNorm, nn.LayerNorm])
def test_layers_of_other_models_are_known(layer):
    model = with_norm(layer)
    agrees_with_the_loop(model, Scores(model))


class Ignored(Functional):
    """A linear layer that is called for nothing."""

    def forward(self, x):
        self.inner(x)
        return x * 1


def test_a_layer_without_effect_has_zero_scores():
    model = with_norm(Ignored)
    expected = gram(model, parameters=["*layers*", "*embed*", "lm_head*"])
    for method in ("hooks", "loop"):
        assert off(gram(model, method=method), expected) < 1e-12


# Bad input.


def test_a_model_in_training_mode_is_refused():
    model = built()
    scores = Scores(model)
    model.train()
    for ask in (lambda: Scores(model), lambda: scores.of(PROMPT, COMPLETIONS)):
        refuses(r"call model.eval\(\) first", ask)


@pytest.mark.parametrize("method", ["hooks", "loop"])
def test_scores_that_are_not_finite_are_refused(method):
    model = built("Qwen2")
    model.model.norm.weight.data[0] = float("nan")
    refuses("scores are not finite", Scores(model, method=method).norms, PROMPT, COMPLETIONS)
    # In one completion alone, which begins with a token that no other has.
    model = built("Qwen2")
    own = min({*range(VOCABULARY)}.difference(PROMPT, *COMPLETIONS))
    model.model.embed_tokens.weight.data[own] = float("nan")
    completions = [*COMPLETIONS, (own, *COMPLETIONS[0][:1])]
    refuses("scores are not finite", Scores(model, method=method).of, PROMPT, completions)


def test_a_model_in_which_a_prompt_sees_its_completion_is_refused(monkeypatch):
    """What it writes is then drawn from other logits than those that are differentiated."""
    from transformers.models.qwen2 import modeling_qwen2

    model = built("Qwen2")
    model.set_attn_implementation("eager")
    # Its softmax is in float32 whatever the model's numbers are, so that last digits are others.
    Scores(model).of(PROMPT, [(1, 2, 3), (4, 5, 6)])
    monkeypatch.setattr(modeling_qwen2, "create_causal_mask", lambda *_, **__: None)
    for completions in ([(1, 2, 3), (4, 5, 6)], [(1, 2, 3)], [(1,)]):
        refuses("this model is not causal", Scores(model).of, PROMPT, completions)
