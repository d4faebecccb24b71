"""The suite of planted errors: where they stand, and how its runner asks, counts and continues."""

import argparse
import json
import os
import time

import pytest

from simulations import ON_LANGUAGE_MODELS, STEMS
from simulations.mutants import command, runner
from simulations.mutants.errors import KINDS, RECORDS, ROOT, PlantedError, errors, pattern
from tests.support.refusals import refuses
from ustat_pg.validation import InputError


def an_error(file="ustat_pg/moments/record.py", equivalent="", silent=""):
    return PlantedError("an error", file, "old", "new", ("mse",), equivalent, silent)


@pytest.mark.parametrize(
    "error", [each for on in RECORDS for each in errors(on).values()], ids=lambda error: error.name
)
def test_every_error_stands_once_where_it_should_and_changes_the_program(error):
    source = (ROOT / error.file).read_text(encoding="utf-8")
    assert len(pattern(error.old).findall(source)) == 1
    compile(error.source, error.file, "exec")
    assert error.stems
    claims = {stem for stem in error.stems if not (ROOT / stem).is_file()}
    of_models = error.name in errors("language-model")
    assert claims <= set(ON_LANGUAGE_MODELS if of_models else STEMS)


def test_the_errors_are_many_of_every_kind_and_all_different():
    result = errors()
    assert len(result) >= 120
    assert {error.kind for error in result.values()} == set(KINDS)
    assert {error.layer for error in errors("language-model").values()} == {"llm", "inference"}
    assert not result.keys() & errors("language-model").keys()
    assert len({(error.file, error.source) for error in result.values()}) == len(result)


def options(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser.add_subparsers(), STEMS)
    return parser.parse_args(["mutants", *words])


def test_the_twentieth_that_ci_runs_is_spread_over_the_layers():
    parts = [command.chosen(options("--sample", f"{k}/20"), STEMS) for k in range(1, 21)]
    assert len({error.layer for error in parts[0]}) >= 6
    assert sorted(error.name for part in parts for error in part) == sorted(errors())


@pytest.mark.parametrize(
    "words", [["nothing"], ["--sample", "0/3"], ["--sample", "4"], ["--only", "§"]]
)
def test_what_is_not_there_is_refused(words):
    with pytest.raises(InputError):
        command.chosen(options(*words), STEMS)


def test_a_function_is_unverified_until_an_error_touches_what_it_reads():
    (error,) = (
        e for e in errors().values() if e.name == "counts: a failure beside one success more"
    )
    missing = command.untouched([error])
    # The error stands in a class that this one returns.
    assert "predictions.count_table" not in missing
    assert "predictions.gradient_mse" in missing
    assert "predictions.gradient_mse" not in command.untouched(errors().values())


def hangs(*asked):
    time.sleep(60)


def dies(*asked):
    os._exit(5)


@pytest.mark.parametrize(
    ("answer", "limit", "verdict"), [(hangs, 1, "TIMEOUT"), (dies, 60, "ERROR")]
)
def test_a_process_that_hangs_or_dies_is_reported(answer, limit, verdict, monkeypatch):
    monkeypatch.setattr(runner, "LIMIT_SECONDS", limit)
    monkeypatch.setattr(runner, "run_apart", answer)
    assert runner.ask(None, ("mse",), "smoke", ("exact",))["verdict"] == verdict


def test_a_run_continues_from_its_record_and_asks_the_true_program(tmp_path, monkeypatch, capsys):
    asked, true = [], {"verdict": "CONFIRMED", "check": ""}

    def ask(error, stems, size, engines):
        asked.append(error and error.name)
        row = {"verdict": "REFUTED", "stem": "mse", "engine": engines[-1], "by": "exact"}
        return true if error is None else row | {"check": "a check"}

    monkeypatch.setattr(runner, "ask", ask)
    words = ["--engine", "exact", "--only", "grpo:", "--record", str(tmp_path / "record.json")]
    assert command.run(options(*words), STEMS) == 0
    record = json.loads((tmp_path / "record.json").read_text())
    names = [row["name"] for row in record["errors"]]
    assert sorted(filter(None, asked)) == sorted(names)
    assert asked[-1] is None
    assert f"{len(names)} planted: {len(names)} REFUTED" in capsys.readouterr().out
    # What the record has is not run again; the true program is, unless verify has confirmed it.
    asked.clear()
    assert command.run(options(*words, "--verified"), STEMS) == 0
    assert not asked
    # At another size it is run.
    assert command.run(options(*words, "--verified", "--size", "quick"), STEMS) == 0
    assert sorted(asked) == sorted(names)
    # Of another program others are added, and what the record has stays.
    held = json.loads((tmp_path / "record.json").read_text())
    monkeypatch.setattr(runner, "source_of", lambda: "another")
    words[3] = "best_shrinkage: prompts"
    assert command.run(options(*words, "--verified"), STEMS) == 0
    both = json.loads((tmp_path / "record.json").read_text())
    assert (both["size"], both["source"]) == ("quick", held["source"])
    (added,) = (row for row in both["errors"] if row not in held["errors"])
    assert (added["size"], added["source"]) == ("smoke", "another")
    assert len(both["errors"]) == len(names) + 1
    words[3] = "grpo:"
    monkeypatch.undo()
    monkeypatch.setattr(runner, "ask", ask)
    true = {"verdict": "REFUTED", "check": ""}
    refuses("mse by exact is REFUTED without any error", command.run, options(*words), STEMS)


@pytest.mark.parametrize(
    ("verdict", "argued", "code"),
    [
        ("REFUTED", {}, 0),
        ("CONFIRMED", {}, 1),
        ("ERROR", {}, 1),
        ("CONFIRMED", {"equivalent": "the same number"}, 0),
        ("REFUTED", {"equivalent": "the same number"}, 1),
        ("CONFIRMED", {"silent": "no rival"}, 1),
        ("INCONCLUSIVE", {"silent": "no rival"}, 0),
    ],
)
def test_the_exit_code_and_what_is_printed(verdict, argued, code, monkeypatch, tmp_path, capsys):
    error = an_error(**argued)
    monkeypatch.setattr(command, "errors", lambda on: {error.name: error})
    answer = {"verdict": verdict, "by": "exact", "stem": "mse", "engine": "cpu"}
    monkeypatch.setattr(runner, "ask", lambda *asked: answer)
    assert command.run(options("--verified"), STEMS) == code
    assert (f"- {verdict}: an error" in capsys.readouterr().out) == (code != 0)
    # Against a record that has it as refuted, and one that says nothing of it.
    record, words = (
        tmp_path / "record.json",
        ("--verified", "--against", str(tmp_path / "record.json")),
    )
    row = {"name": "an error", "verdict": "REFUTED", "by": "exact", "engine": "exact"}
    for held, lost in ((row, code), (row | {"verdict": "CONFIRMED"}, 0)):
        record.write_text(json.dumps({"errors": [held]}))
        assert command.run(options(*words), STEMS) == lost
    # One that was never asked is no record.
    record.write_text(json.dumps({"errors": []}))
    capsys.readouterr()
    assert command.run(options(*words), STEMS) == 1
    assert f"- not in {record}: an error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("by", "engine", "asked"),
    [
        ("exact", "exact", {"exact", "test", "cpu"}),
        ("exact", "test", {"exact", "test", "cpu"}),
        ("control", "test", {"test", "cpu"}),
        ("test", "test", {"test", "cpu"}),
        ("control", "cpu", {"cpu"}),
        ("simulation", "cpu", {"cpu"}),
    ],
)
def test_what_refuted_is_asked_of_those_that_ask_it(by, engine, asked):
    record = {"errors": [{"name": "one", "verdict": "REFUTED", "by": by, "engine": engine}]}
    for other in ("exact", "test", "cpu"):
        assert command.refuted(record, other) == ({"one"} if other in asked else set())


def test_every_error_has_a_record():
    record = json.loads((ROOT / "theory/mutants.json").read_text("utf-8"))
    assert [row["name"] for row in record["errors"]] == list(errors())


def test_make_test_asks_enumeration_and_the_tests_of_the_file(monkeypatch):
    """What draws alone refute in the record has tests to ask, all of which are there."""
    record = json.loads((ROOT / "theory/mutants.json").read_text("utf-8"))
    rows = [row for row in record["errors"] if row["verdict"] == "REFUTED"]
    drawn = {row["name"] for row in rows if row["engine"] == "cpu"}
    planted = [error for name, error in errors().items() if name in drawn]
    assert len(planted) > 50
    monkeypatch.setattr(runner, "ask", lambda error, stems, size, engines: (stems, engines))
    for error, (stems, engines) in runner.run_errors(planted, "smoke", "test", 1):
        assert engines == ("test",)
        files = [stem for stem in stems if stem.startswith("tests/")]
        assert files
        assert all((ROOT / file).exists() for file in files)
        enumerated = error.stems if "exact" in error.engines else ()
        assert stems == (*enumerated, *files)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stem", "by"),
    [
        ("pairs of the U-statistic G², not G(G-1)", "mse", "exact"),
        ("option: robust_group_size knows c2", "tests/predictions/test_group_size.py", "test"),
    ],
)
def test_one_error_from_end_to_end(name, stem, by):
    error = errors()[name]
    before = (ROOT / error.file).read_bytes()
    answer = runner.ask(error, error.stems, "smoke", ("exact",))
    assert (answer["verdict"], answer["stem"], answer["by"]) == ("REFUTED", stem, by)
    assert (ROOT / error.file).read_bytes() == before
