"""Refusals of bad input."""

from __future__ import annotations

import pytest

from ustat_pg.validation import InputError


def refuses(said, call, *arguments, **options):
    """The call ends with an InputError whose message matches ``said``; the error is returned."""
    with pytest.raises(InputError, match=said) as caught:
        call(*arguments, **options)
    return caught.value


def refusals(*cases):
    """A test of calls without arguments, each beside what its refusal says."""

    @pytest.mark.parametrize(("call", "said"), cases, ids=[said for _, said in cases])
    def test(call, said):
        refuses(said, call)

    return test
