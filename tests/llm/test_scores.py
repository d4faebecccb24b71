"""Scores through hooks are what differentiation gives, whatever the architecture, padding or memory."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

from tests.support.models import output_by_hand, random_model
from tests.support.refusals import refuses
from ustat_pg.llm import scores as module
from ustat_pg.llm.scores import Scores
from ustat_pg.memory import ChunkWarning

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
WEIGHTS = GENERATOR.normal(size=len(COMPLETIONS))


def off(found, expected):
    """The largest difference, relative to the largest entry."""
    found, expected = (
        x.double().numpy() if isinstance(x, torch.Tensor) else np.asarray(x, dtype=float)
        for x in (found, expected)
    )
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def differences(one, other):
    return {
        name: off(getattr(one, name), getattr(other, name))
        for name in ("gram", "gradient", "token_proxy", "lengths")
    }


def agrees_with_the_loop(model, scores, **options):
    loop = Scores(model, method="loop", **options).of(PROMPT, COMPLETIONS, WEIGHTS)
    assert max(differences(scores.of(PROMPT, COMPLETIONS, WEIGHTS), loop).values()) < 1e-12


# Against differentiation.


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("name", MODELS)
def test_hooks_and_loop_agree(name, dtype, limit):
    model = built(name, dtype)
    loop = Scores(model, method="loop").of(PROMPT, COMPLETIONS, WEIGHTS)
    scores = Scores(model)
    hooks = scores.of(PROMPT, COMPLETIONS, WEIGHTS)
    assert (hooks.passes, loop.passes) == (1, len(set(COMPLETIONS)))
    assert max(differences(hooks, loop).values()) < limit
    norms = np.diag(loop.gram)
    assert off(scores.norms(PROMPT, COMPLETIONS), norms) < limit
    assert off(Scores(model, method="loop").norms(PROMPT, COMPLETIONS), norms) < limit


@pytest.mark.parametrize("name", ["Qwen2 tied", "GPT-2"])
def test_both_agree_with_plain_differentiation(name):
    """One gradient at a time, so that padding changes nothing; parameters in their order."""
    model = built(name)
    listed = [output_by_hand(model, PROMPT, completion) for completion in COMPLETIONS]
    table = np.array([score for _, score, _ in listed])
    for method in ("hooks", "loop"):
        scores = Scores(model, method=method)
        assert scores.of(PROMPT, COMPLETIONS).gradient is None
        found = scores.of(PROMPT, COMPLETIONS, WEIGHTS)
        assert off(found.gram, table @ table.T) < 1e-12
        assert off(found.gradient, WEIGHTS @ table / len(COMPLETIONS)) < 1e-12
        assert off(found.token_proxy, [proxy for _, _, proxy in listed]) < 1e-12
        assert scores.names == tuple(name for name, _ in model.named_parameters())
        assert scores.d == table.shape[1]


def test_a_padding_row_has_no_gradient_through_the_embedding():
    """Token 0 is the padding index: autograd gives it nothing where it is read."""
    model = built("Qwen2")
    with_padding = [(3, 0, 5, 0, 2), (0, 0, 7, 1, 4)]
    hooks, loop = (
        Scores(model, parameters=["*embed*"], method=method).of(PROMPT, with_padding, [1.0, 2.0])
        for method in ("hooks", "loop")
    )
    assert max(differences(hooks, loop).values()) < 1e-12
    assert float(hooks.gradient.view(VOCABULARY, -1)[0].abs().max()) == 0


# A parameter with two uses.


def uses_apart(self, key, slope):
    """Planted: the uses of a parameter taken one by one, so that their cross terms are lost."""
    layer, read, _ = self._reads.pop(key)
    for k, make in layer.makers.items():
        self._sink(k, [make(read, slope)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_tied_embedding_without_cross_terms_is_refused(monkeypatch, dtype):
    model = built("Qwen2 tied", dtype)
    right = Scores(model, method="loop").of(PROMPT, COMPLETIONS)
    monkeypatch.setattr(module._Hooks, "_backward", uses_apart)
    said = r"in model.embed_tokens.weight is .* method='loop'"
    refuses(said, Scores(model).of, PROMPT, COMPLETIONS)
    unchecked = Scores(model)
    unchecked._checked = True
    assert off(unchecked.of(PROMPT, COMPLETIONS).gram, right.gram) > 1e-3
    # Without two uses the same plant is no error.
    untied = built("Qwen2", dtype)
    loop = Scores(untied, method="loop").of(PROMPT, COMPLETIONS)
    assert off(Scores(untied).of(PROMPT, COMPLETIONS).gram, loop.gram) < 1e-5


@pytest.mark.parametrize("way", ["materialised", "pairs"])
@pytest.mark.parametrize("name", MODELS)
def test_either_way_to_inner_products_is_right(monkeypatch, name, way):
    """Which is cheaper depends on the layer; each must serve every layer."""
    monkeypatch.setattr(module, "_ELEMENTWISE", {"materialised": 10**12, "pairs": -(10**12)}[way])
    model = built(name)
    loop = Scores(model, method="loop").of(PROMPT, COMPLETIONS)
    scores = Scores(model)
    assert off(scores.of(PROMPT, COMPLETIONS).gram, loop.gram) < 1e-12
    assert off(scores.norms(PROMPT, COMPLETIONS), np.diag(loop.gram)) < 1e-12


# Which parameters.


def test_parameters_by_pattern_add_up_to_all():
    model = built()
    groups = (["*self_attn*"], ["*mlp*"], ["*norm*"], ["*embed_tokens*"])
    parts = [Scores(model, parameters=group) for group in groups]
    total = sum(part.of(PROMPT, COMPLETIONS).gram for part in parts)
    assert sum(part.d for part in parts) == Scores(model).d
    assert off(total, Scores(model).of(PROMPT, COMPLETIONS).gram) < 1e-12
    agrees_with_the_loop(model, parts[0], parameters=groups[0])


def test_a_tied_parameter_goes_by_either_name():
    by_head = Scores(built(), parameters=["lm_head*"])
    assert by_head.names == ("model.embed_tokens.weight",)
    assert by_head.d == VOCABULARY * WIDTH


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
        Scores(model, method=method).of(PROMPT, COMPLETIONS, WEIGHTS)
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
    exact = Scores(built(name, torch.float32)).of(PROMPT, COMPLETIONS, WEIGHTS)
    autocast = kind == "autocast"
    model = built(name, torch.float32 if autocast else torch.bfloat16)
    hooks, loop = (
        Scores(model, autocast_bf16=autocast, method=method).of(PROMPT, COMPLETIONS, WEIGHTS)
        for method in ("hooks", "loop")
    )
    assert hooks.gram.dtype == np.float64
    assert hooks.gradient.dtype == torch.float32
    assert 1e-4 < off(hooks.gram, exact.gram) < 0.15
    error = (hooks.gradient - exact.gradient).norm() / exact.gradient.norm()
    assert 1e-4 < float(error) < 0.15
    assert off(hooks.gram, loop.gram) < 0.05


def test_long_sums_are_made_in_float64():
    """10⁷ equal products: float32 alone loses digits that stretches of it do not."""
    row = torch.full((1, 10**7), 0.1)
    assert float(module._dot(row, row)) == pytest.approx(10**5, rel=1e-6)
    assert float(module._squares(row)) == pytest.approx(10**5, rel=1e-6)
    assert abs(float(row @ row.T) / 10**5 - 1) > 1e-6
    rows = torch.full((64, 10**6), 0.1)
    assert float(module._dot(rows, rows)[3, 5]) == pytest.approx(10**4, rel=2e-6)


# Memory.


@pytest.fixture
def needs():
    """A model, the bytes that one completion takes in a pass, and the bytes of a score."""
    model = built()
    scores = Scores(model)
    scores.of(PROMPT, COMPLETIONS, WEIGHTS)
    return model, scores._largest[len(PROMPT), max(LENGTHS)], 8 * scores.d


def allowing(room, vector):
    """A memory flag that leaves so much room beside the gradient and the working space."""
    return (int(room) + vector) * 8 // 7 + 16


@pytest.mark.parametrize(
    ("batches", "held", "passes"),
    [(2.1, 0, 21), (4.1, 0, 6), (1.1, 6, 6), (2.1, 6, 3), (6.1, 0, 1)],
    ids=["pairs of 1", "pairs of 2", "all held, 1", "all held, 2", "whole"],
)
def test_blocks_give_the_same(needs, batches, held, passes):
    model, each, vector = needs
    whole = Scores(model).of(PROMPT, COMPLETIONS, WEIGHTS)
    scores = Scores(model, memory=allowing(batches * each + held * vector, vector))
    found = scores.of(PROMPT, COMPLETIONS, WEIGHTS)
    assert found.passes == passes
    assert max(differences(found, whole).values()) < 1e-12
    assert off(scores.norms(PROMPT, COMPLETIONS), np.diag(whole.gram)) < 1e-12


def test_too_little_memory_is_refused(needs):
    model, each, vector = needs
    scores = Scores(model, memory=allowing(1.9 * each, vector))
    said = r"memory is \d+ bytes: completions of 9 tokens after a "
    refuses(said, scores.of, PROMPT, COMPLETIONS, WEIGHTS)
    # Norms need no two blocks, and no gradient.
    whole = Scores(model).of(PROMPT, COMPLETIONS)
    assert off(scores.norms(PROMPT, COMPLETIONS), np.diag(whole.gram)) < 1e-12
    loop = Scores(model, memory=2 * vector, method="loop")
    said = "the scores of 9816 parameters take at least"
    refuses(said, loop.of, PROMPT, COMPLETIONS, WEIGHTS)


@pytest.mark.parametrize(("held", "passes"), [(1, 21), (2, 12), (5, 7), (6, 6)])
def test_the_loop_in_blocks_gives_the_same(held, passes):
    scores = Scores(built())
    whole = scores.of(PROMPT, COMPLETIONS, WEIGHTS)
    memory = (held + 2) * 8 * scores.d
    found = Scores(built(), memory=memory, method="loop").of(PROMPT, COMPLETIONS, WEIGHTS)
    assert found.passes == passes
    assert max(differences(found, whole).values()) < 1e-12


def test_what_is_held_stays_within_the_flag(needs):
    """Tensors that torch has at once, by its own account, in blocks."""
    model, each, vector = needs
    memory = allowing(2.1 * each, vector)
    scores = Scores(model, memory=memory)
    scores.of(PROMPT, COMPLETIONS, WEIGHTS)
    assert allocated(lambda: scores.of(PROMPT, COMPLETIONS, WEIGHTS)) < memory
    # The same count sees what a single pass takes.
    assert allocated(lambda: Scores(model).of(PROMPT, COMPLETIONS, WEIGHTS)) > 1.5 * memory


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

    def limited(self, batch, part, sink):
        tried.append(part.stop - part.start)
        if part.stop - part.start > most:
            raise MemoryError
        return original(self, batch, part, sink)

    monkeypatch.setattr(Scores, "_pass", limited)
    return tried


def test_where_memory_runs_out_blocks_shrink(monkeypatch):
    model = built()
    whole = Scores(model).of(PROMPT, COMPLETIONS, WEIGHTS)
    tried = out_beyond(monkeypatch, 2)
    scores = Scores(model)
    with pytest.warns(ChunkWarning) as warned:
        found = scores.of(PROMPT, COMPLETIONS, WEIGHTS)
    said = "out of memory with {} completions at once: going on with {}"
    assert [str(w.message) for w in warned] == [said.format(6, 3), said.format(3, 1)]
    assert max(differences(found, whole).values()) < 1e-12
    # The next prompt begins where this one ended, without a warning.
    tried.clear()
    scores.of(PROMPT, COMPLETIONS, WEIGHTS)
    assert set(tried) == {1}


def test_out_of_memory_with_one_completion_is_said(monkeypatch):
    out_beyond(monkeypatch, 0)
    said = "out of memory with one completion of a model with 9816 "
    refuses(said, Scores(built()).of, PROMPT, COMPLETIONS)


def test_other_errors_are_not_taken_for_memory(monkeypatch):
    def broken(self, batch, part, sink):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Scores, "_pass", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        Scores(built()).of(PROMPT, COMPLETIONS)


def test_equal_completions_are_computed_once(monkeypatch):
    rows = [(3, 4), (5,), (3, 4), (3, 4)]
    weights = [1.0, 2.0, -3.0, 0.5]
    loop = Scores(built(), method="loop").of(PROMPT, rows, weights)
    tried = out_beyond(monkeypatch, 99)
    found = Scores(built()).of(PROMPT, rows, weights)
    assert (loop.passes, tried) == (2, [1, 2])
    assert max(differences(found, loop).values()) < 1e-12
    assert np.array_equal(found.gram[0], found.gram[2])


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
    assert np.isfinite(Scores(model, method="loop").of(PROMPT, COMPLETIONS).gram).all()
    # Without that layer's parameters the others are scored.
    others = ["*layers*"]
    loop = Scores(model, parameters=others, method="loop").of(PROMPT, COMPLETIONS)
    assert off(Scores(model, parameters=others).of(PROMPT, COMPLETIONS).gram, loop.gram) < 1e-12


@pytest.mark.parametrize("layer", [ShiftedRMSNorm, Shared, nn.RMSNorm, nn.LayerNorm])
def test_layers_of_other_models_are_known(layer):
    model = with_norm(layer)
    agrees_with_the_loop(model, Scores(model))


class Ignored(Functional):
    """A linear layer that is called for nothing."""

    def forward(self, x):
        self.inner(x)
        return x * 1


@pytest.fixture
def nan_where_unset():
    """Torch's uninitialised arrays hold NaN meanwhile, and not by chance zero."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def test_a_layer_without_effect_has_zero_scores(nan_where_unset):
    model = with_norm(Ignored)
    assert bool(torch.empty(3).isnan().all())
    expected = Scores(model, parameters=["*layers*", "*embed*", "lm_head*"]).of(PROMPT, COMPLETIONS)
    held = Scores(model)
    # As after running out of memory: the scores of all are held, two completions at a time.
    held._most = 2
    for scores in (Scores(model), held, Scores(model, method="loop")):
        found = scores.of(PROMPT, COMPLETIONS, WEIGHTS)
        assert off(found.gram, expected.gram) < 1e-12
        assert bool(found.gradient.isfinite().all())
    assert held.of(PROMPT, COMPLETIONS, WEIGHTS).passes == 3


def test_an_embedding_that_changes_itself_is_refused():
    model = built("Qwen2")
    model.model.embed_tokens.scale_grad_by_freq = True
    refuses("belongs to a layer of class Embedding", Scores, model)


# Bad input.


def test_a_model_in_training_mode_is_refused():
    model = built()
    scores = Scores(model)
    model.train()
    for ask in (lambda: Scores(model), lambda: scores.of(PROMPT, COMPLETIONS)):
        refuses(r"call model.eval\(\) first", ask)


@pytest.mark.parametrize("method", ["hooks", "loop"])
@pytest.mark.parametrize(
    ("prompt", "completions", "weights", "message"),
    [
        ((), [(1,)], None, "the prompt has no tokens"),
        ((1,), [], None, "there are no completions"),
        ((1,), [(1,), ()], None, "completion 1 has no tokens"),
        ((1,), [(1, 40)], None, "token 40 is not one of the model's: they are 0 to 39"),
        ((1,), [(1, -1)], None, "a token of completion 0 is -1"),
        ((1,), [(1.5,)], None, "a token of completion 0 is 1.5"),
        ((1,), [(1,), (2,)], [1.0], r"weights have shape \(1,\): one for each of 2 completions"),
        ((1,), [(1,)], [np.nan], "weights holds nan"),
    ],
)
def test_bad_input_is_refused(method, prompt, completions, weights, message):
    refuses(message, Scores(built(), method=method).of, prompt, completions, weights)


def test_bad_options_are_refused():
    refuses("method is 'hook': it must be 'hooks' or 'loop'", Scores, built(), method="hook")
    refuses("memory is 0", Scores, built(), memory=0)
    said = "no parameter is named like 'q_proj': names are of the "
    refuses(said, Scores, built(), parameters=["q_proj"])


@pytest.mark.parametrize("method", ["hooks", "loop"])
def test_scores_that_are_not_finite_are_refused(method):
    model = built("Qwen2")
    model.model.norm.weight.data[0] = float("nan")
    refuses("scores are not finite", Scores(model, method=method).norms, PROMPT, COMPLETIONS)
