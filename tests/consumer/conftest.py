"""What consumers are tested against."""

import pytest

from tallygate import Connection, Stack


@pytest.fixture
def connection(small_stack: Stack) -> Connection:
    return small_stack.cluster.connection
