"""Both commands at a terminal's edges: pipes that close, disks that are full, no Greek, a signal."""

import io
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simulations.__main__ import main as simulations
from tests.support.commands import ROOT
from tests.support.kills import interruptible
from ustat_pg.cli import EXAMPLES, guarded, main
from ustat_pg.display.shown import VERDICTS, coloured
from ustat_pg.validation import InputError

COMMANDS = (["-m", "ustat_pg.cli", "example"], ["-m", "simulations", "list"])


def run(words, **options):
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_reader_that_leaves_is_no_error_on_the_screen(words):
    read, write = os.pipe()
    os.close(read)
    done = run(words, stdout=write)
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", COMMANDS)
def test_a_full_disk_behind_stdout_is_one_line(words):
    with open("/dev/full", "w") as full:
        done = run(words, stdout=full)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr


@pytest.mark.parametrize("words", COMMANDS)
def test_a_terminal_without_greek_gets_question_marks(words):
    done = run(words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert done.stderr == ""


def test_an_interrupted_prediction_says_so(tmp_path):
    code = (
        "import sys, time; from ustat_pg import cli; from ustat_pg.commands import predict;"
        "predict.run = lambda options: (print('ready', flush=True), time.sleep(1200));"
        "sys.exit(cli.main(['predict', 'x.json', '--group-size', '2']))"
    )
    process = interruptible([sys.executable, "-c", code])
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=1200)
    assert process.returncode == 130
    assert error == "ustat-pg: interrupted\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("bad"), 2, "name: bad\n"),
        (MemoryError("8 GB"), 2, "name: out of memory: 8 GB\n"),
        (KeyboardInterrupt(), 130, "name: interrupted\n"),
        (KeyboardInterrupt("kept"), 130, "name: kept\n"),
    ],
)
def test_what_goes_wrong_is_one_line_and_its_code(error, code, line, capsys):
    def command() -> int:
        raise error

    assert guarded("name", command) == code
    assert capsys.readouterr().err == line


def test_a_program_error_is_shown_and_is_no_verdict(capsys):
    def command() -> int:
        raise ZeroDivisionError

    assert guarded("name", command) == 70
    assert "Traceback" in capsys.readouterr().err


def test_lines_follow_the_width_of_a_terminal():
    text, widths = {}, {}
    for columns in ("60", "20"):
        ours, theirs = pty.openpty()
        words = ["-m", "ustat_pg.cli", "explain", "trl", "num_generations=2"]
        done = run(words, stdout=theirs, env={**os.environ, "COLUMNS": columns})
        os.close(theirs)
        with os.fdopen(ours, "rb", closefd=True) as screen:
            text[columns] = os.read(screen.fileno(), 2**16).decode()
        assert done.returncode == 0
        drawn = [
            line for line in text[columns].splitlines() if "|" not in line and "(p)" not in line
        ]
        widths[columns] = max(len(line) for line in drawn if " " in line.strip()[:40])
    assert widths["60"] <= 60
    assert widths["20"] <= 70


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True


CHECK = ["check", "mse", "skewed G=2: grpo", "--size", "smoke", "--engine", "exact"]


@pytest.fixture
def printed(monkeypatch):
    """What a command prints on a stream, under these variables."""

    def on(stream, command, columns="200", **variables):
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.delenv("NO_COLOR", raising=False)
        for name, value in {"TERM": "xterm", "COLUMNS": columns, **variables}.items():
            monkeypatch.setenv(name, value)
        assert command() == 0
        return stream.getvalue()

    return on


def test_verdicts_have_colours_on_a_terminal_alone(printed):
    def command():
        return simulations(CHECK)

    text = printed(Screen(), command)
    assert "\x1b[32mCONFIRMED\x1b[0m" in text
    # A wrong formula must be refuted, so this is green.
    assert text.count("\x1b[32mREFUTED\x1b[0m") == text.count("REFUTED") > 5
    plain = printed(io.StringIO(), command)
    assert plain == re.sub("\x1b.*?m", "", text)
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert printed(Screen(), command, **variables) == plain
    narrow = printed(Screen(), command, "80", NO_COLOR="1")
    assert max(map(len, plain.splitlines())) > 80
    assert max(map(len, narrow.splitlines())) <= 80
    assert sorted(narrow.replace("-", "").split()) == sorted(plain.replace("-", "").split())


def test_colours_are_those_of_verdicts_and_nothing_else_steers_a_terminal(printed):
    text = "Theorem 2 REFUTED, Lemma 1 CONFIRMED, \x1b[31mred\x1b[0m \x1b[2J"
    shown = printed(Screen(), lambda: guarded("name", lambda: print(coloured(text, VERDICTS)) or 0))
    assert shown.startswith("Theorem 2 \x1b[31mREFUTED\x1b[0m, Lemma 1 \x1b[32mCONFIRMED\x1b[0m, ")
    assert shown.endswith("\\x1b[31mred\\x1b[0m \\x1b[2J\n")
    line = "\x1b[31mREFUTED\x1b[0m"
    piped = printed(io.StringIO(), lambda: guarded("name", lambda: print(line) or 0))
    assert "\x1b" not in piped


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_help_ends_with_an_example(name, capsys):
    words = ["llm", name] if name in ("mse", "sweep") else [name]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.endswith(f"Example: {EXAMPLES[name]}")


@pytest.mark.parametrize("name", ["explain", "predict", "problems", "example"])
def test_an_example_does_what_it_says(name, capsys):
    assert main(shlex.split(EXAMPLES[name].partition(" >")[0])[1:]) == 0
    assert capsys.readouterr().out
