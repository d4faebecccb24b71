"""Whether a launch script passes the options that we read in it:

    python -m benchmarks.arguments FOLDER --sandbox [--record REAL.json] [--differences FILE]

Each script of FOLDER that the list of ``benchmarks.configs`` names is run by bash, with every program
replaced by one that writes down its arguments and does nothing. Its real argument lists are compared with the
commands and with the options that the catalogue reads in the file.

Scripts are others' code: run this in a machine that can be thrown away. They run without a network, in a
process and mount namespace of their own (``unshare``), in a root folder that holds a copy of their
repository, bash, and the few programs that compute names; for at most five seconds each. It starts only
with ``--sandbox``, and only where such a namespace can be made.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tabulate import tabulate

from ustat_pg.catalogue.framework import Framework
from ustat_pg.catalogue.records import catalogue
from ustat_pg.catalogue.shell import commands_of
from ustat_pg.catalogue.sources import Named, options_of
from ustat_pg.catalogue.specs import matched, resolve_all
from ustat_pg.validation import InputError

TOOLS = shlex.split("""
awk basename bash cat chmod cp cut date dirname env expr false find grep head hostname id ln ls
mkdir mktemp mv nohup nproc pwd readlink realpath rm sed seq sh sleep sort tail tee test timeout
touch tr true uname uniq wc whoami xargs
""")
"""Programs that compute names; ``sleep`` and others that wait are replaced."""

STUBS = shlex.split("""
accelerate apptainer apt-get aws axolotl conda curl deepspeed df docker du enroot free fuser gcloud
git gsutil hf huggingface-cli ip jq kill killall kubectl llamafactory-cli lscpu lsof make modelscope
module mpirun nc numactl nvidia-smi pgrep pip pip3 pkill ps python python3 ray sbatch scontrol
sglang singularity sleep srun ssh sudo swift tmux torchrun trl uv vllm wandb wget
""")
"""Programs that write down their arguments and do nothing, in addition to all that do not exist."""

REPOSITORY = "/home/repository"
"""The copy of a script's repository in the sandbox."""

END = "\x01"
"""The end of a command's arguments."""

_STUB = r"""#!/bin/bash
(return 0 2>/dev/null) && return 0
printf '%s\0' "$0" "$@" $'\x01' >> /record
exit 0
"""
_ENV = r"""command_not_found_handle() { printf '%s\0' "$@" $'\x01' >> /record; return 0; }
kill() { :; }
ulimit() { :; }
"""
_START = r"""
set -e
for folder in /usr/lib /lib /lib64; do
  [ -d $folder ] || continue
  mkdir -p "$ROOT$folder"; mount --rbind $folder "$ROOT$folder"; mount -o remount,ro,bind "$ROOT$folder"
done
for device in null zero urandom; do
  touch "$ROOT/dev/$device"; mount --bind /dev/$device "$ROOT/dev/$device"
done
mount -t proc proc "$ROOT/proc"; ln -sfn /proc/self/fd "$ROOT/dev/fd"
exec chroot "$ROOT" /bin/bash --noprofile --norc -c "$INSIDE"
"""
_INSIDE = r"""
cd "$1" || exit 1
ulimit -f 20000 -u 500 -v 4000000
: > /record
exec /bin/timeout -k 1 5 /bin/bash "$2" < /dev/null > /output 2> /errors
"""

SCRIPTS = (".sh", ".slurm")
"""Endings of the scripts that are run."""

SECONDS = 20
"""The longest time for one script, its start and end included."""


@dataclass(frozen=True)
class Run:
    """The commands of a script's run.

    Arguments:
        commands: the words of each command, in order.
        ended: whether it ended by itself, without an error.
    """

    commands: list[list[str]]
    ended: bool


class Sandbox:
    """A root folder with a copy of a repository, in which nothing but bash and programs on names exist."""

    def __init__(self, root: Path, repository: Path) -> None:
        self.root = root
        for name in ("bin", "usr", "dev", "proc", "tmp", "home", "etc"):
            (root / name).mkdir(parents=True)
        for name in ("usr/bin", "usr/local/bin", "opt/conda/bin"):
            place = root / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to("/bin")
        for name in TOOLS:
            if found := shutil.which(name):
                shutil.copy(Path(found).resolve(), root / "bin" / name)
        for name in STUBS:
            self.stub(Path("/bin") / name)
        (root / "etc/env").write_text(_ENV)
        shutil.copytree(repository, root / "home/repository", copy_function=os.link)

    def stub(self, place: Path) -> None:
        """Put a program that writes down its arguments at an absolute path of the sandbox."""
        file = self.root / place.relative_to("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_text(_STUB)
        file.chmod(0o755)

    def run(self, script: Path, tries: int = 6) -> Run:
        """Run a script, named from the repository, there; what it misses is put there, and it runs again."""
        folders = [Path(REPOSITORY), Path(REPOSITORY, script.parent)]
        best = Run([], False)
        for folder in folders:
            for _ in range(tries):
                found = self._once(script, folder)
                best = max(best, found, key=lambda each: (each.ended, len(each.commands)))
                if found.ended or not self._missing(folder):
                    break
            if best.commands:
                break
        return best

    def _once(self, script: Path, folder: Path) -> Run:
        place = f"{REPOSITORY}/{script}"
        environment = {
            "ROOT": str(self.root),
            "INSIDE": f"set -- {shlex.quote(str(folder))} {shlex.quote(place)}\n{_INSIDE}",
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/home",
            "BASH_ENV": "/etc/env",
        }
        started = subprocess.run(
            [*_UNSHARED, "sh", "-c", _START],
            env=environment,
            timeout=SECONDS,
            capture_output=True,
            check=False,
        )
        record = self.root / "record"
        text = record.read_bytes().decode(errors="replace") if record.exists() else ""
        commands = [part.split("\0")[:-1] for part in text.split(f"{END}\0")[:-1]]
        return Run(commands, started.returncode == 0)

    def _missing(self, folder: Path) -> bool:
        """Whether there was something missing, which is put there now."""
        errors = (self.root / "errors").read_text(errors="replace")
        found = False
        for how, name in _MISSING.findall(errors):
            place = Path(name) if name.startswith("/") else folder / name
            inside = self.root / place.relative_to("/")
            if ".." in place.parts or inside.exists():
                continue
            if how:
                inside.mkdir(parents=True, exist_ok=True)
            else:
                self.stub(place)
            found = True
        return found


_MISSING = re.compile(r"(?m)line \d+: (cd: )?([\w./+-]+): No such file or directory$")
_UNSHARED = ["unshare", "-r", "-n", "-m", "-p", "-f", "--kill-child"]


def _large(folder: str, names: list[str]) -> set[str]:
    """The parts of a repository that are not copied: its history, links, and files over a megabyte."""
    places = {name: Path(folder, name) for name in names}
    return {
        name
        for name, place in places.items()
        if name == ".git"
        or place.is_symlink()
        or not (place.is_dir() or (place.is_file() and place.stat().st_size < 2**20))
    }


def can_be_made() -> bool:
    """Whether a namespace without a network can be made here."""
    if not shutil.which("unshare"):
        return False
    tried = subprocess.run(
        [*_UNSHARED, "cat", "/proc/self/net/dev"], capture_output=True, text=True, check=False
    )
    devices = re.findall(r"(?m)^\s*(\S+):", tried.stdout)
    return tried.returncode == 0 and devices == ["lo"]


def recorded(folder: Path, scripts: Iterable[str]) -> Iterator[tuple[str, Run]]:
    """The run of each script; a name begins with its repository's folder."""
    by_repository: dict[str, list[str]] = {}
    for name in filter(lambda name: (folder / name).is_file(), scripts):
        by_repository.setdefault(name.partition("/")[0], []).append(name)
    for repository, names in by_repository.items():
        with TemporaryDirectory() as whole:
            copy = Path(whole) / "repository"
            shutil.copytree(folder / repository, copy, ignore=_large)
            for name in names:
                with TemporaryDirectory() as temporary:
                    sandbox = Sandbox(Path(temporary) / "root", copy)
                    yield name, sandbox.run(Path(name).relative_to(repository))


@dataclass(frozen=True)
class Difference:
    """An option of a command that we read in another way than the script passes it.

    Arguments:
        script: the script.
        option: the option's name as the script passes it; or ``the command`` where we miss it.
        real: the value that the script passed.
        ours: the value that we read.
    """

    script: str
    option: str
    real: str
    ours: str


@dataclass
class Counts:
    """How many scripts and values were compared.

    Arguments:
        scripts: scripts that ran a command with an option of their framework.
        commands: these commands.
        lists: those among them with the same words as ours, up to words that only a run knows.
        values: the values of the framework's options in them.
        open: those among them of which we say that only the run knows them.
        answers: explanations of trainings in these scripts whose command ran.
        explained: values of options in these commands that an explanation has.
        different: the differences, in commands or explanations.
    """

    scripts: int = 0
    commands: int = 0
    lists: int = 0
    values: int = 0
    open: int = 0
    answers: int = 0
    explained: int = 0
    different: list[Difference] = field(default_factory=list)


def options(framework: Framework, words: Sequence[str]) -> dict[str, str]:
    """The framework's options in the words of a command, by the names that are written."""
    found = matched(framework, options_of(words))[0].values()
    return {name: value for pairs in found for name, value in pairs}


def compare(
    script: str, framework: Framework, real: Run, ours: list[list[str]], to: Counts
) -> None:
    """Add up how the commands that a script ran compare with those that we read in it."""
    ran = [words for words in real.commands if options(framework, words)]
    left = [words for words in ours if options(framework, words)]
    to.scripts += bool(ran)
    for words in ran:
        to.commands += 1
        passed = options(framework, words)
        to.values += len(passed)
        alike = {place: _alike(passed, options(framework, each)) for place, each in enumerate(left)}
        if not alike:
            to.different.append(Difference(script, "the command", shlex.join(words), ""))
            continue
        nearest = left.pop(max(alike, key=alike.__getitem__))
        read = options(framework, nearest)
        to.lists += same_words(words, nearest)
        hidden = any("$" in word for word in nearest if not _OPTION.match(word))
        for name, value in passed.items():
            mine = read.get(name, "$" if hidden else "nothing")
            to.open += "$" in mine
            if mine != value and "$" not in mine:
                to.different.append(Difference(script, name, value, mine))


def read(folder: Path, name: str) -> list[list[str]]:
    """The commands that we read in a script, with its repository where the sandbox has it."""
    here = str((folder / name.partition("/")[0]).absolute())
    commands = commands_of(folder / name)
    return [[word.replace(here, REPOSITORY) for word in words] for words in commands]


def compare_answers(
    script: str, path: Path, framework: Framework, real: Run, ours: list[list[str]], to: Counts
) -> None:
    """Add up how the explanations of a script compare with the commands that it ran, without values that only
    the run knows.
    """
    every = [pair for words in ours for pair in matched(framework, options_of(words))[0].items()]
    hidden = {name for name, pairs in every if any("$" in text for _, text in pairs)}
    ran = [found for words in real.commands if (found := matched(framework, options_of(words))[0])]
    try:
        meanings = resolve_all([str(path)])
    except InputError:
        return
    for meaning in meanings if ran else ():
        if meaning.framework.name != framework.name:
            continue
        passed = [
            {name: value for name, value in _values(framework, found).items() if name not in hidden}
            for found in ran
        ]
        nearest = min(passed, key=lambda each: len(_other(each, meaning.values)))
        to.answers += 1
        to.explained += len(nearest)
        for name, value in _other(nearest, meaning.values).items():
            to.different.append(Difference(script, name, value, meaning.values[name]))


def _values(framework: Framework, found: Mapping[str, Named]) -> dict[str, str]:
    """The values of options as the framework reads them, by their full names; the last one counts."""
    values = {}
    for name, pairs in found.items():
        option = framework.options[name]
        with suppress(InputError):
            values[name] = option.read(pairs[-1][1] or ("true" if option.switch else "none"))
    return values


def _other(passed: Mapping[str, str], read: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in passed.items() if read[name] != value}


def _alike(passed: dict[str, str], read: dict[str, str]) -> int:
    return sum(read.get(name) == value for name, value in passed.items())


def same_words(real: Sequence[str], ours: Sequence[str]) -> bool:
    """Whether two lists of words are the same, where one of ours with a ``$`` may be any number of words.

    >>> same_words(["python", "a=1", "b=2"], ["python", "a=$A", "$MORE"])
    True
    """
    place, at, again, start = 0, 0, 0, None
    # A program is known by its name: the sandbox has it in another folder.
    real, ours = ([words[0].rpartition("/")[2], *words[1:]] for words in (real, ours))
    while at < len(real):
        if place < len(ours) and "$" in ours[place]:
            start, again = place, at
            place += 1
        elif place < len(ours) and ours[place] == real[at]:
            place, at = place + 1, at + 1
        elif start is not None:
            again += 1
            place, at = start + 1, again
        else:
            return False
    return all("$" in word for word in ours[place:])


_OPTION = re.compile(r"[-+]|[\w.+~]*=")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--list", type=Path, default=Path(__file__).with_name("data") / "configs.jsonl"
    )
    parser.add_argument("--sandbox", action="store_true", help="this machine can be thrown away")
    parser.add_argument(
        "--record", type=Path, help="a file for the real arguments; read if it exists"
    )
    parser.add_argument("--differences", type=Path, help="a file for the differences")
    given = parser.parse_args(arguments)
    expected = [json.loads(line) for line in given.list.read_text("utf-8").splitlines()]
    of = {each["path"]: each["framework"] for each in expected if each["path"].endswith(SCRIPTS)}
    if given.record and given.record.exists():
        stored = json.loads(given.record.read_text("utf-8"))
        runs = {name: Run(**run) for name, run in stored.items()}
    elif given.sandbox and can_be_made():
        runs = dict(recorded(given.folder, of))
    else:
        parser.error(
            "scripts run only with --sandbox, and where unshare makes a place without a network"
        )
    if given.record and not given.record.exists():
        given.record.write_text(
            json.dumps({name: vars(run) for name, run in runs.items()}), "utf-8"
        )
    counts: dict[str, Counts] = {}
    for name, run in runs.items():
        framework = catalogue().frameworks.get(of[name])
        if framework and (given.folder / name).is_file():
            ours = read(given.folder, name)
            to = counts.setdefault(of[name], Counts())
            compare(name, framework, run, ours, to)
            compare_answers(name, given.folder / name, framework, run, ours, to)
    numbers = ("scripts", "commands", "lists", "values", "open", "answers", "explained")
    table = [
        [name, *(getattr(each, part) for part in numbers), len(each.different)]
        for name, each in sorted(counts.items())
    ]
    table.append(
        ["all", *(sum(row[place] for row in table) for place in range(1, len(numbers) + 2))]
    )
    print(tabulate(table, ["framework", *numbers, "different"], tablefmt="github"))
    lines = [
        "\t".join(map(repr, astuple(each))) for every in counts.values() for each in every.different
    ]
    if given.differences:
        given.differences.write_text("\n".join(lines) + "\n", "utf-8")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
