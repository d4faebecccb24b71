"""Refusals of bad input."""

import re

import pytest

from ustat_pg.validation import InputError


def refuses(said, call, *arguments, **options):
    """The call ends with an InputError whose message matches ``said``; the error is returned."""
    with pytest.raises(InputError, match=said) as caught:
        call(*arguments, **options)
    return caught.value


def refusals(*cases, of=lambda call: call(), literal=False):
    """A test of refusals: a case is a call, or the arguments of the call ``of``, and what is said of it:
    a pattern, or words to the letter.
    """

    @pytest.mark.parametrize("case", cases, ids=[said for *_, said in cases])
    def test(case):
        *arguments, said = case
        refuses(re.escape(said) if literal else said, of, *arguments)

    return test
