"""The recipe for vLLM on the page of file formats, run with a stand-in for it."""

import json
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np

from tests.support.commands import ROOT
from ustat_pg.llm.models.loading import load_model
from ustat_pg.llm.rollouts.files import load_rollouts
from ustat_pg.llm.rollouts.stored import sample
from ustat_pg.llm.tasks.named import load_task


def test_the_recipe_writes_what_rollouts_reads(tmp_path, monkeypatch):
    model, task = load_model("embedded:short"), load_task("embedded:short", limit=3)
    own = sample(model, task, 64, seed=1)

    class Engine:
        def __init__(self, source, generation_config):
            assert (source, generation_config) == ("my-model", "vllm")

        def generate(self, texts, plain):
            assert texts == [one.prompt.text for one in own]
            assert plain.n == 64
            assert (plain.temperature, plain.top_p, plain.top_k) == (1, 1, -1)
            return [
                SimpleNamespace(prompt_token_ids=list(one.prompt_ids), outputs=[*outputs(one)])
                for one in own
            ]

    def outputs(one):
        for tokens, logs in zip(one.completion_ids, one.log_probs, strict=True):
            steps = [{t: SimpleNamespace(logprob=log)} for t, log in zip(tokens, logs, strict=True)]
            yield SimpleNamespace(token_ids=tokens, logprobs=steps)

    stand_in = ModuleType("vllm")
    stand_in.LLM, stand_in.SamplingParams = Engine, SimpleNamespace
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    monkeypatch.chdir(tmp_path)
    rows = [{"id": one.prompt.id, "prompt": one.prompt.text, **one.prompt.columns} for one in own]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (code,) = re.findall(
        r"```python\n(import json\n.*?)```", (ROOT / "theory/files.md").read_text(), re.S
    )
    exec(code, {})
    read = load_rollouts(tmp_path / "rollouts.jsonl", model, task)
    for one, other in zip(own, read, strict=True):
        assert one.completion_ids == other.completion_ids
        assert np.array_equal(one.rewards, other.rewards)
        assert all(map(np.allclose, one.log_probs, other.log_probs))
