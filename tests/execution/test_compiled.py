"""What is compiled is kept in a folder of its own version, beside which nothing of others is lost."""

import os

from tests.support.commands import python


def test_old_versions_are_removed_and_folders_of_other_things_are_not(tmp_path):
    names = ("ustat_pg-0123456789abcdef", "ustat_pg-1.0", "ustat_pg-workspace")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("kept?")
        os.utime(tmp_path / name, (0, 0))
    fresh = tmp_path / "ustat_pg-fedcba9876543210"
    fresh.mkdir()

    code = (
        "from pathlib import Path\nfrom ustat_pg.execution.compiled import folder\n"
        "from ustat_pg.sampling import rng\nprint(folder(Path(rng.__file__)))"
    )
    text = python(code, NUMBA_CACHE_DIR=str(tmp_path))

    assert not (tmp_path / names[0]).exists()
    assert fresh.exists()
    assert [(tmp_path / name / "file").read_text() for name in names[1:]] == ["kept?"] * 2
    assert os.path.dirname(text.stdout.strip()) == str(tmp_path)
