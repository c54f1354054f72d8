"""The commands as a user types them. The walk is the one of the README."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from fixtures.commands import Tallygate
from tallygate import Stack
from tallygate.cli import main
from tallygate.errors import ConfigError, MachineError, StackError, TopicError, UnreachableError

HEAVY = ("pyspark", "confluent_kafka", "psycopg", "pyarrow", "pandas", "yaml", "rich.table")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from tallygate.cli import app\n"
        "try: app(['topic', 'create', '--help'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_version(tallygate: Tallygate) -> None:
    assert tallygate("--version").stdout.startswith("tallygate 0.")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("topic creat", 2, "Did you mean 'create'?"),
        ("topic create", 2, "Missing argument 'TOPIC'"),
        ("topic create t --partitions many", 2, "valid integer"),
        ("topic create t --retention soon", ConfigError.exit_code, "'soon' is not a duration"),
        ("topic list", StackError.exit_code, "the local stack 'default' is not up"),
        ("topic list --set nonsense", ConfigError.exit_code, "must be written NAME=VALUE"),
        ("topic list --set kafka.bootsrap.servers=x", ConfigError.exit_code, "did you mean"),
        (
            "topic list --set timeout=soon -b x:1",
            ConfigError.exit_code,
            "number of seconds above 0",
        ),
        ("topic list -b x:1 --name y", ConfigError.exit_code, "each say which cluster"),
        ("topic list -b x:1 --set kafka.librdkafka.nope=1", ConfigError.exit_code, "refuses"),
        ("up --brokers 0", ConfigError.exit_code, "at least one broker"),
        ("up --kafka-port 70000", 2, "--kafka-port"),
        ("topic advise --target inf --consumer 1", ConfigError.exit_code, "more than 0"),
        ("topic list --config no.toml", ConfigError.exit_code, "no.toml cannot be read"),
        ("topic delete t", ConfigError.exit_code, "needs --yes"),
        ("topic alter t", ConfigError.exit_code, "nothing to alter"),
        (
            "topic list -b 127.0.0.1:9 --set timeout=1",
            UnreachableError.exit_code,
            "did not answer in time",
        ),
        ("status --name none", StackError.exit_code, "there is no stack 'none'"),
        ("down", StackError.exit_code, "does not exist"),
        ("cluster kill 1", StackError.exit_code, "there is no stack 'default'"),
        ("jars fetch --again flink", ConfigError.exit_code, "no set of jars 'flink'"),
        ("jars paths spark flink", ConfigError.exit_code, "no set of jars 'flink'"),
        ("up --set java.home=/nowhere", MachineError.exit_code, "holds no working Java"),
        ("produce t x.json --as-text", ConfigError.exit_code, "for the cells of CSV"),
        ("produce t x.csv --as-text --null NA", ConfigError.exit_code, "excludes --schema and"),
        ("produce t x.csv --schema id", ConfigError.exit_code, "'id' is not a column with one of"),
        ("topic advise --target 10 --consumer 0", ConfigError.exit_code, "more than 0"),
    ],
)
def test_bad_input_gets_one_sentence_and_its_code(
    line: str,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tallygate", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    printed = capsys.readouterr().err
    assert said in printed
    if code != 2:
        assert printed.strip().count("\n") == 0
        assert printed.startswith("tallygate: ")


def test_debug_shows_the_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tallygate", "topic", "list", "--config", "no.toml", "--debug"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" in done.stderr
    assert "ConfigError" in done.stderr
    assert done.returncode == ConfigError.exit_code


def test_advise_explains_itself(tallygate: Tallygate) -> None:
    said = tallygate("topic", "advise", "--target", "100", "--consumer", "20").stdout
    assert said.startswith("9 partitions.")
    assert "One consumer manages 20" in said


def test_config_shows_origins_and_hides_secrets(tallygate: Tallygate) -> None:
    done = tallygate("config", "-o", "json", "--set", "kafka.sasl.password=hunter2")
    rows = {row["setting"]: row for row in json.loads(done.stdout)}
    assert rows["kafka.sasl.password"]["value"] == "********"
    assert rows["kafka.sasl.password"]["origin"] == "a flag"
    assert "hunter2" not in done.stdout


def test_doctor_is_content_with_a_running_stack(stack: Stack, tallygate: Tallygate) -> None:
    done = tallygate("doctor", "--name", stack.name, "-o", "json")
    health = {row["check"]: row["health"] for row in json.loads(done.stdout)}
    assert set(health.values()) == {"ok"}
    assert {"java", "jars", "disk", "memory", "ports", "kafka", "postgres"} <= set(health)
    assert stack.spec.postgres.password not in done.stdout


def test_doctor_names_each_problem_and_fails(tallygate: Tallygate) -> None:
    done = tallygate(
        *("doctor", "-o", "json", "-b", "127.0.0.1:9", "--set", "java.home=/nowhere"),
        *("--set", "timeout=1"),
        *("--set", "postgres.dsn=postgresql://u:hunter2@127.0.0.1:9/d"),
        code=1,
    )
    rows = {row["check"]: row for row in json.loads(done.stdout)}
    for check in ("java", "kafka", "postgres"):
        assert rows[check]["health"] == "problem"
        assert rows[check]["advice"] or "Install" in rows[check]["detail"]
    assert rows["python"]["health"] == "ok"
    assert "hunter2" not in done.stdout


def test_topics_by_flag_environment_and_file(stack: Stack, tallygate: Tallygate) -> None:
    servers = stack.bootstrap_servers
    tallygate("topic", "create", "cli", "--partitions", "2", "-b", servers, "--retention", "1h")
    for output in ("table", "json", "yaml"):
        assert "cli" in tallygate("topic", "list", "-b", servers, "-o", output).stdout
    found = json.loads(tallygate("topic", "describe", "cli", "-b", servers, "-o", "json").stdout)
    assert found["configs"] == {"retention.ms": "3600000"}
    assert [p["preferred_leader"] for p in found["partitions"]]
    tallygate("topic", "alter", "cli", "--compact", "--name", stack.name)
    tallygate("topic", "delete", "cli", "--yes", "--set", f"kafka.bootstrap.servers={servers}")
    done = tallygate("topic", "describe", "cli", "-b", servers, code=TopicError.exit_code)
    assert "there is no topic 'cli'" in done.stderr


def test_a_stack_named_by_a_flag_outranks_a_configured_cluster(
    stack: Stack, tallygate: Tallygate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYGATE_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9")
    tallygate("topic", "list", "--name", stack.name)
    monkeypatch.setenv("TALLYGATE_TIMEOUT", "1")
    tallygate("topic", "list", code=UnreachableError.exit_code)


@pytest.mark.system
@pytest.mark.timeout(700)
def test_the_demo_ends_well(stack: Stack, tallygate: Tallygate) -> None:
    """Ours loses nothing and repeats nothing; the plain job beside it repeats."""
    done = tallygate("demo", "--events", "2000", timeout=600).stdout
    rows = {line.split("  ")[0]: line.split()[-2:] for line in done.splitlines() if "  " in line}
    assert rows["Tallygate"] == ["0", "0"]
    assert rows["plain foreachBatch"][1] != "0"
    assert "Audit: valid. Verdict: valid." in done


@pytest.mark.system
def test_the_walk_through_a_broker_failure(stack: Stack, tallygate: Tallygate) -> None:
    """up, create, kill, describe, start, describe, add, reassign, down: beside the shared stack."""
    tallygate("up")
    try:
        assert "is up already" in tallygate("up", code=StackError.exit_code).stderr
        tallygate("topic", "create", "t", "--partitions", "6", "--replication", "3")
        assert "is killed" in tallygate("cluster", "kill", "2").stdout
        partitions = _partitions(tallygate)
        assert all(p["leader"] in (1, 3) for p in partitions)
        assert all(p["in_sync"] == [1, 3] for p in partitions)
        assert all("under-replicated" in p["flags"] for p in partitions)
        assert any("leader not preferred" in p["flags"] for p in partitions)
        states = {n["node"]: n["state"] for n in _status(tallygate)["nodes"]}
        assert states == {"1": "running", "2": "stopped", "3": "running", "postgres": "running"}
        refused = tallygate("cluster", "kill", "2", code=StackError.exit_code).stderr
        assert "is not running" in refused
        tallygate("cluster", "start", "2")
        assert all(p["in_sync"] == [1, 2, 3] for p in _partitions(tallygate))
        tallygate("cluster", "pause", "postgres")
        assert _status(tallygate)["nodes"][-1]["state"] == "paused"
        tallygate("cluster", "resume", "postgres")
        assert "Kafka Server started" in tallygate("cluster", "logs", "1", "-n", "2000").stdout
        assert "Broker 4" in tallygate("cluster", "add").stdout
        tallygate("topic", "reassign", "t", "--brokers", "2,3,4")
        assert all(set(p["replicas"]) == {2, 3, 4} for p in _partitions(tallygate))
        dsn = tallygate("dsn").stdout.strip()
        assert dsn.startswith("postgresql://tallygate:")
        pids = [node["pid"] for node in _status(tallygate)["nodes"]]
    finally:
        tallygate("down", "--purge")
    assert len(pids) == 5
    assert not [pid for pid in pids if _is_alive(int(pid))]
    assert "does not exist" in tallygate("down", code=StackError.exit_code).stderr


def _partitions(tallygate: Tallygate) -> list[dict[str, Any]]:
    described = json.loads(tallygate("topic", "describe", "t", "-o", "json").stdout)
    return list(described["partitions"])


def _is_alive(pid: int) -> bool:
    """A zombie is dead: where nothing reaps orphans, its number stays for a while."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _status(tallygate: Tallygate) -> dict[str, list[dict[str, str]]]:
    found = json.loads(tallygate("status", "--name", "default", "-o", "json").stdout)
    return dict(found["stacks"][0])
