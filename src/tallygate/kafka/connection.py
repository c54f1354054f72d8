"""How to reach a Kafka cluster, said once and rendered for two kinds of clients.

Spark and Kafka's own tools are Java clients; everything else here is librdkafka. They name TLS and
SASL settings differently, and Java wants certificates as text where librdkafka wants files. A
connection is written with librdkafka's names; `java()` translates. What is set below `kafka.java`
or `kafka.librdkafka` is passed to that kind alone, untouched, and wins.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tallygate.errors import ConfigError
from tallygate.settings import SETTINGS, Settings, is_secret, nearest

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_KNOWN = [name.removeprefix("kafka.") for name in SETTINGS if name.startswith("kafka.")]
_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
_SAME_IN_JAVA = (
    "bootstrap.servers",
    "client.id",
    "security.protocol",
    "sasl.mechanism",
    "ssl.key.password",
    "sasl.oauthbearer.token.endpoint.url",
)


@dataclass(frozen=True)
class Connection:
    properties: Mapping[str, str]
    java_properties: Mapping[str, str] = field(default_factory=dict)
    librdkafka_properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def to(cls, bootstrap_servers: str, **properties: str) -> "Connection":
        """A connection from a server list and settings with `_` for `.` in their names."""
        dotted = {name.replace("_", "."): text for name, text in properties.items()}
        return cls({"bootstrap.servers": bootstrap_servers, **dotted})

    @classmethod
    def of(cls, settings: Settings) -> "Connection":
        properties = settings.section("kafka")
        java = settings.section("kafka.java")
        librdkafka = settings.section("kafka.librdkafka")
        own = {name: properties[name] for name in _KNOWN if name in properties}
        return cls(own, java, librdkafka)

    @property
    def bootstrap_servers(self) -> str:
        return self.properties["bootstrap.servers"]

    def __repr__(self) -> str:
        shown = {
            name: "********" if is_secret(f"kafka.{name}") else text
            for name, text in self.librdkafka().items()
        }
        return f"Connection({shown})"

    def librdkafka(self) -> dict[str, str]:
        """The properties for confluent-kafka."""
        rendered = dict(self.properties)
        if rendered.get("sasl.mechanism") == "OAUTHBEARER":
            rendered["sasl.oauthbearer.method"] = "oidc"
        return {**rendered, **self.librdkafka_properties}

    def travelling(self) -> "Connection":
        """The same for clients on other machines: certificates and key as text."""
        given = self.librdkafka()
        texts = {
            f"{name.removesuffix('location')}pem": Path(given[name]).read_text()
            for name in _FILES
            if name in given
        }
        rest, native = (
            {name: text for name, text in properties.items() if name not in _FILES}
            for properties in (self.properties, self.librdkafka_properties)
        )
        return Connection(rest, self.java_properties, {**native, **texts})

    def java(self) -> dict[str, str]:
        """The properties for Java clients, certificates and key as text so that they travel."""
        given = self.properties
        rendered = {name: given[name] for name in _SAME_IN_JAVA if name in given}
        if "sasl.mechanism" in given:
            rendered["sasl.jaas.config"] = _jaas(given)
        if given.get("sasl.mechanism") == "OAUTHBEARER":
            rendered["sasl.login.callback.handler.class"] = _OAUTH_HANDLER
        if "ssl.ca.location" in given:
            rendered["ssl.truststore.type"] = "PEM"
            rendered["ssl.truststore.certificates"] = _pem(given, "ssl.ca.location")
        if "ssl.certificate.location" in given:
            rendered["ssl.keystore.type"] = "PEM"
            rendered["ssl.keystore.certificate.chain"] = _pem(given, "ssl.certificate.location")
            rendered["ssl.keystore.key"] = _pem(given, "ssl.key.location")
        if "ssl.endpoint.identification.algorithm" in given:
            algorithm = given["ssl.endpoint.identification.algorithm"]
            rendered["ssl.endpoint.identification.algorithm"] = (
                "" if algorithm == "none" else algorithm
            )
        return {**rendered, **self.java_properties}

    def spark(self) -> dict[str, str]:
        """The options of Spark's Kafka source and sink."""
        return {f"kafka.{name}": text for name, text in self.java().items()}


def _check(connection: Connection) -> None:
    given = connection.properties
    for name in given:
        if name not in _KNOWN:
            raise ConfigError(
                f"kafka.{name} is not a connection setting{nearest(name, _KNOWN)} Native "
                "properties go below kafka.java or kafka.librdkafka."
            )
    if not given.get("bootstrap.servers"):
        raise ConfigError("kafka.bootstrap.servers is empty: write it as host:port,host:port.")
    protocol = given.get("security.protocol", "PLAINTEXT")
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"kafka.security.protocol is {protocol!r}; it must be one of {', '.join(PROTOCOLS)}."
        )
    mechanism = given.get("sasl.mechanism")
    if mechanism is not None and mechanism not in _LOGIN_MODULES:
        raise ConfigError(
            f"kafka.sasl.mechanism is {mechanism!r}; it must be one of "
            f"{', '.join(_LOGIN_MODULES)}, or be set natively below kafka.java and "
            "kafka.librdkafka."
        )
    if protocol.startswith("SASL") and mechanism is None:
        native = connection.java_properties.get("sasl.mechanism")
        if native is None:
            raise ConfigError(f"kafka.security.protocol is {protocol}: set kafka.sasl.mechanism.")
    if mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        _need(given, f"kafka.sasl.mechanism is {mechanism}", "sasl.username", "sasl.password")
    if mechanism == "OAUTHBEARER":
        _need(
            given,
            "kafka.sasl.mechanism is OAUTHBEARER",
            "sasl.oauthbearer.client.id",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.token.endpoint.url",
        )
    if "ssl.certificate.location" in given:
        _need(given, "kafka.ssl.certificate.location is set", "ssl.key.location")
    for name in _FILES:
        if name in given and not Path(given[name]).is_file():
            raise ConfigError(f"kafka.{name} names {given[name]}, which is not a file.")


def _need(given: Mapping[str, str], reason: str, *names: str) -> None:
    for name in names:
        if not given.get(name):
            raise ConfigError(f"{reason}, so kafka.{name} must be set too.")


def _jaas(given: Mapping[str, str]) -> str:
    mechanism = given["sasl.mechanism"]
    if mechanism == "OAUTHBEARER":
        options = {
            "clientId": given["sasl.oauthbearer.client.id"],
            "clientSecret": given["sasl.oauthbearer.client.secret"],
        }
        if "sasl.oauthbearer.scope" in given:
            options["scope"] = given["sasl.oauthbearer.scope"]
    else:
        options = {"username": given["sasl.username"], "password": given["sasl.password"]}
    words = " ".join(f"{name}={_quoted(text)}" for name, text in options.items())
    return f"{_LOGIN_MODULES[mechanism]} required {words};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _pem(given: Mapping[str, str], name: str) -> str:
    """The text of a PEM file. Java reads keys in PKCS #8 only, so others are refused here."""
    path = Path(given[name])
    text = path.read_text()
    if "-----BEGIN" not in text:
        raise ConfigError(f"kafka.{name}: {path} is not a PEM file.")
    if name == "ssl.key.location" and re.search("BEGIN (RSA|EC|DSA) PRIVATE KEY", text):
        raise ConfigError(
            f"kafka.{name}: {path} is not a PKCS #8 key, the only kind that Java reads; convert it "
            "with `openssl pkcs8 -topk8 -in KEY -out KEY.pk8`."
        )
    return text.strip()
