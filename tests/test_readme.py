"""What a stranger reads first: the README's size, links, code, commands and table; other pages' links."""

import doctest
import json
import re
import subprocess

import pytest

from simulations.paper import RESULTS
from tests.support.pages import said
from tests.support.readme import README, printed_table

ROOT = README.parent
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "benchmarks/*.md", "theory/**/*.md", "ustat_pg/**/*.md")
    for page in ROOT.glob(pattern)
    if "generated" not in page.parts
)
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def blocks(page, language):
    """The fenced blocks of a page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_no_sentence_counts_results_or_wrong_formulas(page):
    """A count is written by the program that counted, in README's table and benchmarks/seeds.md."""
    text = re.sub(
        r"<!-- (verdicts|counts) -->.*?<!-- end -->",
        "",
        (ROOT / page).read_text("utf-8"),
        flags=re.S,
    )
    counted = r"\b(?:all|the|of) \d+ (?:results|claims|rivals|wrong formulas|confirmed)\b"
    assert re.findall(counted, text) == []


def missing_paths(folder, text):
    """The files and folders that a text links to, or names in backticks, and that are not there."""
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    links = [folder / link for link in links if not link.startswith("http")]
    named = re.findall(r"`([\w.]+(?:/[\w.]+)+/?)`", text)
    named = [ROOT / name for name in named if name.split("/")[0] in FOLDERS - {"results", "build"}]
    return [str(path) for path in links + named if not path.exists()]


def test_its_size():
    text = README.read_text("utf-8")
    assert len(text.encode()) <= 6144
    assert text.count("\n") <= 110
    assert [line for line in text.splitlines() if len(line) > 110] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_points_to_what_is_there(page):
    assert missing_paths((ROOT / page).parent, (ROOT / page).read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("page", "fewest"), [("README.md", 5), ("CONTRIBUTING.md", 4), ("theory/map.md", 12)]
)
def test_the_code_of_a_page_runs(page, fewest):
    code = "\n".join(blocks(page, "python"))
    test = doctest.DocTestParser().get_doctest(code, {}, page, page, 0)
    results = doctest.DocTestRunner(optionflags=FLAGS).run(test)
    assert results.attempted >= fewest
    assert results.failed == 0


def test_its_commands_print_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [
        (command, shown)
        for block in blocks("README.md", "console")
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]
    assert len(commands) >= 4
    for command, shown in commands:
        code, printed, error = said(command)
        assert (code, error) == (0, "")
        assert doctest.OutputChecker().check_output(shown, printed, FLAGS), (command, printed)


def test_make_alone_lists_the_targets_that_pages_name_with_their_durations():
    listed = subprocess.run(
        ["make", "--silent"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = dict(re.findall(r"^  (\w+) +(.+)$", listed, re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md", "theory/findings.md", "benchmarks/README.md"):
        text = (ROOT / page).read_text("utf-8")
        assert set(re.findall(r"(?:^|`)make (\w+)", text, re.MULTILINE)) <= {*targets, "help"}
    assert {"verify", "test", "theory", "lint"} <= set(targets)
    for name, text in targets.items():
        assert re.search(r"\d+ (s|min)\b|not timed", text) or name == "clean", (name, text)


def test_its_table_follows_the_results():
    """The labels and statements; the verdicts are compared where a whole run is made."""
    labels = [result.label for result in RESULTS.values() if not result.label.startswith("Figure")]
    rows = [line.split(" | ") for line in printed_table().splitlines()[2:]]
    assert [row[0].removeprefix("| ") for row in rows] == labels
    table = (ROOT / "theory/index.md").read_text("utf-8")
    for stem, result in RESULTS.items():
        if result.label in labels:
            assert f"]({stem}.md) | {result.label} | {result.title} |" in table


def test_the_examples_of_files_are_read(tmp_path):
    from ustat_pg.llm.rollouts.files import load_rewards
    from ustat_pg.llm.tasks.named import jsonl_task
    from ustat_pg.problems import load_episodes, load_problem

    problem, critic, turns, *others = blocks("theory/files.md", "json")
    rewards, rollouts, logged, log, prompts = others
    _, verifier, _ = blocks("theory/files.md", "python")
    files = {"problem.json": problem, "rewards.jsonl": rewards, "prompts.jsonl": prompts}
    for name, text in (files | {"rollouts.jsonl": rollouts, "log.jsonl": log}).items():
        (tmp_path / name).write_text(text, "utf-8")
    assert load_problem(tmp_path / "problem.json").context_probs.size == len(json.loads(critic))
    assert load_rewards(tmp_path / "rewards.jsonl")[1].shape == (2, 4)
    assert len(load_episodes(json.loads(turns)).episodes.probs) == 4
    row = json.loads(logged)
    lengths = [[len(each) for each in row[key]] for key in ("completion_ids", "log_probs")]
    assert lengths[0] == lengths[1]
    assert len(lengths[0]) == len(row["rewards"])
    for name in ("rollouts.jsonl", "log.jsonl"):
        assert load_rewards(tmp_path / name)[1].shape == (1, 4)
    scope = {}
    exec(verifier, scope)
    task = jsonl_task(tmp_path / "prompts.jsonl", scope["reward"])
    assert task.rewards(task.prompts[0], ["5", " 5", "6"], [[1], [2], [3]]).tolist() == [1, 1, 0]
