"""The stores that the suite is run on."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.forks import serve_forks
from contract.harness import Store
from contract.ways import MODULES, Servers, Way

_numbers = itertools.count(1)
Make = Callable[..., Store]


@pytest.fixture(scope="session")
def _forks() -> None:
    serve_forks(*MODULES)


@pytest.fixture
def make(_forks: None, request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Make the store for one of the ways to write, to which nothing was written yet."""
    prefix = f"c{next(_numbers)}"

    def made(way: Way, *, pipeline: str = "", place: str = "", **fields: Any) -> Store:
        servers = Servers(request.getfixturevalue, tmp_path)
        name = f"{prefix}_{pipeline or way.kind}"
        place = place and f"{prefix}_{place}"
        store = way.store(servers, pipeline=name, place=place, **fields)
        store.make()
        return store

    return made
