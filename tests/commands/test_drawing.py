"""The law of prompts that ``advise --draw`` and ``rewards --draw`` print and write."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from ustat_pg import advise
from ustat_pg.cli import main
from ustat_pg.predictions import best_law, sampled_error
from ustat_pg.problems import load_problem

LOG = [[1.0, 0.0, 0.0, 1.0] * 2] * 12 + [[1.0] * 8] * 12


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


def test_a_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "law.csv"
    words = ("advise", "ustat:uneven", "--budget", "63", "--draw", "--law", str(path), "--json")
    found = json.loads(answer(capsys, *words))["drawing"]
    problem = load_problem("ustat:uneven")
    best = best_law(problem, found["group_size"], share=0.2)
    data = sampled_error(problem, problem.context_probs, found["group_size"])
    assert found["ratio"] == pytest.approx(best.cost / data.cost)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [float(row["probability"]) for row in rows] == pytest.approx(best.law.tolist())
    assert [float(row["weight"]) for row in rows] == pytest.approx(best.weights.tolist())
    assert "it saves" in str(advise("ustat:uneven", 63, draw=True))


def test_a_log_of_rewards(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log, path = tmp_path / "log.json", tmp_path / "law.csv"
    log.write_text(json.dumps({"rewards": LOG}))
    words = ("rewards", str(log), "--draw", "--law", str(path))
    assert "as if scores had equal norms" in answer(capsys, *words)
    assert json.loads(answer(capsys, *words, "--json"))["drawing"]["ratio"] < 1
    assert len(path.read_text().splitlines()) == 1 + len(LOG)


def test_the_law_is_written_beside_each_form(capsys, tmp_path) -> None:
    log = tmp_path / "log.json"
    log.write_text(json.dumps({"rewards": LOG}))
    laws = []
    for form in ([], ["--json"], ["--csv"]):
        path = tmp_path / f"law{len(laws)}.csv"
        answer(capsys, "rewards", str(log), "--draw", "--law", str(path), *form)
        laws.append(path.read_text())
    assert laws[0] == laws[1] == laws[2]


def test_prompts_with_several_groups_are_refused(capsys, tmp_path) -> None:
    log = tmp_path / "log.jsonl"
    rows = [
        {"prompt": f"q{x}", "step": step, "reward": reward}
        for x, rewards in enumerate(LOG)
        for step in range(2)
        for reward in rewards
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("rewards", str(log), "--draw", "--json")
    assert main([*words]) == 2
    assert "24 prompts have 48 groups" in capsys.readouterr().err
    found = json.loads(answer(capsys, *words, "--group-by", "prompt"))
    assert found["drawing"]["law"]["prompt"] == [f"q{x}" for x in range(24)]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("advise ustat:uneven --budget 64 --law law.csv", "write --draw too"),
        ("advise ustat:uneven --budget 64 --draw --law no/such/law.csv", "there is no folder"),
        ("advise ustat:uneven --budget 64 --draw --law .", "is a folder"),
        ("advise --scored tests/data/pools/scored.npz --budget 64 --draw", "at least 8"),
        ("advise --model embedded:short --budget 64 --samples 4 --draw", "at least 8"),
    ],
)
def test_what_is_refused(capsys: pytest.CaptureFixture[str], words: str, error: str) -> None:
    assert main(words.split()) != 0
    assert error in capsys.readouterr().err
