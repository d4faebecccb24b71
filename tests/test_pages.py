"""Every command that README, CONTRIBUTING or a page names is run, or its words are read by its own parser."""

import functools
import re

import pytest

# What commands say without it is asked by ``commands/test_missing_packages.py``.
pytest.importorskip("trl")

from tests.support.pages import NAMED, PAGES, ROOT, commands, files_of_a_reader, read_alone, said

READ = {
    "needs a model": r"--model|llm sweep",
    "takes minutes": r"simulations (verify|plan|mutants(?!.* --list))|benchmarks|examples/",
    "needs a run's results": "figures",
}
"""Why commands are read alone, and which; all others are run."""

GONE = (
    r"`([^`]+)`, (?:which|an\s+option\s+that)\s+commit\s+\w+\s+has\s+and\s+the\s+tree\s+no\s+longer"
)

USED = sorted(page for page in PAGES if commands(page))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """What a command comes to where a reader has the files that pages speak of; each is typed once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(files_of_a_reader(tmp_path_factory.mktemp("reader")))

        @functools.cache
        def once(command):
            if not any(re.search(which, command) for which in READ.values()):
                return said(command)
            with read_alone() as read:
                result = said(command)
            # What has no parser was run; what is gone was not.
            assert read or result.code or command.startswith("make "), command
            return result

        yield once


@pytest.mark.parametrize("page", USED)
def test_the_commands_of_a_page_are_run_or_read(page, outcome):
    gone = tuple(re.findall(GONE, (ROOT / page).read_text("utf-8")))
    for command in commands(page):
        if named := NAMED.fullmatch(command):
            code, out, err = outcome(f"{named[1]} --help")
            assert (named[2] or "usage:") in out, command
        else:
            code, out, err = outcome(command)
        assert (code == 0) != command.startswith(gone), (command, err)
        # An option that explain does not know stands in no example.
        assert "Ignored, because" not in out, command


def test_the_reasons_are_of_commands_of_pages():
    every = [command for page in USED for command in commands(page)]
    assert len(every) > 150
    for why, which in READ.items():
        assert any(re.search(which, command) for command in every), why
