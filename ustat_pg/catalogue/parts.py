"""YAML files with references and parents (``defaults:``), as in Hydra and NeMo-RL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..files.reading import read_text, read_yaml
from ..validation import InputError, needed
from .options import as_text
from .sources import ABOVE, YAML, Source, of_sections


def of_yaml(path: Path) -> Source:
    data = read_yaml(path)
    if not isinstance(data, Mapping) or not ("defaults" in data or "${" in read_text(path)):
        return Source(str(path), of_sections(path, data))
    with needed(f"{path}, which has parents or references,", "configs"):
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    source = Source(str(path))
    parts = [*_parts(path, (path.parent, *_searched(data, path.parent)), source, ())]
    whole: Any = OmegaConf.create()
    try:
        for part in parts:
            for name, section in part.items():
                # NeMo-RL's word for a section that its parents do not have.
                if isinstance(section, Mapping) and section.get("_override_"):
                    whole.pop(name, None)
            whole = OmegaConf.merge(whole, OmegaConf.create(part))
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        if "defaults" not in data:  # These are references to a workflow's expressions.
            return Source(str(path), of_sections(path, data))
        raise InputError(
            f"{path}: its parents and references do not fit together: {' '.join(str(error).split())}"
        ) from None
    source.named = [
        (name, _resolved(whole, name, text))
        for name, text in of_sections(path, OmegaConf.to_container(whole))
    ]
    # Hydra makes these, from classes of the framework or of others.
    source.runs = "\n".join(text for name, text in source.named if name.endswith("_target_"))
    return source


def _resolved(whole: Any, name: str, text: str) -> str:
    """A value with its references resolved; the text itself if only the framework can resolve it."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not _REFERENCE.fullmatch(text):
        return text
    try:
        return as_text(OmegaConf.select(whole, name))
    except OmegaConfBaseException:
        return text


def _searched(data: Mapping[Any, Any], folder: Path) -> Iterator[Path]:
    """The folders of Hydra's search path; only the run itself may know where they start."""
    hydra = data.get("hydra")
    paths = hydra.get("searchpath") if isinstance(hydra, Mapping) else None
    for word in paths if isinstance(paths, list) else ():
        name = re.sub(r"^file://(.*\}/+)?", "", str(word))
        above = [folder, *folder.absolute().parents[:ABOVE]]
        yield from [place / name for place in above if (place / name).is_dir()][:1]


def _parts(
    path: Path, roots: tuple[Path, ...], source: Source, above: tuple[Path, ...]
) -> Iterator[Any]:
    """A file's parents in order, with the file itself in its place among them."""
    if path in above:
        raise InputError(f"{path}: it is its own parent")
    data = read_yaml(path) or {}
    if not isinstance(data, Mapping):
        raise InputError(f"{path}: it must hold options by name")
    own = {name: value for name, value in data.items() if name != "defaults"}
    entries = data.get("defaults", [])
    entries = entries if isinstance(entries, list) else [entries]
    # Hydra puts a file after its parents unless the file gives its own place.
    for entry in entries if "_self_" in entries else [*entries, "_self_"]:
        if entry == "_self_":
            yield own
            continue
        for name, package in _parents(entry):
            beside = name.startswith(".") or name.endswith(YAML)
            file = name if name.endswith(YAML) else f"{name}.yaml"
            places = [folder / file for folder in ((path.parent,) if beside else roots)]
            place = next(filter(Path.is_file, places), None)
            if place is None:
                source.missing.append(name)
                continue
            for part in _parts(place, roots, source, (*above, path)):
                for key in reversed(package):
                    part = {key: part}
                yield part


def _parents(entry: Any) -> Iterator[tuple[str, list[str]]]:
    """The files that an entry of ``defaults`` names, and their sections."""
    if isinstance(entry, str):
        yield entry.partition("@")[0], []
    elif isinstance(entry, Mapping):
        for key, choices in entry.items():
            words = str(key).split()
            group, _, package = words[-1].partition("@")
            if words[0] == "override" or group.startswith("hydra/"):
                continue
            for choice in choices if isinstance(choices, list) else [choices]:
                if choice is not None:
                    section = (package or group.strip("/").replace("/", ".")).split(".")
                    section = [] if package in ("_global_", "_here_") else section
                    yield f"{group.lstrip('/')}/{choice}", section


_REFERENCE = re.compile(r"\$\{[\w.\[\]]+\}")
