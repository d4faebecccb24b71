"""The options that a user writes, and the framework that they belong to."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import product
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any

from ..registry import ALIASES, ESTIMATORS
from ..validation import InputError, integer, nearest
from .files import is_file, of_commands, of_file, runs_of
from .framework import Framework, release_numbers
from .meaning import Meaning
from .options import Option, short_name
from .records import ALIKE, catalogue
from .sources import FILES, Named, Source, is_there, of_config, options_of, plain
from .trainings import Unclear, Untrained, the_only, trainings
from .unread import ELSEWHERE, may_change, slip


def named(estimator: Any) -> str | None:
    """The name of an estimator of this library; None if it is not one, or if a framework has this name."""
    alone = isinstance(estimator, list | tuple) and len(estimator) == 1
    word = estimator[0] if alone else estimator
    family = word.partition(":")[0] if isinstance(word, str) else None
    known = family in ESTIMATORS or family in ALIASES
    return word if known and word not in catalogue().names else None


def resolve(spec: Any, group_size: int | None = None) -> Meaning:
    """Resolve the options of a framework: ``"framework option=value ..."``, with its own defaults.

    A file may follow the framework, or be given alone: YAML, JSON or TOML, a launch script, Python or a
        notebook with one call of a config class, ``training_args.bin``, the folder of a Hydra run. Nothing of
        it is imported or run. Its parents are read too (``defaults:``, ``config=``). Options after the file
        have priority over those in it. A known option is accepted under any section except those of
        evaluation, optimizers, critics and the like. Other names are ignored, and listed in the result's
        ``passed_over``.

    With a release after the framework, or an exact release of its package in a file (``pip install
    trl==0.19.1``, a ``# /// script``, a ``requirements.txt`` next to it), the defaults of that release are
    used if they are recorded. The result's ``releases`` name it.

    Arguments:
        spec: ``"verl adv_estimator=rloo rollout.n=4"``, ``"trl run.yaml"``, ``"trl==0.19.1"``, ``"run.sh"``,
            or the command that starts a run, ``"python -m verl.trainer.main_ppo algorithm.adv_estimator=rloo
            ..."``; the words of one of these as a list; or a mapping of options, or a config with attributes:
            ``trainer.args``.
        group_size: G; it replaces the group size of the options.

    Raises:
        InputError: the framework or a value is unknown, or the name of an option is nearly right (the message
            gives the nearest); a file has another format, may belong to several frameworks, may give an
            option several values, or lacks a parent that may give one; a script has trainings that differ; a
            release is not recorded, or lacks an option.

    >>> meaning = resolve("verl adv_estimator=rloo rollout.n=4")
    >>> meaning.estimator, meaning.group_size, meaning.aggregation.name
    ('grpo', 4, 'token-mean')
    >>> resolve({"scale_rewards": False, "num_generations": 16, "seed": 3}).estimator
    'group-mean'
    """
    return the_only(resolve_all(spec, group_size))


def resolve_all(spec: Any, group_size: int | None = None) -> tuple[Meaning, ...]:
    """Resolve options as :func:`resolve` does, for each training of a script, in the order of its commands.

    Commands that train nothing are left out, and the results' ``also`` names them.
    """
    if (name := named(spec)) is not None:
        raise InputError(
            f"{name!r} is the name of an estimator: write a framework and its options here"
        )
    several = isinstance(spec, list | tuple) and all(isinstance(word, str) for word in spec)
    if several and len(spec) == 1:
        (spec,) = spec
    if isinstance(spec, str):
        # The name of a file may contain spaces.
        parted = [spec] if is_there(spec) else spec.split(maxsplit=1)
        words = parted if parted and is_there(parted[-1]) else spec.split()
    elif several:
        words, spec = list(spec), shlex.join(spec)
    else:
        source = of_config(spec)
        source.title = f"this {type(spec).__name__}"
        return (_meaning(*_released(_recognised(source), source), group_size, source),)
    if not words:
        raise InputError(
            "estimator is empty: write its name, or a framework and its options, or a file of them"
        )

    def read(source: Source, named: Framework | None = None) -> Meaning:
        return _meaning(*_released(named or _recognised(source), source), group_size, source)

    pinned = _PINNED.fullmatch(words[0])
    if not is_file(words[0]) and not pinned and _is_command(words):
        before = catalogue().names.get(words[0])
        return trainings(of_commands(spec), lambda source: read(source, before))
    first, release = pinned.groups() if pinned else (words[0], None)
    framework = None if is_file(words[0]) else _framework(first)
    words = words[1:] if framework else words
    held, scripts, typed = Source(""), list[Source](), []
    for word in words:
        name, _, value = word.partition("=")
        if is_file(word):
            one, *others = runs_of(word)
            if one.place:
                scripts += [one, *others]
            else:
                held = held.then(one)
        elif plain(name) in FILES and is_file(value):
            held = held.then(of_file(Path(value)))
        else:
            typed.append(word)
    sources = [held.then(source) for source in scripts] or [held]
    if framework and not any(_claims(framework, source) for source in sources):
        whole = Source("")
        for source in sources:
            whole = whole.then(source)
        sources = [whole]

    def read_typed(source: Source) -> Meaning:
        if framework and len(sources) > 1 and not _claims(framework, source):
            raise Unclear(f"{source.title}: its options are not of {framework.title}")
        own, releases = _released(framework or _recognised(source), source, release)
        passed, given = dict[str, str](), dict[str, str]()
        for name, text in options_of(typed, own.is_switch):
            option = _typed(own, name)
            if option is None:
                passed[name] = text
                continue
            if not text and not option.switch:
                raise InputError(f"{name!r} has no value: write {name}=VALUE")
            given[option.name] = option.read(text or "true")
        return _meaning(own, releases, group_size, source, given, passed)

    return trainings(sources, read_typed)


def _framework(word: str) -> Framework:
    """The framework with a typed name; the error says if the word looks like a file or an estimator."""
    try:
        return catalogue().framework(word)
    except InputError:
        near = nearest(word, (*ESTIMATORS, *ALIASES), cutoff=ALIKE)
        if nearest(word, catalogue().names, cutoff=ALIKE) or not (near or re.search("[./]", word)):
            raise
        meant = f": did you mean the estimator {near[0]}?" if near else ""
        raise InputError(f"{word!r} is no framework, estimator or existing file{meant}") from None


def _claims(framework: Framework, source: Source) -> bool:
    """Whether a command is one of a framework's, or has an option of it that determines the answer."""
    kinds = (framework.options[name].kind for name in matched(framework, source.named)[0])
    return _is_run(framework, source) or any(kind in _DECIDING for kind in kinds)


def _released(
    framework: Framework, source: Source, typed: str | None = None
) -> tuple[Framework, list[str]]:
    """The framework at the release that is typed, or that a file names, and sentences about it."""
    package = framework.package or framework.name
    asked = source.asked(package)
    exact = {version for how, version in asked if how == "==" and not version.endswith("*")}
    if typed is None and len(exact) > 1:
        rivals = " and ".join(f"{package}=={version}" for version in sorted(exact))
        raise InputError(
            f"{source.title} names {rivals}: write {framework.name}==VERSION before it"
        )
    now = framework.release or framework.commit
    these = f"these are the options and defaults of {framework.called} {now}"
    release = next(iter(exact), None) if typed is None else typed.removeprefix("v")
    if release is None:
        fits = not framework.earlier or all(_allows(*each, framework.release) for each in asked)
        clauses = ",".join(how + version for how, version in asked)
        return framework, [] if fits else [
            f"{source.title} asks for {package}{clauses}, and {these}: write {framework.name}==VERSION."
        ]
    said = [
        f"{source.title} names {package}=={version}, but the typed release {release} is used."
        for version in sorted(exact - {release})
    ]
    if typed is None and not framework.earlier:
        return framework, [
            f"{source.title} names {package}=={release}, but no releases are recorded: {these}."
        ]
    title = f"{framework.called} {release}"
    title += f", which {source.title} names" if typed is None else ""
    if framework.earlier and release_numbers(release) > release_numbers(framework.release):
        return framework, [*said, f"{title}, is later than the recorded releases: {these}."]
    then = framework.at(release)
    since, before = framework.span(release)
    until = f"to before {before}" if before else "on"
    return then, [*said, f"{title}: these defaults apply from {since} {until}."]


def _allows(how: str, version: str, release: str) -> bool:
    """Whether a clause on a package's release allows one."""
    parts = version.removesuffix(".*").split(".")
    shared = parts[:-1] if how == "~=" else parts
    same = release.split(".")[: len(shared)] == shared
    if version.endswith(".*"):
        return same == (how == "==")
    numbers = release_numbers(release), release_numbers(version)
    return same and ge(*numbers) if how == "~=" else _COMPARED[how](*numbers)


def _typed(framework: Framework, name: str) -> Option | None:
    """The option with a typed name; None if the framework has no such option."""
    return framework.option(name) if framework.matching(name) else None


def _refuse_slips(framework: Framework, names: Mapping[str, str], given: Container[str]) -> None:
    """Raise an error if a name that is not read is nearly that of an option that is not given.

    Arguments:
        names: the beginning of the message, by name.
    """
    options = framework.names()
    for name, title in names.items():
        written = plain(name)
        *sections, last = written.split(".")
        own = {written, last} & {*framework.foreign} or any(map(ELSEWHERE.match, sections))
        near = None if own else slip(written, options)
        if near and options[near].name not in given:
            meant = short_name(near)
            raise InputError(
                f"{title}{framework.title} has no option {name!r} in the catalogue: did you mean {meant}? If "
                f"not, write {meant}=VALUE too"
            )


def _meaning(
    framework: Framework,
    releases: Sequence[str],
    group_size: int | None,
    source: Source,
    typed: Mapping[str, str] | None = None,
    passed: Mapping[str, str] | None = None,
) -> Meaning:
    if not any(_runs(pattern, source) for pattern in framework.commands):
        for pattern, words in framework.refused.items():
            if run := _runs(pattern, source):
                raise Untrained(
                    f"{source.title} runs {run.group(1)}: {words}", f"`{run.group(1)}`: {words}"
                )
    known, foreign = _known(framework, source, typed or {})
    for name, (pattern, why) in product(foreign, framework.excludes.items()):
        if re.fullmatch(pattern, plain(name)):
            reason = f"{name} is not an option of {framework.title}: {why}"
            raise Untrained(f"{source.title}: {reason}", f"`{source.program}` with {reason}")
    given = {**known, **(typed or {})}
    origins = dict.fromkeys(passed or (), "") | dict.fromkeys(foreign, f"{source.title}: ")
    _refuse_slips(framework, origins, given)
    (grouping,) = framework.of_kind("group size")
    said = {*given, grouping.name} if group_size is not None else {*given}
    _refuse_unsaid(framework, source, said)
    if (
        framework.elsewhere
        and (run := _runs(framework.elsewhere, source))
        and grouping.name not in said
    ):
        raise InputError(
            f"{source.title} runs {run.group(1)}, whose own config may set {grouping.name}: write "
            f"{short_name(grouping.name)}=G after the file"
        )
    defaults = {option.name: option.unsaid(given) for option in framework.options.values()}
    values = {**defaults, **given}
    if group_size is not None:
        values[grouping.name] = str(integer("group size", group_size))
    size = values[grouping.name]
    aggregation = framework.adds_up(values, "aggregation", "loss")
    written = dict(source.named)
    unread = {**(passed or {}), **{name: written[name] for name in foreign}}
    unread = {name: text for name, text in unread.items() if plain(name) not in FILES}
    return Meaning(
        framework=framework,
        row=framework.row(values),
        values=values,
        # A config has every option, and most of them have the default.
        given=tuple(
            name
            for name in given
            if name in (typed or ()) or given[name] != framework.options[name].default
        ),
        group_size=None if size == "none" else int(size),
        aggregation=catalogue().aggregations[aggregation],
        passed_over=tuple(unread),
        may_change=tuple(
            name
            for name in may_change(unread)
            if not any(re.fullmatch(each, plain(name)) for each in framework.harmless)
        ),
        releases=tuple(releases),
        said=tuple(_said(framework, source, {*(typed or {}), *[grouping.name] * bool(group_size)})),
    )


def _said(framework: Framework, source: Source, typed: Iterable[str]) -> Iterator[str]:
    """Sentences on what only the run knows: defaults of a script's own options, and words of a command."""
    if source.more:
        yield f"Only the run itself knows which options {' and '.join(source.more)} may add."
    for written, own in source.defaults.items():
        for name in matched(framework, [(written, "")])[0]:
            if own and name not in typed:
                size = framework.options[name].kind == "group size"
                called = "G" if size else short_name(name)
                yield f"{called} is the default of your script's option {own}."


def _known(
    framework: Framework, source: Source, typed: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The framework's options among the names in the sources, and the remaining names."""
    matches, foreign = matched(framework, source.named)
    values = {}
    names = framework.names()
    for option, written in ((framework.options[name], pairs) for name, pairs in matches.items()):
        if option.name in typed:
            continue
        if option.kind not in _DECIDING and any("$" in text for _, text in written):
            values[option.name] = "none"
            foreign += [name for name, _ in written]
            continue
        written = [*dict(written).items()]  # The last value of a name applies.
        own = [pair for pair in written if plain(pair[0]) in names]
        texts = {
            _read(option, text or ("true" if option.switch else "none"), source): name
            for name, text in own or written
            if _is_value(option, name, text)
        }
        if not own and len(texts) > 1:
            rivals = " or ".join(f"{name}={value}" for value, name in texts.items())
            raise InputError(
                f"{source.title}: {option.name} may be {rivals}: write {short_name(option.name)}=VALUE"
            )
        if texts:
            values[option.name] = [*texts][-1]
    return values, foreign


def _read(option: Option, text: str, source: Source) -> str:
    if option.kind == "trainer" and (why := option.refusal(text)):
        reason = f"{option.name} is {text!r}: {why}"
        raise Untrained(f"{source.title}: {reason}", f"`{source.program}` with {reason}")
    return option.read(text)


def _is_value(option: Option, name: str, text: str) -> bool:
    if text in ("none", "null") and (
        option.kind == "group size" or "none" not in option.values != ()
    ):
        return False
    if "$" in text:
        raise InputError(
            f"{name} is {text!r}; only the run itself knows its value: write {name}=VALUE after the file"
        )
    if not text and not option.switch and name.startswith("-"):
        raise InputError(f"{name!r} has no value: write {name}=VALUE")
    return True


def matched(framework: Framework, named: Named) -> tuple[dict[str, Named], list[str]]:
    """The written values of each option, by its name or by its last parts under another section, and the
    names that match no option.
    """
    names = {name: option.name for name, option in framework.names().items()}
    tails = defaultdict[str, set[str]](set)
    for word, of in names.items():
        tails[word].add(of)
        tails[short_name(word)].add(of)
    found, foreign = defaultdict[str, Named](list), []
    for written, text in named:
        option = names.get(plain(written)) or _by_tail(plain(written), tails)
        if option is None or plain(written) in framework.foreign:
            foreign.append(written)
        else:
            found[option].append((written, text))
    return dict(found), foreign


def _by_tail(name: str, tails: Mapping[str, set[str]]) -> str | None:
    parts = name.split(".")
    if any(ELSEWHERE.match(part) for part in parts[:-1]):
        return None
    for start in range(len(parts)):
        options = tails.get(".".join(parts[start:]), set())
        if len(options) == 1:
            return next(iter(options))
    return None


def _refuse_unsaid(framework: Framework, source: Source, said: Iterable[str]) -> None:
    """Raise an error if a missing parent or an unread value may set an option that would get its default."""
    missing = [name for name in source.missing if Path(name).stem not in framework.bases]
    unsaid = [
        option
        for option in framework.options.values()
        if option.kind in _DECIDING and option.name not in said
    ]
    names = ", ".join(short_name(option.name) for option in unsaid)
    if missing and unsaid:
        raise InputError(
            f"{source.title}: its parent {', '.join(missing)}, which may set {names}, is missing: put it "
            "there, or write these options after the file"
        )
    unread = {plain(name).rpartition(".")[2] for name in source.unread}
    hidden = [option for option in unsaid if {option.name, *option.aliases} & unread]
    if hidden or (unsaid and any(name.startswith("**") for name in source.unread)):
        names = ", ".join(short_name(option.name) for option in hidden) or names
        raise InputError(
            f"{source.title}: only the run itself sets {names}: write the value after the file"
        )


def _recognised(source: Source) -> Framework:
    """The framework of the commands, or the only framework that has the names of these advantage options."""
    frameworks = {
        name: each
        for name, each in catalogue().frameworks.items()
        if not each.in_code or any(_runs(pattern, source) for pattern in each.commands)
    }
    known = {
        name: {
            option: pairs
            for option, pairs in matched(each, source.named)[0].items()
            if each.options[option].kind not in _COMMON
        }
        for name, each in frameworks.items()
    }
    scores = {name: _score(frameworks[name], source, pairs) for name, pairs in known.items()}
    most = max(scores.values())
    best = [name for name, score in scores.items() if score == most]
    best = [name for name in best if frameworks[name].names_of not in best]
    some = known[best[0]] or source.unread or _is_run(frameworks[best[0]], source)
    if len(best) == 1 and some and (most[0] or _told(best[0], known)):
        return frameworks[best[0]]
    signed = [name for name, each in frameworks.items() if _has_a_sign(each, source)]
    order = {name: (not frameworks[name].names_of, scores[name]) for name in signed}
    rivals = sorted(order, key=order.__getitem__, reverse=True)[:_RIVALS]
    if not rivals:
        raise Unclear(
            f"{source.title}: the framework of these options is not clear: it may be one of several, or none "
            "known here. If you know it, write it before the file: 'FRAMEWORK FILE'",
            rivals=any(_tells(frameworks[name], pairs) for name, pairs in known.items()),
        )
    titles = " or ".join(frameworks[name].title for name in rivals)
    raise Unclear(
        f"{source.title}: it could be of {titles}, or of none known here: if you know it, write its name, "
        f"{rivals[0]} for example, before the file",
        rivals=True,
    )


def _is_run(framework: Framework, source: Source) -> bool:
    """Whether a source runs a program of the framework that is known by its whole name, or is refused, or
    calls a class of it.
    """
    whole = [pattern for pattern in framework.commands if not re.search(r"[\[(*+?]", pattern)]
    patterns = (*whole, *framework.refused, *framework.classes)
    return any(_runs(pattern, source) for pattern in patterns)


def _has_a_sign(framework: Framework, source: Source) -> bool:
    """Whether a source has what only this framework has: a program or class, or a name with its sections.

    One section before a word that others have too, ``train.beta``, is no sign.
    """
    family = framework.names_of or framework.name
    others = {
        name
        for each in catalogue().frameworks.values()
        if (each.names_of or each.name) != family
        for name in each.names()
    }
    written = {plain(name) for name, _ in source.named if "." in name}
    whole = written & framework.names().keys()
    common = {"." + name.rpartition(".")[2] for name in others}
    own = {
        name
        for name in whole
        if (name.count(".") > 1 or "." + name.rpartition(".")[2] not in common)
        and not any(f".{one}".endswith(f".{name}") for one in others)
    }
    return bool(own) or _signs(framework, source) > 0


def _signs(framework: Framework, source: Source) -> int:
    """The number of its programs, classes and signs that a source has."""
    patterns = (*framework.commands, *framework.refused, *framework.classes)
    names = [plain(name) for name, _ in source.named]
    runs = sum(bool(_runs(pattern, source)) for pattern in patterns)
    return runs + sum(bool(re.fullmatch(sign, name)) for sign in framework.signs for name in names)


def _score(framework: Framework, source: Source, known: Mapping[str, Named]) -> tuple[int, ...]:
    """How well commands and options fit a framework: by what runs, by full names, and by last parts."""
    names, options = framework.names(), framework.options
    written = [plain(name) for name, _ in source.named]
    whole = {names[name].name for name in written if name in names}
    counts = [
        (
            sum(options[name].kind == "advantage" for name in of),
            sum(options[name].kind in _TELLING for name in of),
        )
        for of in (whole, known)
    ]
    told = (*counts[0], -_wrong(framework, known), *counts[1])
    return _signs(framework, source), *told, _in_clone(framework, source), len(known)


def _in_clone(framework: Framework, source: Source) -> bool:
    """Whether a file's folder has the framework's name, to separate frameworks with equal options."""
    folder = re.compile(
        rf"(.*\W)?{re.escape(framework.repository.rpartition('/')[2])}", re.IGNORECASE
    )
    return any(folder.fullmatch(part) for part in Path(source.title).absolute().parts[:-1])


def _told(name: str, known: Mapping[str, Mapping[str, Named]]) -> bool:
    """Whether some of the names choose the advantage, and no framework of another family has all of these
    names, in full or by their last parts.
    """
    frameworks = catalogue().frameworks

    def words(name: str, whole: bool) -> set[str]:
        each = frameworks[name]
        return {
            word
            for pairs in known[name].values()
            for word, _ in pairs
            if not whole or plain(word) in each.names()
        }

    # A name with its sections is stronger evidence than the last part of another name, except for G alone.
    advantage = any(frameworks[name].options[each].kind == "advantage" for each in known[name])
    whole = advantage and any("." in word for word in words(name, True))
    own, wrong = words(name, whole), _wrong(frameworks[name], known[name])
    root = frameworks[name].names_of or name
    return _tells(frameworks[name], known[name]) and all(
        own - words(other, whole)
        for other, each in ((other, frameworks[other]) for other in known)
        if (each.names_of or other) != root and _wrong(each, known[other]) <= wrong
    )


def _tells(framework: Framework, known: Mapping[str, Named]) -> bool:
    """Whether an advantage option of the framework is named; or G, if its default is a group baseline."""
    kinds = {framework.options[name].kind for name in known}
    if not framework.of_kind("advantage"):
        return False
    values = {option.name: option.unsaid({}) for option in framework.options.values()}
    default = next((row for row in framework.rows if row.fits(values)), None)
    alone = default is None or default.other == "critic"
    return not kinds.isdisjoint(_TELLING[:1] if alone else _TELLING)


def _wrong(framework: Framework, known: Mapping[str, Named]) -> int:
    """The number of options with a value that they do not allow."""
    return sum(_is_wrong(framework.options[name], pairs) for name, pairs in known.items())


def _is_wrong(option: Option, pairs: Named) -> bool:
    """Whether the option does not allow this value."""
    try:
        for _, text in pairs:
            if not option.refusal(text or "true"):
                option.read(text or "true")
    except InputError:
        return "$" not in pairs[-1][1]
    return False


def _runs(pattern: str, source: Source) -> re.Match[str] | None:
    return re.search(rf"(?:^|[\s/\"'])({pattern})(?:$|[\s\"'])", source.runs, re.MULTILINE)


def _is_command(words: list[str]) -> bool:
    """Whether the words start a run, or are only options, and not a framework with a file or with options."""
    if words[0] in catalogue().names and is_file("".join(words[1:2])):
        return False
    return (
        bool(re.search("^--|=", words[0]))
        or "-m" in words
        or any(
            len(words) > 1 and re.fullmatch(pattern, f"{words[0]} {words[1]}")
            for each in catalogue().frameworks.values()
            for pattern in (*each.commands, *each.refused)
        )
        or any(word.endswith(".py") for word in words)
    )


_PINNED = re.compile(r"([\w.-]+)(?:\[[\w,-]*\])?==(.*)")
_COMPARED = {"==": eq, ">=": ge, "<=": le, "!=": ne, "<": lt, ">": gt}

NEAR = 0.9
"""The similarity of two names from which one counts as a typing error of the other."""

_RIVALS = 4
"""The most frameworks that a message lists if a file may belong to several."""

_TELLING = ("advantage", "group size", "aggregation")
_DECIDING = (*_TELLING, "preset", "KL", "loss", "length")
"""The kinds of options that determine the answer."""

_COMMON = ("policy", "sampling", "score", "rewards", "engine")
"""The kinds of options whose names occur in every trainer, so they do not identify the framework."""
