"""How much a test does: few cases by default, all of them in `make test-slow`."""

import pytest
from hypothesis import settings

THOROUGH = "thorough"


def examples(few: int, many: int) -> int:
    """Return `few`; `many` where hypothesis has the profile "thorough"."""
    return many if settings.get_current_profile_name() == THOROUGH else few


def slow(*cases: object) -> list[object]:
    """Return cases of `parametrize` marked slow; a tuple is a case of several arguments."""
    values = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*each, marks=pytest.mark.slow) for each in values]
