"""The example of the documentation runs and prints what it says."""

from __future__ import annotations

import doctest
from pathlib import Path


def test_the_example_in_the_documentation() -> None:
    page = Path(__file__).parents[3] / "docs" / "algorithm.md"
    found = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert found.attempted > 5
    assert found.failed == 0
