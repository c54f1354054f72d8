"""Runs that no store keeps: noted with the stack that their pipeline belongs to, and no other."""

import json
import shutil
import socket
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from tallygate.endpoints import stack_folder
from tallygate.engine.factory import runs_of, runs_on, target_of
from tallygate.engine.status import local_pipelines, request_stop, status
from tallygate.errors import ConfigError
from tallygate.kafka.connection import Connection
from tallygate.settings import Settings
from tallygate.spec import PipelineSpec
from tallygate.targets.local_run import LocalRun

ELSEWHERE = {"topic": "t", "schema": "id long", "bootstrap_servers": "kafka.example:9092"}


def _settings(folder: Path, stack: str) -> Settings:
    return Settings.load({"state.dir": str(folder), "stack": stack})


def _spec(name: str, **source: Any) -> PipelineSpec:
    given = source or {"topic": "t", "schema": "id long"}
    return PipelineSpec.model_validate(
        {"name": name, "source": given, "sink": {"parquet": f"/tmp/{name}"}}
    )


def _begin(spec: PipelineSpec, settings: Settings) -> LocalRun:
    target = target_of(
        spec.sink,
        spec.name,
        delivery="exactly-once",
        source=None,
        topics=(),
        spark=cast(SparkSession, None),
        settings=settings,
        runs=runs_of(spec, settings),
    )
    target.local_run.begin(target=target.name, delivery=target.delivery, run=1)
    return target.local_run


def test_pipelines_of_other_stacks_are_not_listed(tmp_path: Path) -> None:
    one, other = _settings(tmp_path, "one"), _settings(tmp_path, "other")
    _begin(_spec("mine"), one)
    _begin(_spec("theirs"), other)
    _begin(_spec("abroad", **ELSEWHERE), other)
    assert [each.name for each in status(settings=one)] == ["abroad", "mine"]
    assert [each.name for each in local_pipelines(other)] == ["abroad", "theirs"]
    shutil.rmtree(stack_folder(other))  # as `down --purge`
    assert [each.name for each in status(settings=other)] == ["abroad"]


def test_a_run_of_a_stack_is_asked_to_stop_where_it_looks(tmp_path: Path) -> None:
    one, other = _settings(tmp_path, "one"), _settings(tmp_path, "other")
    run, namesake = _begin(_spec("mine"), one), _begin(_spec("mine"), other)
    assert request_stop("mine", one) == 1
    assert run.beat({})
    assert not namesake.beat({})
    with pytest.raises(ConfigError, match="no pipeline 'mine'"):
        request_stop("mine", _settings(tmp_path, "third"))


def test_a_run_whose_stack_was_purged_under_it_notes_nothing_more(tmp_path: Path) -> None:
    settings = _settings(tmp_path, "one")
    run = _begin(_spec("mine"), settings)
    shutil.rmtree(stack_folder(settings))
    assert not run.beat({"batch": 1})
    run.end("done")
    assert not stack_folder(settings).exists()


def test_a_job_that_names_the_brokers_of_the_stack_belongs_to_it(tmp_path: Path) -> None:
    """Whether a stack runs is asked of its ports, so one of them must answer."""
    settings, home = _settings(tmp_path, "one"), tmp_path / "stacks" / "one"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        nodes = [{"port": port, "broker": True}, {"port": port + 1, "broker": True}]
        stack = {"postgres": {"port": port, "password": "p"}, "cluster": {"nodes": nodes}}
        home.mkdir(parents=True)
        (home / "stack.json").write_text(json.dumps(stack))
        here = Connection.to(f"127.0.0.1:{port}")
        assert runs_on(here, settings) == home / "runs"
        assert runs_on(Connection.to("kafka.example:9092"), settings) == tmp_path / "runs"
        configured = settings.with_flags({"kafka.bootstrap.servers": f"127.0.0.1:{port}"})
        assert runs_on(here, configured) == tmp_path / "runs"
    assert runs_on(here, settings) == tmp_path / "runs"
