"""Problems that go by a name: the moments in their files against enumeration."""

import json
from pathlib import Path

import numpy as np
import pytest

import ustat_pg
from tests.support.commands import out_of, refusal_of
from tests.support.refusals import refuses
from ustat_pg.cli import main
from ustat_pg.predictions import mse_constants
from ustat_pg.problems import load_problem, named_problem, named_problems

NAMES = [each.name for each in named_problems()]
FOLDER = Path(ustat_pg.__file__).parent / "problems" / "named"


@pytest.mark.parametrize("name", NAMES)
def test_stored_moments_are_those_computed_anew(name):
    known = named_problem(name)
    moments = known.problem.moments()
    scale = float(moments.fisher_trace.max() * (1 + np.abs(moments.reward_range).max() ** 2))
    for key, stored in known.moments.items():
        np.testing.assert_allclose(
            np.asarray(getattr(moments, key)), stored, rtol=1e-12, atol=1e-15 * scale
        )
    assert known.objective == pytest.approx(known.problem.objective(), rel=1e-12, abs=1e-15)
    assert known.digest == known.problem.digest
    result = mse_constants(known.problem)
    for key, stored in known.constants.items():
        assert getattr(result, key) == pytest.approx(stored, rel=1e-10)


def test_every_record_says_where_it_is_from():
    for each in named_problems():
        assert each.origin in ("made-up", "real")
        assert each.licence == ("CC BY 4.0" if each.origin == "real" else "MIT")
        assert len(each.source) > 20
        assert each.cited == f"ustat:{each.name}@{each.version}"
    # Small enough for the wheel.
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 100_000


def test_they_load_by_name():
    assert load_problem("ustat:skewed").digest == named_problem("skewed").digest
    assert load_problem("ustat:skewed@1") is load_problem("ustat:skewed")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ustat:skewd", "problem ustat:skewd is unknown, did you mean ustat:skewed"),
        ("ustat:", "problem ustat: is unknown: choose one of balanced, coin"),
        ("ustat:../files", "is unknown"),
        ("ustat:skewed@2", "has version 1 of problem ustat:skewed, not 2"),
        ("ustat:skewed@", "has version 1 of problem ustat:skewed, not none"),
        ("skewed", "must end in .json or .npz, or begin with ustat:"),
    ],
)
def test_names_that_are_refused(name, said, capsys):
    refuses(said, load_problem, name)
    assert said in refusal_of(capsys, main, "predict", name, "--group-size", 4)


def test_the_shell_lists_prints_and_takes_them(capsys, tmp_path):
    listed = out_of(capsys, main, "problems").splitlines()
    assert [line.split()[0] for line in listed[2:]] == [each.cited for each in named_problems()]
    facts = json.loads(out_of(capsys, main, "problems", "--json"))
    assert facts["ustat:coin@1"]["c3"] == 0.17
    assert facts["ustat:coin@1"]["g_star"] is None
    printed = json.loads(out_of(capsys, main, "problems", "uneven"))
    assert printed == json.loads((FOLDER / "uneven.json").read_text(encoding="utf-8"))
    (tmp_path / "mine.json").write_text(json.dumps(printed["problem"]))
    of_file = out_of(capsys, main, "advise", tmp_path / "mine.json", "--budget", "64")
    assert out_of(capsys, main, "advise", "ustat:uneven", "--budget", "64") == of_file


def test_a_log_is_sent_to_its_own_command(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("{}")
    refuses(
        "for a log use ustat-pg rewards, or advise with rollouts of a ModelPool", load_problem, log
    )
    assert "rewards" not in str(refuses("must end in", load_problem, tmp_path / "gone.jsonl"))
