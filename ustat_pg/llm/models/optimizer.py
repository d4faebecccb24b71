"""The state of Adam in a trainer's checkpoint: v of each parameter, by name.

It is read from ``optimizer.pt`` of a checkpoint of ``transformers``, from the state dict of any Adam of
torch, keyed by numbers or by names (as FSDP saves a full state), and from tensors by name:
``NAME.exp_avg_sq``, or ``NAME`` alone for v whose bias is corrected already. A state by names may lie in
several files of one folder. torch and safetensors read the files without running code from them.

torch numbers parameters by their place in the optimizer's groups, and a file does not contain their names.
``transformers`` makes two groups, with and without weight decay, each in the order of
``model.named_parameters()``. So numbers are assigned to names such that each group has the model's order
and every shape fits; if more than one assignment fits, this is an error.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...execution.memory import refused
from ...files.reading import regular
from ...noise.metric import adam_scale
from ...validation import InputError, number

NAMES = ("optimizer.pt", "optimizer.bin", "optimizer.safetensors")
"""The files of a checkpoint's folder that are tried first."""

_KINDS = (".pt", ".pth", ".bin", ".safetensors")
_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Parts of names that wrappers of a model add."""
_V, _GROUP = "exp_avg_sq", "group"
_MOST_WAYS = 10_000
"""The most partial assignments of numbers to names that are compared at a time."""


@dataclass(frozen=True, eq=False)
class Second:
    """v of one parameter.

    Attributes:
        v: v / (1 - β₂ᵗ), in the parameter's shape, float32.
        eps: ε.
        rate: the learning rate of its group, divided by the largest of all groups.
    """

    v: Tensor
    eps: float
    rate: float = 1.0

    def diagonal(self, least: float = 0.0) -> Tensor:
        """P = rate / (√v + ε), with v not below ``least``."""
        # v is corrected already, which is what β₂ = 0 says.
        scale: Tensor = self.rate * adam_scale(self.v.clamp(min=least), 1, 0.0, self.eps)
        return scale


def second_moments(source: str | Path, model: nn.Module) -> dict[str, Second]:
    """v of Adam for every parameter in a file, by the model's names.

    Arguments:
        source: a file, or the folder of a checkpoint.
        model: the trained model; its parameters with ``requires_grad`` are those of the optimizer.

    Raises:
        InputError: the file cannot be read, the optimizer is not Adam or has made no step, or parameters
            cannot be told apart.
    """
    path = Path(source).expanduser()
    try:
        return _second_moments(path, model)
    except InputError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: the state is not one of Adam: {type(error).__name__}: {error}"
        ) from error


def _second_moments(path: Path, model: nn.Module) -> dict[str, Second]:
    entries: dict[str, dict[str, Any]] = {}
    aliases = _aliases(model)
    for file in _files(path):
        for name, entry in _read(file, model).items():
            # A name that the model does not know belongs to another part of a trainer, such as a critic.
            own = aliases.get(_bare(name), name)
            known = entries.setdefault(own, {})
            if twice := known.keys() & entry.keys():
                raise InputError(f"{path}: {twice.pop()} of {own} is in several places")
            known |= entry
    return {name: _second(path, name, entry) for name, entry in entries.items()}


def _aliases(model: nn.Module) -> dict[str, str]:
    """The name in ``named_parameters()`` for each bare name; a tied parameter has several."""
    first: dict[nn.Parameter, str] = {}
    return {
        _bare(name): first.setdefault(parameter, name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


def _bare(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [regular(path)]
    named = [path / name for name in NAMES if (path / name).is_file()]
    if named:
        return named[:1]
    every = sorted(file for file in path.iterdir() if file.suffix in _KINDS)
    files = [file for file in every if "optim" in file.name]
    if not files:
        raise InputError(
            f"{path} has no state of an optimizer: there is no {', '.join(NAMES)} and no other file "
            f"*optim*{{{','.join(_KINDS)}}}; sharded checkpoints of torch (.distcp) or DeepSpeed must be "
            "converted to one full state"
        )
    return files


def _read(file: Path, model: nn.Module) -> dict[str, dict[str, Any]]:
    """The state of each parameter in one file by its name, with the settings of its group."""
    data: Any
    with refused(f"{file} cannot be read as the state of an optimizer"):
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            data = load_file(file)
        else:
            # Half of the file is momentum, which is not read then.
            mapped = zipfile.is_zipfile(file)
            data = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    for inner in ("optimizer", "optimizer_state_dict"):
        if isinstance(data, dict) and isinstance(data.get(inner), dict):
            data = data[inner]
    if not isinstance(data, dict) or not data:
        raise InputError(f"{file} has no state of an optimizer: it must contain {_V} by parameter")
    if {"state", "param_groups"} <= data.keys():
        state, groups = data["state"], data["param_groups"]
    else:
        state, groups = _by_name(data), []
    if not isinstance(state, dict) or not state:
        raise InputError(f"{file}: the optimizer has made no step, so there is no {_V}")
    settings, labels = _settings(file, groups), _labels(file, state, groups, model)
    return {
        labels[key]: (entry if isinstance(entry, dict) else {}) | {_GROUP: settings.get(key, {})}
        for key, entry in state.items()
    }


def _by_name(data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A state by names, of tensors by ``NAME.exp_avg_sq`` or by ``NAME``."""
    entries: dict[str, dict[str, Any]] = {}
    flat = any(str(name).endswith(f".{_V}") for name in data)
    for name, value in data.items():
        if isinstance(value, dict):
            entries[name] = value
        elif flat:
            parameter, _, part = str(name).rpartition(".")
            entries.setdefault(parameter, {})[part] = value
        else:
            entries[str(name)] = {_V: value}
    return entries


def _settings(file: Path, groups: Iterable[Mapping[str, Any]]) -> dict[Any, dict[str, Any]]:
    """The settings of each parameter of the groups, with its learning rate relative to the largest."""
    with refused(f"{file}: its param_groups are not those of Adam"):
        # A schedule may have ended at 0.
        rates = [float(group.get("initial_lr", group.get("lr", 1.0))) for group in groups]
        keys = [list(group["params"]) for group in groups]
    most = max(rates, default=1.0)
    if not 0 < most < math.inf:
        raise InputError(f"{file}: no group of the optimizer has a positive learning rate")
    return {
        key: {**group, "rate": rate / most}
        for rate, group, own in zip(rates, groups, keys, strict=True)
        for key in own
    }


def _second(path: Path, name: str, known: Mapping[str, Any]) -> Second:
    group = known.get(_GROUP, {})
    v = known.get("max_exp_avg_sq" if group.get("amsgrad") else _V)
    eight_bit = {"state1", "state2", "qmap1"} & known.keys()
    if eight_bit or (isinstance(v, Tensor) and not v.is_floating_point()):
        raise InputError(f"{path}: {name} has the state of an 8-bit optimizer, whose v is rounded")
    if not isinstance(v, Tensor):
        has = ", ".join(map(str, known.keys() - {_GROUP})) or "no state"
        raise InputError(
            f"{path}: {name} has {has} and no {_V}: the optimizer must be Adam or AdamW"
        )
    v, eps = v.detach().float(), number("eps", group.get("eps", 1e-8), minimum=0.0)
    if "step" in known:
        step, beta2 = float(known["step"]), float(group.get("betas", (0.9, 0.999))[1])
        if step < 1:
            raise InputError(f"{path}: {name} is at step {step:g}: the optimizer has made no step")
        v = v / (1 - beta2**step)
    return Second(v, eps, group.get("rate", 1.0))


def _labels(
    file: Path, state: Mapping[Any, Any], groups: Sequence[Mapping[str, Any]], model: nn.Module
) -> dict[Any, str]:
    """The name of each key of a state."""
    if all(isinstance(key, str) for key in state):
        return {key: key for key in state}
    if groups and all("param_names" in group for group in groups):
        return {
            key: name
            for group in groups
            for key, name in zip(group["params"], group["param_names"], strict=True)
        }
    trained = [(name, p.shape) for name, p in model.named_parameters() if p.requires_grad]
    keys = [list(group["params"]) for group in groups]
    if (count := sum(map(len, keys))) != len(trained):
        raise InputError(
            f"{file} has {count} numbered parameters and the model trains {len(trained)}: their names are "
            "not known; save the state by names"
        )

    def fits(key: Any, shape: torch.Size) -> bool:
        # A parameter without a gradient has no state.
        v = state.get(key, {}).get(_V)
        return v is None or v.shape == shape

    # The numbers of parameters taken from each group, and of ways to get there with one of them.
    ways: dict[tuple[int, ...], tuple[int, tuple[Any, ...]]] = {(0,) * len(keys): (1, ())}
    for name, shape in trained:
        after: dict[tuple[int, ...], tuple[int, tuple[Any, ...]]] = {}
        for places, (number_of, chain) in ways.items():
            for k, group in enumerate(keys):
                if places[k] < len(group) and fits(group[places[k]], shape):
                    place = (*places[:k], places[k] + 1, *places[k + 1 :])
                    before = after.get(place, (0, ()))[0]
                    after[place] = before + number_of, (chain, group[places[k]])
        if not after:
            raise InputError(
                f"{file}: no {_V} has the place and the shape {tuple(shape)} of {name}: this state is of "
                "another model, or its groups do not have the model's order; save the state by names"
            )
        if len(after) > _MOST_WAYS:
            break
        ways = after
    (found,) = [*ways.values()][:1]
    if len(ways) > 1 or found[0] > 1:
        raise InputError(
            f"{file}: parameters of equal shapes in several groups cannot be told apart by their numbers; "
            "save the state by names"
        )
    labels, chain = {}, found[1]
    for name, _ in reversed(trained):
        chain, key = chain
        labels[key] = name
    return labels
