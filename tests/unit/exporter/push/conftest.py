"""An endpoint on this machine, which takes everything until a test has it answer otherwise."""

from collections.abc import Iterator

import pytest
from support.push import HttpEndpoint, http_endpoint


@pytest.fixture
def endpoint() -> Iterator[HttpEndpoint]:
    with http_endpoint() as made:
        yield made
