"""Fixtures live one file a concern; a test that uses a server is marked `live` by its fixtures."""

import pytest

pytest_plugins = [
    "fixtures.folders",
    "fixtures.commands",
    "fixtures.servers",
    "fixtures.small",
    "fixtures.consuming",
    "fixtures.locked",
    "fixtures.killing",
    "fixtures.flows",
    "fixtures.lakes",
    "fixtures.proxy",
    "fixtures.executors",
]

LIVE_FIXTURES = {"stack", "spark", "own_stack", "small_stack", "locked"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if LIVE_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.live)
