"""The suite of planted errors: its data stand where they should, and its runner reads, keeps and counts.

The runner's process is a small fake here; what claims say of true errors is the command's own table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from simulations import ON_LANGUAGE_MODELS, STEMS
from simulations.mutants import command
from simulations.mutants import planted as process
from simulations.mutants.errors import (
    KINDS,
    LAYERS,
    RECORDS,
    ROOT,
    PlantedError,
    errors,
    occurrences,
)
from simulations.mutants.runner import Found, Mutants, compiles
from tests.support.commands import python
from ustat_pg.validation import InputError

FAKE = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    new = asked["error"][2] if asked["error"] else CONTROL
    open(LOG, "a").write(new + " " + asked["cache"] + "\\n")
    print(json.dumps({"verdict": new, "stem": asked["stems"][0], "engine": asked["engines"][0],
        "by": "exact" if new == "REFUTED" else "", "check": "a check"}), flush=True)
"""


def an_error(new, name="an error", file="ustat_pg/moments.py", equivalent="", silent=""):
    return PlantedError(name, file, "old", new, ("mse",), equivalent, silent)


@pytest.fixture
def fake(tmp_path):
    """A runner whose process says what the error's new text names; and the lines that it was asked."""
    log = tmp_path / "asked"

    def made(control="CONFIRMED", **options):
        code = f"LOG, CONTROL = {str(log)!r}, {control!r}\n{FAKE}"
        mutants = Mutants(
            "smoke", tmp_path / "out", command=(sys.executable, "-c", code), **options
        )
        return mutants, lambda: [line.split() for line in log.read_text().splitlines()]

    return made


def ran(mutants, *planted):
    found = {}
    mutants.run(planted, lambda error, said: found.update({error.new: said.verdict}))
    return found


@pytest.mark.parametrize(
    "error", [each for on in RECORDS for each in errors(on).values()], ids=lambda error: error.name
)
def test_every_error_stands_once_where_it_should_and_changes_the_program(error):
    source = (ROOT / error.file).read_text(encoding="utf-8")
    assert occurrences(source, error.old) == 1
    compile(error.source(), error.file, "exec")
    assert error.stems
    language_model = error.layer == "language models"
    assert set(error.stems) <= set(ON_LANGUAGE_MODELS if language_model else STEMS)


def test_the_errors_are_many_of_every_layer_and_all_different():
    found = errors()
    assert len(found) >= 120
    assert {error.layer for error in found.values()} >= set(LAYERS.values()) - {
        "claims",
        "language models",
    }
    assert {error.kind for error in found.values()} == set(KINDS)
    assert {error.layer for error in errors("language-model").values()} == {"language models"}
    assert not found.keys() & errors("language-model").keys()
    assert len({(error.file, error.source()) for error in found.values()}) == len(found)


def test_the_twentieth_that_ci_runs_is_spread_over_the_layers():
    options = command_options("--sample", "1/20")
    part = command.chosen(options, STEMS)
    assert len(part) == -(-len(errors()) // 20)
    assert len({error.layer for error in part}) >= 6
    every = [
        error.name
        for k in range(1, 21)
        for error in command.chosen(command_options("--sample", f"{k}/20"), STEMS)
    ]
    assert sorted(every) == sorted(errors())


def command_options(*words):
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser.add_subparsers(), STEMS)
    return parser.parse_args(["mutants", *words])


@pytest.mark.parametrize(
    "words", [["nothing"], ["--sample", "0/3"], ["--sample", "4"], ["--only", "§"]]
)
def test_what_is_not_there_is_refused(words):
    with pytest.raises(InputError):
        command.chosen(command_options(*words), STEMS)


def test_verdicts_are_told_apart_and_kept(fake):
    mutants, asked = fake()
    planted = [an_error(new) for new in ("REFUTED", "CONFIRMED", "INCONCLUSIVE", "ERROR")]
    assert ran(mutants, *planted) == {error.new: error.new for error in planted}
    # Another run reads what is known, and what a killed run cut off is asked again.
    lines = mutants._file.read_text().splitlines()
    mutants._file.write_text("\n".join([*lines[:-1], lines[-1][:40]]))
    before, (again, _) = len(asked()), fake()
    assert ran(again, *planted) == {"ERROR": "ERROR"}
    assert len(asked()) == before + 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_that_hangs_or_dies_is_reported(monkeypatch):
    asked = {"error": None, "limit": 1, "cache": ""}
    monkeypatch.setattr(process, "_answer", lambda asked: time.sleep(60))
    assert json.loads(process._forked(asked))["verdict"] == "TIMEOUT"
    monkeypatch.setattr(process, "_answer", lambda asked: os._exit(5))
    assert json.loads(process._forked(asked))["verdict"] == "ERROR"


def test_nothing_is_said_where_the_true_program_is_not_confirmed(fake):
    mutants, _ = fake(control="REFUTED")
    with pytest.raises(InputError, match=r"mse by exact is REFUTED without any error"):
        ran(mutants, an_error("REFUTED"))


def test_what_verify_has_confirmed_is_not_run_again(fake):
    mutants, asked = fake(control="REFUTED", verified=True)
    assert ran(mutants, an_error("REFUTED")) == {"REFUTED": "REFUTED"}
    assert [new for new, *_ in asked()] == ["REFUTED"]


def test_compiled_errors_have_a_cache_of_their_own(fake):
    mutants, asked = fake()
    ran(mutants, an_error("REFUTED"), an_error("CONFIRMED", file="ustat_pg/engines/runs/lanes.py"))
    caches = {new: cache for new, *cache in asked()}
    assert not caches["REFUTED"]
    assert caches["CONFIRMED"]
    assert compiles(an_error("", file="ustat_pg/rng.py"))


@pytest.mark.parametrize(
    ("verdict", "argued", "code"),
    [
        ("REFUTED", {}, 0),
        ("CONFIRMED", {}, 1),
        ("INCONCLUSIVE", {}, 3),
        ("ERROR", {}, 3),
        ("CONFIRMED", {"equivalent": "the same number"}, 0),
        ("REFUTED", {"equivalent": "the same number"}, 1),
        ("CONFIRMED", {"silent": "no rival"}, 1),
        ("INCONCLUSIVE", {"silent": "no rival"}, 0),
        ("ERROR", {"silent": "no rival"}, 3),
    ],
)
def test_the_exit_code_and_the_summary(verdict, argued, code):
    row = command._row(an_error("", **argued), Found(verdict, "mse", by="exact"))
    assert command.exit_code([row]) == code
    assert (f"- {verdict}: an error" in command.summary([row])) == (code != 0)


def test_what_a_record_has_as_refuted_must_stay_so():
    record = {"errors": [{"name": "an error", "verdict": "REFUTED", "by": "simulation"}]}
    row = command._row(an_error(""), Found("CONFIRMED", "mse"))
    assert command._lost([row], record, "cpu") == ["an error"]
    assert command._lost([row], record, "exact") == []
    assert command._lost([{**row, "verdict": "REFUTED"}], record, "cpu") == []


def test_the_process_plants_an_error_and_changes_no_file():
    file = "ustat_pg/designs.py"
    before = (ROOT / file).read_text()
    code = (
        "from simulations.mutants.planted import plant; "
        "plant('ustat_pg.designs', 'DESIGNS = (\"iid\",', 'DESIGNS = (\"planted\",'); "
        "import ustat_pg.designs; print(ustat_pg.designs.DESIGNS[0])"
    )
    assert python(code).stdout == "planted\n"
    assert (ROOT / file).read_text() == before


@pytest.mark.slow
def test_one_error_from_end_to_end(tmp_path):
    words = [
        "mutants",
        "--only",
        "pairs of the U-statistic G², not G(G-1)",
        "--json",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "simulations", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["errors"]
    assert (row["verdict"], row["stem"], row["by"]) == ("REFUTED", "mse", "exact")
