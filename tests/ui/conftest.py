"""The JavaScript module, one process for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ui.support import NODE, JavaScript, javascript


@pytest.fixture(scope="module")
def js() -> Iterator[JavaScript]:
    if NODE is None:
        pytest.skip("there is no node on this machine")
    with javascript() as process:
        yield process
