from pathlib import Path

import pytest

from tallygate.endpoints import running_dsn
from tallygate.errors import ConfigError, StackError
from tallygate.settings import SETTINGS, Settings

FILE = """
[kafka]
"bootstrap.servers" = "file:1"
client.id = "from-file"
sasl.password = "hunter2"
[kafka.librdkafka]
"linger.ms" = 5
[profiles.prod.kafka]
"bootstrap.servers" = "prod:1"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tallygate.toml"
    path.write_text(FILE)
    return path


def test_precedence_rises_from_default_to_flag(file: Path) -> None:
    name = "kafka.bootstrap.servers"
    env = {"TALLYGATE_KAFKA_BOOTSTRAP_SERVERS": "env:1"}
    load = Settings.load
    assert load(environment={}).get(name) is None
    assert load(file=file, environment={}).get(name) == "file:1"
    assert load(file=file, profile="prod", environment={}).get(name) == "prod:1"
    assert load(file=file, profile="prod", environment=env).get(name) == "env:1"
    assert load({name: "flag:1"}, file=file, environment=env).get(name) == "flag:1"


def test_where_a_value_came_from_is_kept(file: Path) -> None:
    settings = Settings.load(file=file, environment={"TALLYGATE_KAFKA_CLIENT_ID": "x"})
    assert (
        settings.values["kafka.client.id"].origin == "the environment (TALLYGATE_KAFKA_CLIENT_ID)"
    )
    assert settings.values["kafka.bootstrap.servers"].origin == str(file)
    assert settings.values["spark.master"].origin == "default"


def test_keys_may_be_dotted_or_quoted_and_numbers_are_text(file: Path) -> None:
    settings = Settings.load(file=file, environment={})
    assert settings.get("kafka.client.id") == "from-file"
    assert settings.section("kafka.librdkafka") == {"linger.ms": "5"}


def test_profile_and_file_can_be_named_by_the_environment(file: Path) -> None:
    env = {"TALLYGATE_PROFILE": "prod", "TALLYGATE_CONFIG": str(file)}
    assert Settings.load(environment=env).get("kafka.bootstrap.servers") == "prod:1"


def test_open_sections_take_any_name_from_the_environment() -> None:
    settings = Settings.load(environment={"TALLYGATE_KAFKA_JAVA_MAX_POLL_RECORDS": "7"})
    assert settings.section("kafka.java") == {"max.poll.records": "7"}


def test_a_stack_asked_for_by_a_flag_outranks_every_server_that_is_configured(
    tmp_path: Path,
) -> None:
    """Not only the brokers: it must not write to production what it reads from a laboratory."""
    path = tmp_path / "tallygate.toml"
    path.write_text(
        "[kafka]\n'bootstrap.servers' = 'prod:9092'\n[postgres]\ndsn = 'postgresql://prod'"
    )
    configured = Settings.load(file=path, environment={})
    lab = configured.with_flags({"stack": "lab"})
    given = lab.with_flags({"postgres.dsn": "postgresql://mine"})
    servers = ("kafka.bootstrap.servers", "postgres.dsn")
    assert [configured.in_place_of_stack(name) for name in servers] == [
        "prod:9092",
        "postgresql://prod",
    ]
    assert [lab.in_place_of_stack(name) for name in servers] == [None, None]
    assert given.in_place_of_stack("postgres.dsn") == "postgresql://mine"
    with pytest.raises(StackError, match="no PostgreSQL is configured"):
        running_dsn(lab.with_flags({"state.dir": str(tmp_path)}))


def test_secrets_are_never_printed(file: Path) -> None:
    flags = {"postgres.dsn": "postgresql://u:hunter2@h/d", "kafka.java.sasl.jaas.config": "hunter2"}
    settings = Settings.load(flags, file=file, environment={})
    assert settings.get("kafka.sasl.password") == "hunter2"
    assert "hunter2" not in f"{settings!r} {settings.values}"
    assert "hunter2" not in " ".join(str(value) for value in settings.values.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[kafka]\n"bootstrap.server" = "x"', "did you mean 'kafka.bootstrap.servers'?"),
        ("stacks = 'x'", "did you mean 'stack'?"),
        ("stack = ", "is not valid TOML"),
        ("stack = ['a']", "sets 'stack' to a list; write it as a string"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tallygate.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="tallygate.toml") as raised:
        Settings.load(file=path, environment={})
    assert said in str(raised.value)


def test_unknown_names_are_refused_wherever_they_come_from(file: Path) -> None:
    with pytest.raises(ConfigError, match="TALLYGATE_STAK, which is not a setting"):
        Settings.load(environment={"TALLYGATE_STAK": "x"})
    with pytest.raises(ConfigError, match="a flag sets 'spark.mster'"):
        Settings.load({"spark.mster": "x"}, environment={})
    with pytest.raises(ConfigError, match="has no profile 'prd'; did you mean 'prod'"):
        Settings.load(file=file, profile="prd", environment={})
    with pytest.raises(ConfigError, match=r"nowhere.toml cannot be read"):
        Settings.load(file=Path("nowhere.toml"), environment={})


def test_every_setting_has_help_and_a_variable_of_its_own() -> None:
    assert all(setting.help.endswith(".") for setting in SETTINGS.values())
    assert len({setting.variable for setting in SETTINGS.values()}) == len(SETTINGS)


def test_variables_that_kubernetes_makes_for_services_are_no_settings() -> None:
    address = "tcp://10.0.0.1:5432"
    made = {
        "TALLYGATE_SERVICE_HOST": "10.0.0.1",
        "TALLYGATE_SERVICE_PORT": "5432",
        "TALLYGATE_DB_SERVICE_PORT_METRICS": "9187",
        "TALLYGATE_PORT": address,
        "TALLYGATE_PORT_5432_TCP": address,
        "TALLYGATE_DB_PORT_5432_TCP_ADDR": "10.0.0.1",
        "TALLYGATE_DB_PORT_5432_TCP_PROTO": "tcp",
    }
    assert Settings.load(environment=made).values == Settings.load(environment={}).values
    with pytest.raises(ConfigError, match="sets TALLYGATE_SERVICE,"):
        Settings.load(environment={"TALLYGATE_SERVICE": "x"})
