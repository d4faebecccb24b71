"""Hostile files at each command that reads one: one message, exit code 2, nothing run, nothing waited for."""

import gzip
import io
import json
import os
import pickle
import re
import signal
import unicodedata
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import figures.__main__
from simulations.evidence.results import load_curves
from tests.support.commands import refusal_of
from tests.support.hostile import Runs
from tests.support.refusals import refuses
from ustat_pg.cli import guarded, main
from ustat_pg.files.reading import printable, read_arrays, read_text, read_yaml
from ustat_pg.llm.tasks.named import load_task
from ustat_pg.problems import example_problem
from ustat_pg.validation import InputError


def asked(call, path):
    return guarded("reads", lambda: call(Path(path)) and 0)


FILE = "FILE"

JSON = {
    "problem": ("a.json", main, "predict FILE --group-size 4", json.dumps(example_problem())),
    "advice": ("a.json", main, "advise FILE --budget 64", json.dumps(example_problem())),
    "problem explained": ("a.json", main, "explain trl --problem FILE", ""),
    "critic": (
        "a.json",
        main,
        "predict ustat:coin --group-size 4 --estimator critic --critic FILE",
        "[0.5]",
    ),
    "pass rates": ("a.json", main, "explain trl --pass-rates FILE", "[0.5, 0.25]"),
    "rewards": (
        "a.json",
        main,
        "rewards FILE",
        '{"rewards": [[1, 0, 1, 0.5]]}',
    ),
    "verdicts": ("verdicts.json", figures.__main__.main, "FILE", ""),
}
LINES = {
    "rollouts": (
        "a.jsonl",
        main,
        "rewards FILE",
        '{"rewards": [1, 0, 1, 0.5]}',
    ),
    "prompts": (
        "a.jsonl",
        partial(asked, lambda path: load_task(str(path), verifier="math:fsum")),
        "",
        "",
    ),
}
YAML = {
    "options": ("a.yaml", main, "explain FILE", "num_generations: 4\nscale_rewards: group"),
    "options of one": ("a.yml", main, "explain trl+FILE", "num_generations: 4"),
    "sweep": ("a.yaml", main, "llm sweep --config FILE --print --out x", ""),
}
TABLES = {
    "log": ("a.csv", main, "rewards FILE",
            "prompt,completion,reward\n" + "a,b,0\na,c,1\n" * 2),
    "curves": ("curves.csv", partial(asked, lambda path: load_curves(path.parent)), "", ""),
}  # fmt: skip
ARRAYS = {
    "packed problem": ("a.npz", main, "predict FILE --group-size 4", ""),
    "pool": ("a.npz", main, "advise --scored FILE --budget 64", ""),
}
ALL = JSON | LINES | YAML | TABLES | ARRAYS


def call_of(reader, folder):
    """The file that a reader reads, its command and its words."""
    name, command, words, _ = ALL[reader]
    path = folder / name
    text = [word.replace(FILE, str(path)).replace("+", " ") for word in (words or FILE).split()]
    return path, (lambda _: command(text[0])) if isinstance(command, partial) else command, text


@pytest.fixture(autouse=True)
def in_time():
    """What hangs ends here."""

    def stop(*_):
        raise AssertionError("still reading")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def sparse(path, size=2**33):
    with path.open("wb") as file:
        file.truncate(size)


PLACES = {
    "nothing": (lambda path: None, "No such file|no finished run"),
    "a folder": (Path.mkdir, "Is a directory|No such file|no rows|no finished run"),
    "a pipe": (os.mkfifo, "must be a file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "must be a file"),
    "a circle": (lambda path: path.symlink_to(path.name), "symbolic links|no finished run"),
    "gigabytes": (sparse, r"8589934592 bytes: at most|archive|zip"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reader", ALL)
def test_what_is_no_file_is_refused_before_it_is_opened(capsys, tmp_path, reader, place):
    path, command, words = call_of(reader, tmp_path)
    make, text = PLACES[place]
    make(path)
    refused(capsys, text, command, words)


def refused(capsys, said, command, words):
    assert re.search(said, refusal_of(capsys, command, *words))


@pytest.mark.parametrize("content", [b"\xff\xfe{\x00}\x00", b"\xff", b"\x00", b"PK\x03\x04"])
@pytest.mark.parametrize("reader", ALL)
def test_bytes_of_another_kind_are_refused(capsys, tmp_path, reader, content):
    path, command, words = call_of(reader, tmp_path)
    path.write_bytes(content)
    refused(capsys, str(path.name), command, words)


TEXTS = {
    '{"a": 1, "a": 2}': "'a' occurs twice in one object",
    '{"a": ' + "[" * 100 + "]" * 100 + "}": "nested more than 64 deep",
    '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}": "nested too deeply",
    "[" * 100_000: "nested too deeply",
    '{"a": 1' + "0" * 5000 + "}": "not JSON: Exceeds the limit",
    '{"a": ': "not JSON",
}


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("reader", JSON | LINES)
def test_json_that_means_two_things_or_goes_down_for_ever(capsys, tmp_path, reader, text):
    path, command, words = call_of(reader, tmp_path)
    path.write_text(text)
    refused(capsys, TEXTS[text], command, words)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
@pytest.mark.parametrize("reader", [name for name in JSON | LINES if ALL[name][3]])
def test_numbers_must_be_finite(capsys, tmp_path, reader, number):
    path, command, words = call_of(reader, tmp_path)
    path.write_text(ALL[reader][3].replace("0.5", number, 1))
    refused(capsys, "nan|inf", command, words)


@pytest.mark.parametrize("reader", [name for name in ALL if ALL[name][3]])
def test_a_byte_order_mark_changes_nothing(capsys, tmp_path, reader):
    path, command, words = call_of(reader, tmp_path)
    printed = []
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_text(ALL[reader][3], encoding=encoding)
        assert command(words) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""


def doubled(line, levels=40):
    """Forty lines, each of which stands for the last one twice."""
    return "a0: &a0 {x: 1}\n" + "".join(line.format(k, k - 1) for k in range(1, levels))


OPTIONS = {
    "aliases": (doubled("a{0}: &a{0} [*a{1}, *a{1}]\n"), "more than 50000 values"),
    "merges": (doubled("a{0}: &a{0} {{<<: [*a{1}, *a{1}]}}\n"), "more than 50000 values"),
    "a circle": ("a: &a [*a]", "more than 50000 values"),
    "deep": ("a: " + "[" * 100 + "]" * 100, "nested more than 64 deep"),
    "deeper": ("a: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    "twice": ("a: 1\nb: 2\na: 3", "'a' occurs twice"),
    "twice within": ("a: {b: 1, b: 2}", "'b' occurs twice"),
    "a command": ("a: !!python/object/apply:os.mkdir [TARGET]", "not YAML"),
    "a name": ("a: !!python/name:os.system", "not YAML"),
    "a long number": ("a: 1" + "0" * 5000, "not YAML"),
    "many": ("a: 1\n" * 10**5, "at most 262144"),
    "torn": ("a: [1", "not YAML"),
}


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("reader", YAML)
def test_yaml_that_grows_runs_or_breaks(capsys, tmp_path, reader, kind):
    path, command, words = call_of(reader, tmp_path)
    text, said = OPTIONS[kind]
    path.write_text(text.replace("TARGET", str(tmp_path / "made")))
    refused(capsys, said, command, words)
    assert not (tmp_path / "made").exists()


def test_aliases_that_stay_small_are_read(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("base: &b {n: 8}\nruns: [*b, {<<: *b, seed: 1}]")
    assert read_yaml(path) == {"base": {"n": 8}, "runs": [{"n": 8}, {"n": 8, "seed": 1}]}


def archive(path, members, packed=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", packed) as file:
        for name, content in members:
            file.writestr(name, content)


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def header(shape, dtype="<f8"):
    """An array's header, without the array."""
    buffer = io.BytesIO()
    fields = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


ARCHIVES = {
    "7 PiB": ([("logits.npy", header((2**50,)) + bytes(64))], "the size that it declares"),
    "too few": ([("logits.npy", npy(np.ones(4))[:-8])], "the size that it declares"),
    "less than none": ([("logits.npy", header((-1,)))], "the size that it declares"),
    "objects": ([("logits.npy", header((1,), "|O") + b"PICKLE")], "the size that it declares"),
    "objects of their size": ([("logits.npy", header((32,), "|O") + b"PICKLE")], "allow_pickle"),
    "a pickle": ([("logits.npy", b"PICKLE")], "not a readable archive"),
    "twice": ([("logits.npy", npy(np.ones(1)))] * 2, "'logits' occurs twice"),
    "no array": ([("logits", b"text")], "not a readable archive"),
    "a bomb": ([("logits.npy", header((2**25 + 1,)) + bytes(2**28 + 8))], "it unpacks to"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ARCHIVES)
@pytest.mark.parametrize("reader", ARRAYS)
def test_archives_that_lie_burst_or_run(capsys, tmp_path, reader, kind):
    path, command, words = call_of(reader, tmp_path)
    members, text = ARCHIVES[kind]
    code = pickle.dumps(Runs(tmp_path / "made")).ljust(256, b".")
    archive(path, [(name, content.replace(b"PICKLE", code)) for name, content in members])
    refused(capsys, text, command, words)
    assert not (tmp_path / "made").exists()


def test_names_in_archives_are_no_paths(capsys, tmp_path):
    path = tmp_path / "sub" / "a.npz"
    path.parent.mkdir()
    archive(path, [(name, npy(np.ones(2))) for name in ("../out.npy", "/out.npy", "logits.npy")])
    assert "unknown names" in refusal_of(capsys, main, "predict", path, "--group-size", "4")
    assert [file.name for file in tmp_path.rglob("*")] == ["sub", "a.npz"]


def test_large_arrays_of_a_fair_size_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("ustat_pg.files.reading.MOST_BYTES", 1000)
    array = np.random.default_rng(0).normal(size=1000)
    np.savez_compressed(tmp_path / "a.npz", array=array)
    assert np.array_equal(read_arrays(tmp_path / "a.npz")["array"], array)
    np.savez_compressed(tmp_path / "b.npz", array=np.zeros(10**6))
    refuses("b.npz: .*unpacks to 8000128 bytes", read_arrays, tmp_path / "b.npz")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_line_ends_of_any_system_are_one(tmp_path, ending):
    path = tmp_path / f"text.txt{ending}"
    data = "ε\r\nω\rend\n".encode()
    path.write_bytes(gzip.compress(data) if ending else data)
    assert read_text(path) == "ε\nω\nend\n"


def test_what_is_packed_and_lies_or_bursts_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(b"plain text")
    with pytest.raises(InputError, match=r"log\.jsonl\.gz: Not a gzipped file"):
        read_text(path)
    path.write_bytes(gzip.compress(bytes(10**6)))
    monkeypatch.setattr("ustat_pg.files.reading.MOST_BYTES", 10**4)
    with pytest.raises(InputError, match="unpacks to more than"):
        read_text(path, 2**40)


STEERING = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"


def test_nothing_in_a_file_steers_the_terminal(capsys, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(example_problem() | {STEERING: 1}), encoding="utf-8")
    text = refusal_of(capsys, main, "predict", path, "--group-size", "4")
    assert r"\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e" in text
    assert not set(STEERING) & set("\x1b\x07\r\x9b\u202e") & set(text)
    rows = [{"id": STEERING, "rewards": [1, 0, 1, 0]}, {"id": STEERING, "rewards": [1]}]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    text = refusal_of(capsys, main, "rewards", path)
    assert "\x1b" not in text
    assert guarded("prints", lambda: print(STEERING, "ε\n\tω") or 0) == 0
    assert capsys.readouterr().out == r"\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e" + " ε\n\tω\n"


def test_controls_line_ends_and_marks_of_direction_are_written_out_and_nothing_else():
    words = ("-TO-RIGHT", "-TO-LEFT", "DIRECTIONAL", "STRONG ISOLATE", "LETTER MARK")
    for character in map(chr, range(0x2100)):
        kind, name = unicodedata.category(character), unicodedata.name(character, "")
        steers = kind in ("Cc", "Zl", "Zp") or (
            kind == "Cf" and any(word in name for word in words)
        )
        written_out = steers and character not in "\n\t"
        assert (printable(character) != character) == written_out, name
