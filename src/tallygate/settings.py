"""Every setting, declared once: its name, what it means, its default, and whether it is secret.

A value comes from, in rising precedence: the default, `tallygate.toml`, a profile in that file,
the environment (`TALLYGATE_` and the name in capitals, dots as underscores), a flag. Where a value
came from is kept, so that `tallygate config` can say why a setting is what it is.

A name that is not known is refused with the nearest one that is: a typing error that is silently
ignored is how a pipeline ends up on the wrong cluster.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tallygate.errors import ConfigError
from tallygate.paths import default_cache_dir, default_state_dir

FILE = "tallygate.toml"
ENVIRONMENT_PREFIX = "TALLYGATE_"
FLAG = "a flag"
RUNS = "runs"
_OF_A_SERVICE = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)$"
)
"""How the variables end that Kubernetes gives each container for a service: one may be called
`tallygate`, or begin so."""
_NOT_SETTINGS = ("PROFILE", "CONFIG", "DEBUG", "FAIL_AT", "FAILED", "DRIVER_PID")


@dataclass(frozen=True)
class Setting:
    name: str
    help: str
    default: str | None = None
    secret: bool = False

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper().replace(".", "_")


SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("stack", "The local stack to use when no other cluster is configured.", "default"),
        Setting("timeout", "How many seconds a server has to answer.", "10"),
        Setting("cache.dir", "Where downloaded jars are kept."),
        Setting("state.dir", "Where local stacks, checkpoints, runs, drills and logs are kept."),
        Setting("java.home", "The Java 17 or 21 to use, before JAVA_HOME and the PATH."),
        Setting("ivy.settings", "An Ivy settings file, for fetching jars through a mirror."),
        Setting("spark.master", "The Spark master.", "local[*]"),
        Setting("spark.driver.memory", "The heap of Spark's driver.", "1g"),
        Setting("postgres.dsn", "A PostgreSQL to use in place of the local stack's.", secret=True),
        Setting("kafka.bootstrap.servers", "Kafka brokers, in place of the local stack's."),
        Setting("kafka.client.id", "The name that brokers see and log.", "tallygate"),
        Setting("kafka.security.protocol", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."),
        Setting("kafka.sasl.mechanism", "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."),
        Setting("kafka.sasl.username", "The user, for PLAIN and SCRAM."),
        Setting("kafka.sasl.password", "The password, for PLAIN and SCRAM.", secret=True),
        Setting("kafka.sasl.oauthbearer.client.id", "The client, for OAUTHBEARER."),
        Setting(
            "kafka.sasl.oauthbearer.client.secret", "The secret, for OAUTHBEARER.", secret=True
        ),
        Setting("kafka.sasl.oauthbearer.token.endpoint.url", "Where OAUTHBEARER tokens come from."),
        Setting("kafka.sasl.oauthbearer.scope", "The scope to ask OAUTHBEARER tokens for."),
        Setting("kafka.ssl.ca.location", "A PEM file with the authorities to trust."),
        Setting("kafka.ssl.certificate.location", "A PEM file with the client's certificate."),
        Setting("kafka.ssl.key.location", "A PEM file (PKCS #8) with the client's key."),
        Setting("kafka.ssl.key.password", "The password of that key.", secret=True),
        Setting(
            "kafka.ssl.endpoint.identification.algorithm",
            "https checks the broker's name against its certificate; none does not.",
        ),
    )
}

# Sections whose keys belong to other programs and are passed on untouched.
OPEN_SECTIONS: Mapping[str, str] = {
    "kafka.java": "Properties handed to Java clients (Spark, Kafka's tools) as they are.",
    "kafka.librdkafka": "Properties handed to librdkafka clients as they are.",
    "spark.conf": "Spark properties handed to the session as they are.",
}

_SECRET_WORDS = (
    "password",
    "secret",
    "token",
    "jaas",
    "ssl.key",
    "keystore.key",
    "credential",
    "account.key",
    "oauthbearer.config",
)


@dataclass(frozen=True)
class Value:
    """A setting's value and where it came from; printing it never shows a secret."""

    text: str
    origin: str
    secret: bool = False

    def __str__(self) -> str:
        return "********" if self.secret else self.text

    def __repr__(self) -> str:
        return f"Value({str(self)!r}, {self.origin!r})"


@dataclass(frozen=True)
class Settings:
    values: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        flags: Mapping[str, str] | None = None,
        *,
        file: Path | None = None,
        profile: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> "Settings":
        """Gather the settings from the file, the environment and `flags`.

        Without `file`, `tallygate.toml` of the current folder is read if there is one.
        """
        environment = os.environ if environment is None else environment
        profile = profile or environment.get(f"{ENVIRONMENT_PREFIX}PROFILE") or None
        file = file or _named_file(environment)
        values = {
            setting.name: _value(setting.name, setting.default, "default")
            for setting in SETTINGS.values()
            if setting.default is not None
        }
        values["cache.dir"] = _value("cache.dir", str(default_cache_dir()), "default")
        values["state.dir"] = _value("state.dir", str(default_state_dir()), "default")
        for name, text, origin in _from_file(file, profile):
            values[name] = _value(name, text, origin)
        for name, text, origin in _from_environment(environment):
            values[name] = _value(name, text, origin)
        for name, text in (flags or {}).items():
            values[_known(name, FLAG)] = _value(name, text, FLAG)
        return cls(values)

    def with_flags(self, flags: Mapping[str, str]) -> "Settings":
        """These settings with others on top, as flags would be."""
        return Settings(
            {**self.values, **{_known(n, FLAG): _value(n, text, FLAG) for n, text in flags.items()}}
        )

    def get(self, name: str) -> str | None:
        value = self.values.get(_known(name, "the program"))
        return value.text if value else None

    def required(self, name: str) -> str:
        text = self.get(name)
        if text is None:
            variable = SETTINGS[name].variable
            raise ConfigError(f"{name} is not set: set it in {FILE}, by {variable} or by a flag.")
        return text

    def section(self, prefix: str) -> dict[str, str]:
        """The settings below `prefix`, by the rest of their names."""
        start = prefix + "."
        return {
            name.removeprefix(start): value.text
            for name, value in self.values.items()
            if name.startswith(start)
        }

    def as_environment(self, names: Iterable[str]) -> dict[str, str]:
        """Some settings as variables, for a program that is to have them too."""
        given = {SETTINGS[name].variable: self.get(name) for name in names}
        return {variable: text for variable, text in given.items() if text}

    def in_place_of_stack(self, name: str) -> str | None:
        """A server that is configured, if it is to be used in place of the local stack's.

        A local stack that is asked for by a flag outranks servers of the file or environment, its
        brokers and its database alike: one must never read from a laboratory and write to
        production.
        """
        server = self.values.get(_known(name, "the program"))
        if server is None or not server.text:
            return None
        return None if self.asks_for_stack and server.origin != FLAG else server.text

    @property
    def asks_for_stack(self) -> bool:
        """Whether a local stack is asked for by a flag."""
        return self.values["stack"].origin == FLAG

    @property
    def names_cluster(self) -> bool:
        """Whether a cluster is configured that is to be used in place of the local stack."""
        return self.in_place_of_stack("kafka.bootstrap.servers") is not None

    @property
    def timeout(self) -> float:
        text = self.required("timeout")
        try:
            seconds = float(text)
        except ValueError:
            seconds = 0
        if not seconds > 0:
            raise ConfigError(f"timeout is {text!r}; it must be a number of seconds above 0.")
        return seconds

    @property
    def cache_dir(self) -> Path:
        return Path(self.required("cache.dir")).expanduser()

    @property
    def runs_dir(self) -> Path:
        """Where runs are noted whose store keeps no heartbeats, and that belong to no stack."""
        return self.state_dir / RUNS

    @property
    def state_dir(self) -> Path:
        return Path(self.required("state.dir")).expanduser()


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known name most like `name`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."


def is_secret(name: str) -> bool:
    setting = SETTINGS.get(name)
    if setting is not None:
        return setting.secret
    return any(word in name.lower() for word in _SECRET_WORDS)


def _value(name: str, text: str | None, origin: str) -> Value:
    return Value(text or "", origin, is_secret(name))


def _known(name: str, origin: str) -> str:
    if name in SETTINGS or any(name.startswith(f"{section}.") for section in OPEN_SECTIONS):
        return name
    raise ConfigError(f"{origin} sets {name!r}, which is not a setting{nearest(name, SETTINGS)}")


def _named_file(environment: Mapping[str, str]) -> Path | None:
    named = environment.get(f"{ENVIRONMENT_PREFIX}CONFIG")
    return Path(named) if named else None


def _from_file(file: Path | None, profile: str | None) -> Iterator[tuple[str, str, str]]:
    path = file or Path(FILE)
    if file is None and not path.exists():
        if profile:
            raise ConfigError(f"profile {profile!r} is asked for, but there is no {FILE} here.")
        return
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    profiles = document.pop("profiles", {})
    if not isinstance(profiles, dict) or not all(isinstance(p, dict) for p in profiles.values()):
        raise ConfigError(f"{path}: profiles are tables, as in [profiles.staging.kafka].")
    yield from _flatten(document, "", str(path))
    if profile is None:
        return
    if profile not in profiles:
        raise ConfigError(f"{path} has no profile {profile!r}{nearest(profile, profiles)}")
    yield from _flatten(profiles[profile], "", f"{path}, profile {profile}")


def _flatten(
    table: Mapping[str, object], prefix: str, origin: str
) -> Iterator[tuple[str, str, str]]:
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict):
            yield from _flatten(value, f"{name}.", origin)
        elif isinstance(value, bool):
            yield _known(name, origin), str(value).lower(), origin
        elif isinstance(value, str | int | float):
            yield _known(name, origin), str(value), origin
        else:
            raise ConfigError(
                f"{origin} sets {name!r} to a {type(value).__name__}; write it as a string."
            )


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    by_variable = {setting.variable: setting.name for setting in SETTINGS.values()}
    reserved = {f"{ENVIRONMENT_PREFIX}{word}" for word in _NOT_SETTINGS}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in reserved:
            continue
        name = by_variable.get(variable)
        if name is None and _OF_A_SERVICE.search(variable):
            continue
        if name is None:
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
            if not any(name.startswith(f"{section}.") for section in OPEN_SECTIONS):
                close = nearest(variable, by_variable)
                raise ConfigError(f"the environment sets {variable}, which is not a setting{close}")
        yield name, text, f"the environment ({variable})"
