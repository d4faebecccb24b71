"""Tests of what frameworks' own code has answered."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest


def by_framework(answers: Mapping[str, Sequence[Any]]) -> Callable[..., Any]:
    """What makes a test of one answer a test of all that are kept of each framework's record.

    Arguments:
        answers: records with the ``framework`` and the ``options`` that were chosen, by framework.
    """

    def of_each(kept: Callable[[Any], Any]) -> Callable[..., Any]:
        chosen = {name: [*filter(kept, each)] for name, each in answers.items()}

        def wrap(check: Callable[[Any], None]) -> Callable[[str], None]:
            @pytest.mark.parametrize("name", [name for name in chosen if chosen[name]])
            def test(name: str) -> None:
                for answer in chosen[name]:
                    try:
                        check(answer)
                    except AssertionError as error:
                        error.add_note(f"under {answer.framework} {answer.options}")
                        raise

            test.__doc__ = check.__doc__
            return test

        return wrap

    return of_each
