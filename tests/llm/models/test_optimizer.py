"""v of Adam is read by name from what trainers write, or an error says why not."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.support.adam import corrected, saved, trained
from tests.support.models import random_model
from tests.support.refusals import refuses
from ustat_pg.llm.models.optimizer import second_moments

SHAPE = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 40}


@pytest.fixture(scope="module")
def model():
    """A tied model; its gradients are the tests' own."""
    return random_model(**SHAPE, tie_word_embeddings=True)


def two_groups(model):
    """The groups of a trainer, with and without decay."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]


def by_name(model, optimizer):
    """The state with names for numbers, as FSDP gathers it."""
    names = [name for name, _ in model.named_parameters()]
    state = optimizer.state_dict()
    state["state"] = {f"_orig_mod.{names[k]}": entry for k, entry in state["state"].items()}
    state["param_groups"][0]["params"] = [*state["state"]]
    return state


def flat(model, optimizer):
    named = model.named_parameters()
    return {f"{name}.exp_avg_sq": optimizer.state[p]["exp_avg_sq"] for name, p in named} | {
        f"{name}.step": optimizer.state[p]["step"] for name, p in model.named_parameters()
    }


def agree(found, expected):
    assert {*found} == {*expected}
    for name, entry in found.items():
        torch.testing.assert_close(entry.v, expected[name], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "form",
    ["one group", "two groups", "names of groups", "by name", "inside", "safetensors", "v alone"],
)
def test_forms_of_a_state(model, tmp_path, form):
    named = [*model.named_parameters()] if form == "names of groups" else None
    groups = two_groups(model) if form == "two groups" else named
    optimizer = trained(model, groups)
    expected, path = corrected(model, optimizer), tmp_path / "optimizer.pt"
    made = {
        "by name": lambda: by_name(model, optimizer),
        "inside": lambda: {"optimizer": optimizer.state_dict(), "step": 3},
        "safetensors": lambda: flat(model, optimizer),
        "v alone": lambda: expected,
    }.get(form, optimizer.state_dict)()
    if form == "safetensors":
        path = tmp_path / "optimizer.safetensors"
        save_file(made, path)
    else:
        torch.save(made, path)
    agree(second_moments(path, model), expected)
    # A checkpoint's folder has the file.
    agree(second_moments(tmp_path, model), expected)


def test_the_groups_of_transformers(model, tmp_path):
    """The trainer makes them, with parameters that do not decay in the second one."""
    from transformers import Trainer, TrainingArguments

    given = TrainingArguments(str(tmp_path), weight_decay=0.1, use_cpu=True, report_to=[])
    optimizer = Trainer(model, given).create_optimizer()
    assert [len(group["params"]) for group in optimizer.param_groups] == [15, 11]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float(parameter.numel()))
    optimizer.step()
    optimizer.zero_grad()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    agree(second_moments(tmp_path, model), corrected(model, optimizer))


def test_files_of_one_state(model, tmp_path):
    optimizer = trained(model)
    parts = [*flat(model, optimizer).items()]
    for number, part in enumerate((parts[::2], parts[1::2])):
        save_file(dict(part), tmp_path / f"optim-{number}.safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"none of it")
    found = second_moments(tmp_path, model)
    # A step may lie in another file than its v.
    agree(found, corrected(model, optimizer))
    save_file(dict(parts[:2]), tmp_path / "optim-2.safetensors")
    refuses("is in several places", second_moments, tmp_path, model)


def test_settings_of_groups(model, tmp_path):
    groups = two_groups(model)
    groups[1] |= {"lr": 4e-9, "eps": 1e-3}
    torch.save(trained(model, groups, amsgrad=True).state_dict(), tmp_path / "optimizer.pt")
    optimizer = trained(model, groups, amsgrad=True)
    expected = corrected(model, optimizer, "max_exp_avg_sq")
    found = second_moments(tmp_path, model)
    agree(found, expected)
    for name, entry in found.items():
        rate, eps = (0.25, 1e-8) if expected[name].ndim > 1 else (1.0, 1e-3)
        assert (entry.rate, entry.eps) == (pytest.approx(rate), eps)
        by_hand = rate / (expected[name].sqrt() + eps)
        torch.testing.assert_close(entry.diagonal(), by_hand, rtol=1e-5, atol=0)


def test_equal_shapes_in_two_groups_are_not_guessed(tmp_path):
    model = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(3)))
    groups = [{"params": [model[0].weight, model[2].weight]}, {"params": [model[1].weight]}]
    torch.save(trained(model, groups).state_dict(), tmp_path / "optimizer.pt")
    refuses(
        "cannot be told apart by their numbers; save the state by names",
        second_moments,
        tmp_path,
        model,
    )


def test_a_state_of_another_model(model, tmp_path):
    path, _ = saved(random_model(**SHAPE, tie_word_embeddings=False), tmp_path / "a.pt")
    refuses("has 27 numbered parameters and the model trains 26", second_moments, path, model)
    path, _ = saved(random_model(**SHAPE | {"vocab_size": 39}), tmp_path / "b.pt")
    refuses(
        "no exp_avg_sq has the place and the shape .40, 16. of model.embed_tokens.weight",
        second_moments,
        path,
        random_model(**SHAPE),
    )


def _without(state, *names):
    return {k: v for k, v in state.items() if k not in names}


MODEL_NAME = "model.norm.weight"
REFUSED = {
    "no step": ({"state": {}, "param_groups": [{"params": [0], "lr": 1.0}]}, "has made no step"),
    "step 0": (
        {MODEL_NAME: {"exp_avg_sq": torch.ones(16), "step": torch.tensor(0.0)}},
        "is at step 0: the optimizer has made no step",
    ),
    "momentum": ({MODEL_NAME: {"momentum_buffer": torch.ones(16)}}, "must be Adam or AdamW"),
    "adafactor": ({MODEL_NAME: {"exp_avg_sq_row": torch.ones(16)}}, "must be Adam or AdamW"),
    "8 bits": (
        {MODEL_NAME: {"state1": torch.ones(16), "state2": torch.ones(16), "step": 3}},
        "the state of an 8-bit optimizer",
    ),
    "bytes": ({MODEL_NAME: torch.ones(16, dtype=torch.uint8)}, "the state of an 8-bit optimizer"),
    "rates": (
        {"state": {0: {}}, "param_groups": [{"params": [0], "lr": 0.0}]},
        "no group of the optimizer has a positive learning rate",
    ),
    "groups": ({"state": {0: {}}, "param_groups": [{}]}, "param_groups are not those of Adam"),
    "a list": ([1, 2], "it must contain exp_avg_sq by parameter"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(model, tmp_path, case):
    content, message = REFUSED[case]
    torch.save(content, tmp_path / "optimizer.pt")
    refuses(message, second_moments, tmp_path, model)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["state"].update({0: None}),
        lambda state: state["state"].update({99: state["state"][0]}),
        lambda state: state["state"][0].update(step="x"),
        lambda state: state["param_groups"][0].update(betas=(0.9,)),
        lambda state: state["param_groups"][0].update(param_names=["a"]),
    ],
)
def test_a_state_with_broken_parts_is_refused_in_one_line(model, tmp_path, change):
    path, state = tmp_path / "optimizer.pt", trained(model).state_dict()
    change(state)
    torch.save(state, path)
    refuses("the state is not one of Adam", second_moments, path, model)


def test_files_that_are_not_states(model, tmp_path):
    refuses(
        "has no state of an optimizer: there is no optimizer.pt", second_moments, tmp_path, model
    )
    refuses("No such file", second_moments, tmp_path / "none.pt", model)
    (tmp_path / "optimizer.pt").write_bytes(b"nonsense")
    refuses("cannot be read as the state of an optimizer", second_moments, tmp_path, model)


class Hostile:
    """A pickle that runs code when it is loaded."""

    def __reduce__(self):
        return exec, ("raise SystemError('it ran')",)


def test_a_file_runs_no_code(model, tmp_path):
    torch.save({"state": Hostile()}, tmp_path / "optimizer.pt")
    refuses("cannot be read as the state of an optimizer", second_moments, tmp_path, model)
