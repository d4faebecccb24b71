"""Refusals of bad input."""

from __future__ import annotations

import pytest

from ustat_pg.validation import InputError


def refuses(said, call, *arguments, **options):
    """The call ends with an InputError whose message matches ``said``; the error is returned."""
    with pytest.raises(InputError, match=said) as caught:
        call(*arguments, **options)
    return caught.value
