"""Loading models: folders, adapters, tokens, and what is refused."""

import json
import os
import shutil

import pytest
import torch

from tests.support.commands import python
from tests.support.hostile import Runs
from tests.support.models import TEMPLATE, character_tokenizer
from tests.support.refusals import refuses
from ustat_pg.llm.models.loading import end_tokens, load_model, tokenise, weights_digest
from ustat_pg.llm.prompts import Prompt


def changed(folder, tmp_path, **tokenizer):
    """A copy of a model folder with another tokenizer."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (copy / name).unlink(missing_ok=True)
    made = character_tokenizer(**{"chat_template": None} | tokenizer)
    made.save_pretrained(copy)
    return copy, made


def test_a_folder_is_loaded_ready_for_scores(tiny, tiny_folder):
    assert not tiny.model.training
    assert tiny.context == 256
    assert (tiny.name, tiny.source, tiny.device) == (str(tiny_folder), str(tiny_folder), "cpu")
    assert tiny.model.dtype == torch.float32
    assert all(p.requires_grad for p in tiny.model.parameters())
    assert end_tokens(tiny) == (1,)


def test_prompts_become_tokens(tiny):
    text = "12 + 3 =\n"
    assert tiny.tokenizer.decode(tokenise(tiny, Prompt("a", text))) == text
    messages = [{"role": "user", "content": "hi there"}]
    assert tiny.tokenizer.decode(tokenise(tiny, Prompt("a", messages))) == "u>hi there\na>"
    assert tiny.tokenizer.chat_template == TEMPLATE


def test_a_tokenizer_without_template_or_pad_token_is_refused(tiny_folder, tmp_path):
    copy, made = changed(tiny_folder, tmp_path)
    messages = Prompt("p3", [{"role": "user", "content": "x"}])
    text = r"'p3' is a list of messages .* no chat template"
    refuses(text, tokenise, load_model(copy), messages)
    made.pad_token = None
    made.save_pretrained(copy)
    refuses(r"no pad token: .* pad_token='<eos>'", load_model, copy)
    assert load_model(copy, pad_token="<eos>").tokenizer.pad_token_id == 1
    refuses("pad_token is '<none>'", load_model, copy, pad_token="<none>")
    made.add_special_tokens({"pad_token": "<new>"})
    made.save_pretrained(copy)
    refuses(r"the pad token '<new>' .* the model knows 98 tokens", load_model, copy)


def test_a_fresh_adapter_is_the_only_part_trained(tiny_folder, tiny, tmp_path):
    pytest.importorskip("peft")
    model = load_model(tiny_folder, lora=2)
    trained = {n for n, p in model.model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert len(trained) == 2 * 7 * 2
    assert not model.model.training
    ids = torch.tensor([[3, 4, 5]])
    # A fresh adapter changes nothing.
    assert torch.equal(model.model(ids).logits, tiny.model(ids).logits)
    assert weights_digest(model.model) == weights_digest(load_model(tiny_folder, lora=2).model)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    model.model.save_pretrained(tmp_path)
    back = load_model(tiny_folder, lora=tmp_path)
    assert torch.equal(back.model(ids).logits, model.model(ids).logits)
    assert trained == {n for n, p in back.model.named_parameters() if p.requires_grad}
    assert (model.source, back.source) == ("", "")
    refuses(r"adapter_config.json", load_model, tiny_folder, lora=str(tmp_path / "none"))
    refuses("lora is 0", load_model, tiny_folder, lora=0)


def test_the_digest_tells_weights_and_configurations_apart(tiny_folder, tmp_path, tiny):
    for where, change in (("copy", {}), ("other", {"rms_norm_eps": 0.5})):
        other = load_model(copied(tiny_folder, tmp_path / where, **change))
        assert (weights_digest(other.model) == weights_digest(tiny.model)) == (not change)
    other = load_model(tiny_folder)
    with torch.no_grad():
        other.model.model.norm.weight[3] += 1e-6
    assert weights_digest(other.model) != weights_digest(tiny.model)


def copied(folder, target, **change):
    """A model's folder with another configuration."""
    shutil.copytree(folder, target)
    file = target / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    return str(target)


def test_models_that_are_none_are_refused(tiny_folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    shutil.copytree(tiny_folder, tmp_path / "bad", dirs_exist_ok=True)
    (tmp_path / "bad" / "config.json").write_text("{}")
    for name, options, text in (
        (tmp_path / "none", {}, "there is no model folder"),
        (tmp_path / "empty", {}, "a local folder with config.json"),
        (tmp_path / "bad", {}, "cannot be loaded"),
        (tiny_folder, {"device": "abacus"}, "device is 'abacus'"),
        (tiny_folder, {"dtype": "int8"}, "dtype is 'int8'"),
    ):
        refuses(text, load_model, name, **options)


def test_a_folder_runs_no_code_and_is_not_waited_for(tiny_folder, tmp_path):
    """Neither code of its own nor pickles; a terminal is not asked whether to run them."""
    copy, made = tmp_path / "copy", tmp_path / "made"
    shutil.copytree(tiny_folder, copy)
    config = json.loads((copy / "config.json").read_text())
    own = {
        "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"},
        "model_type": "own",
    }
    (copy / "own.py").write_text(f"import os; os.mkdir({str(made)!r})")
    (copy / "config.json").write_text(json.dumps(config | own))
    refuses("cannot be loaded", load_model, copy)
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "model.safetensors").unlink()
    torch.save({"weights": Runs(made)}, copy / "pytorch_model.bin")
    refuses("cannot be loaded", load_model, copy)
    os.mkfifo(copy / "generation_config.json.new")
    refuses("must be a file", load_model, copy)
    assert not made.exists()


OFFLINE = """
from ustat_pg.llm.models.loading import load_model
from ustat_pg.validation import InputError

try:
    load_model("somebody/some-model")
except InputError as error:
    print(error)
"""


def test_a_hub_that_cannot_be_reached_names_the_local_way(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    done = python(OFFLINE)
    assert "'somebody/some-model' cannot be had from the hub" in done.stdout, done.stderr
    assert "local folder" in done.stdout
