"""The metric of an optimizer's step, for the scores of a model.

A step P ĝ with P fixed has the constants c1, c2, c3, G* and the critical budget of scores multiplied by √P.
For Adam P = diag(1/(√v + ε)).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...validation import InputError
from ..models.optimizer import second_moments

SMALL = 1e-3
"""v below this share of the median of all v is called small."""


@dataclass(frozen=True, eq=False)
class Metric:
    """The metric of Adam's step for some parameters, whose entries follow each other: d in all.

    The diagonal of P is kept in two parts, because coordinates of small v can carry the result although
    little is known about them.

    Attributes:
        root: √P, (d,), 0 where v is small.
        small: the coordinates of small v, in order, (m,).
        small_root: √P there, (m,).
        capped_root: √P there if v is not less than ``floor``, (m,).
        floor: a thousandth of the median of all v that are not 0; v is small below it.
        facts: the origin of the metric in JSON's types.
    """

    root: Tensor
    small: Tensor
    small_root: Tensor
    capped_root: Tensor
    floor: float
    facts: Mapping[str, Any]

    def within(self, start: int, stop: int) -> slice:
        """The places in ``small`` of the coordinates from ``start`` to before ``stop``."""
        first, last = np.searchsorted(self._order, [start, stop])
        return slice(int(first), int(last))

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        # A search on a GPU would wait for its other work.
        return self.small.cpu().numpy()

    def to(self, like: Tensor) -> Metric:
        """The metric with the precision and on the device of a tensor."""
        names = ("root", "small_root", "capped_root")
        moved = {name: getattr(self, name).to(like) for name in names}
        return replace(self, small=self.small.to(like.device), **moved)


def adam_metric(source: str | Path, model: nn.Module, names: Sequence[str]) -> Metric:
    """The metric of Adam's step for some parameters of a model.

    Arguments:
        source: a file or the folder of a checkpoint.
        model: the trained model; its parameters with ``requires_grad`` are those of the optimizer.
        names: the parameters to score, as ``model.named_parameters()`` names them.

    Raises:
        InputError: v of a parameter is missing, has another shape or is 0 everywhere; the optimizer is not
            Adam or has made no step; or parameters cannot be told apart.
    """
    path, found = Path(source), second_moments(source, model)
    shapes = dict(model.named_parameters())
    chosen = []
    for name in names:
        if name not in found:
            others = ", ".join([*found][:3])
            raise InputError(
                f"{path} has no exp_avg_sq of {name}, which is scored: it has those of {others}, ..."
            )
        entry = found[name]
        if entry.v.shape != shapes[name].shape:
            raise InputError(
                f"{path}: exp_avg_sq of {name} has shape {tuple(entry.v.shape)}, and the parameter has "
                f"{tuple(shapes[name].shape)}: this state is of another model"
            )
        if not (entry.v.isfinite() & (entry.v >= 0)).all():
            raise InputError(
                f"{path}: exp_avg_sq of {name} has entries that are negative or not finite"
            )
        if not entry.v.any():
            raise InputError(
                f"{path}: exp_avg_sq of {name} is 0 everywhere, because training gave it no gradient: score "
                "other parameters"
            )
        chosen.append(entry)
    floor = SMALL * _median(torch.cat([entry.v.flatten() for entry in chosen]))
    parts, small, small_roots, capped_roots, first = [], [], [], [], 0
    for entry in chosen:
        root, capped = (entry.diagonal(least).flatten().sqrt_() for least in (0.0, floor))
        places = (entry.v.flatten() < floor).nonzero()[:, 0]
        small_roots.append(root[places])
        capped_roots.append(capped[places])
        small.append(places + first)
        parts.append(root.index_fill_(0, places, 0.0))
        first += len(root)
    root, small_root = torch.cat(parts), torch.cat(small_roots)
    if not small_root.isfinite().all():
        raise InputError(
            f"{path}: exp_avg_sq has entries of 0 and eps is 0, so the step has no bound"
        )
    digest = hashlib.blake2b(root.numpy().data, digest_size=16)
    digest.update(small_root.numpy().data)
    facts = {
        "name": "adam",
        "state": digest.hexdigest(),
        "eps": sorted({entry.eps for entry in chosen}),
        "small_share": len(small_root) / len(root),
    }
    return Metric(root, torch.cat(small), small_root, torch.cat(capped_roots), floor, facts)


def _median(values: Tensor) -> float:
    """The median of the values that are not 0."""
    return float(values[values > 0].median())
