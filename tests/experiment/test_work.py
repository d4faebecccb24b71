"""Progress of long work."""

from __future__ import annotations

import time

import pytest

from ustat_pg.experiment import work


@pytest.mark.parametrize(("shown", "lines"), [(True, 5), (False, 0)])
def test_a_log_has_a_line_now_and_then(shown, lines, capsys, monkeypatch):
    monkeypatch.setattr(work, "LOG_SECONDS", 0.001)
    with work.bar("blocks", 5.0, shown) as bar:
        for _ in range(5):
            time.sleep(0.005)
            bar.update(1)
    said = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert len(said) == lines
    assert all(line.startswith("blocks") and line.endswith(" left") for line in said)
    assert not said or "100%" in said[-1]


def test_what_is_done_within_a_minute_says_nothing_to_a_log(capsys):
    with work.bar("blocks", 1.0, True) as bar:
        bar.update(1)
    assert not capsys.readouterr().err.strip()
