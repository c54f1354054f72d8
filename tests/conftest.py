"""Fixtures live one file a concern; a test that uses a server is marked `live` by its fixtures."""

import os
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as property_settings
from xdist.scheduler import LoadScopeScheduling

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


THREE_BROKERS = (
    "tests/cli/test_commands.py",
    "tests/engine/test_into_topics.py",
    "tests/engine/test_recreated_topics.py",
    "tests/kafka/",
    "tests/postgres/",
    "tests/targets/test_kafka_attempts.py",
    "tests/test_stack.py",
)
"""Where tests may use the `stack`: of several processes one starts it, and runs all of these."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        used = set(getattr(item, "fixturenames", ()))
        if used & LIVE_FIXTURES:
            item.add_marker(pytest.mark.live)
        if used & SYSTEM_FIXTURES:
            item.add_marker(pytest.mark.system)
        elif "stack" in used and not item.nodeid.startswith(THREE_BROKERS):
            raise pytest.UsageError(f"{item.nodeid} uses `stack`: name its file in THREE_BROKERS.")
    if hasattr(config, "workerinput"):  # short ones last: no process ends long after others
        items.sort(key=lambda item: item.get_closest_marker("live") is None)


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Gives out tests one by one, and those of `THREE_BROKERS` all to the first process."""

    def _split_scope(self, nodeid: str) -> str:
        return "three brokers" if nodeid.startswith(THREE_BROKERS) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler:
    return Scheduler(config, log)


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
