"""Fixtures live one file a concern; a test that uses a server is marked `live` by its fixtures."""

import os
import sys

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as property_settings

from tallygate.kafka import read as reader

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
    "fixtures.installed",
]

# Other tests and the servers may have the machine to themselves for a while: that is no finding.
property_settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
property_settings.load_profile("busy machine")
reader.MOMENT = 30.0

SYSTEM_FIXTURES = {
    "forgetful",
    "on_cluster",
    "outcomes",
    "own_stack",
    "own_state",
    "stage",
    "trio",
}
"""Stacks that live for a test or two, clusters of Spark, drills, readers of docs, contenders."""
LIVE_FIXTURES = {"stack", "spark", "small_stack", "locked"} | SYSTEM_FIXTURES


ONE_PROCESS = {"stack": "three brokers", "core": "an installed core"}
"""What is dear to start: of several processes one runs all tests that use it."""


@pytest.hookimpl(tryfirst=True)  # before xdist looks at groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        if used & LIVE_FIXTURES:
            item.add_marker(pytest.mark.live)
        if used & SYSTEM_FIXTURES:
            item.add_marker(pytest.mark.system)
        for fixture in used & ONE_PROCESS.keys():
            item.add_marker(pytest.mark.xdist_group(ONE_PROCESS[fixture]))
    if hasattr(config, "workerinput"):  # short ones last: no process ends long after others
        items.sort(key=lambda item: item.get_closest_marker("live") is None)


_verdict = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_verdict] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave at once, with the verdict.

    By now this one process has used librdkafka, DuckDB, Arrow, two copies of libpq and a JVM, and
    tests have left clients of all of them in states that no program has. What happens when the
    interpreter then takes them down in an order of its own is no finding about ours: how our
    programs end is tested with programs, whose exit codes count."""
    if _verdict in config.stash:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash[_verdict])
