"""The fixtures that several files of this folder use."""

from collections.abc import Iterator

import pytest

from tests.pytorch.recorded import Register, registration


@pytest.fixture
def registered() -> Iterator[Register]:
    """Register a handler of torch's events under a name. All are removed at the end."""
    with registration() as register:
        yield register
