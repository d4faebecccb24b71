"""The numbering of the kinds of estimators, which all compiled bodies use."""

from __future__ import annotations

from ..registry import Record

PROMPT_ONLY, VALUE, MINIMUM_VARIANCE, GRPO, GROUP_MEAN, NORM_WEIGHTED, BY_COUNT, STANDARDISED = (
    range(8)
)

KERNELS = {
    "constant": PROMPT_ONLY,
    "value": VALUE,
    "minimum-variance": MINIMUM_VARIANCE,
    "grpo": GRPO,
    "group-mean": GROUP_MEAN,
    "norm-weighted": NORM_WEIGHTED,
    "standardised": STANDARDISED,
}
"""The number of each estimator's ``kernel``."""


def kind_of(record: Record, binary: bool) -> int | None:
    """The number of an estimator, None if no body has it. If two forms exist, the one with fewer sums."""
    forms = [KERNELS[record.kernel]] if record.kernel else []
    if record.by_count and binary:
        forms.append(BY_COUNT)
    return min(forms, default=None)
