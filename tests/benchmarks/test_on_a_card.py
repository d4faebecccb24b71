"""The script for a card: every step is tried and told of, whatever becomes of the others."""

import pytest

from benchmarks import on_a_card
from benchmarks.on_a_card import LOG, STEPS, TABLE, Step


@pytest.fixture
def steps(monkeypatch):
    """Steps that end in every way, for a machine with a card."""
    ways = {
        "good": Step(60, "-c print('whole',r'{}')", "-c print('tiny')"),
        "wrong": Step(60, "-c raise(SystemExit(3))"),
        "late": Step(0.3, "-c __import__('time').sleep(60)"),
        "poor": Step(60, "-c print('never')", needs=("no_such_package", "numpy")),
        "last": Step(60, "-c print('still')"),
    }
    monkeypatch.setattr(on_a_card, "STEPS", ways)
    monkeypatch.setattr(on_a_card, "has_device", lambda: True)


def told(folder):
    """The status of each step in the table that is kept, and the first words that the steps said."""
    rows = (folder / TABLE).read_text(encoding="utf-8").splitlines()[2:]
    log = (folder / LOG).read_text(encoding="utf-8").splitlines()
    table = {
        name.strip(): status.strip() for _, name, status, *_ in (row.split("|") for row in rows)
    }
    return table, [line.split()[0] for line in log]


def test_a_step_that_fails_or_is_late_does_not_stop_the_others(steps, tmp_path, capsys):
    assert on_a_card.main(["--out", str(tmp_path)]) == 1
    table = {
        "good": "0",
        "wrong": "3",
        "late": "ended after 0.3 s",
        "poor": "left out: no_such_package not installed",
        "last": "0",
    }
    assert told(tmp_path) == (table, ["whole", "still"])
    assert "\nstill\n" in capsys.readouterr().out


def test_steps_are_chosen_by_name_and_end_in_time(steps, tmp_path):
    assert on_a_card.main(["--out", str(tmp_path), "--minutes", "0", "good"]) == 0
    assert told(tmp_path) == ({"good": "left out: no time is left"}, [])
    assert on_a_card.main(["--out", str(tmp_path), "--quick", "good", "last"]) == 0
    assert told(tmp_path) == ({"good": "0", "last": "left out: it has no rehearsal"}, ["tiny"])


def test_what_cannot_be_asked_is_refused(steps, monkeypatch, capsys):
    for words, said in (
        (["bad"], "step 'bad' is unknown: choose of good, wrong"),
        ([], "no CUDA device"),
    ):
        monkeypatch.setattr(on_a_card, "has_device", lambda: False)
        with pytest.raises(SystemExit) as stopped:
            on_a_card.main(words)
        assert stopped.value.code == 2
        assert said in capsys.readouterr().err


def test_all_steps_of_a_call_fit_its_minutes():
    """Two calls of nine and a half minutes: the claims, and then what has language models."""
    names = list(STEPS)
    assert sum(STEPS[name].seconds for name in names[: names.index("scores")]) <= 9.75 * 60
    assert sum(STEPS[name].seconds for name in names[names.index("lm") :]) <= 9.5 * 60
