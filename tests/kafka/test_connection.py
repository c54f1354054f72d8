from pathlib import Path

import pytest

from tallygate.errors import ConfigError
from tallygate.kafka.connection import Connection
from tallygate.settings import Settings

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"
OLD_KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n"


def _file(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_plain_connection_is_the_same_for_both_kinds() -> None:
    connection = Connection.to("a:1,b:2")
    assert connection.librdkafka() == connection.java() == {"bootstrap.servers": "a:1,b:2"}
    assert connection.spark() == {"kafka.bootstrap.servers": "a:1,b:2"}


def test_scram_becomes_a_jaas_line_for_java() -> None:
    connection = Connection.to(
        "a:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="me",
        sasl_password='quo"te\\slash',
    )
    assert connection.librdkafka()["sasl.password"] == 'quo"te\\slash'
    java = connection.java()
    assert "sasl.password" not in java
    assert java["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="me" password="quo\\"te\\\\slash";'
    )


def test_oauth_is_rendered_for_both() -> None:
    connection = Connection(
        {
            "bootstrap.servers": "a:1",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.client.id": "id",
            "sasl.oauthbearer.client.secret": "hush",
            "sasl.oauthbearer.token.endpoint.url": "https://login/token",
            "sasl.oauthbearer.scope": "kafka",
        }
    )
    assert connection.librdkafka()["sasl.oauthbearer.method"] == "oidc"
    java = connection.java()
    assert java["sasl.oauthbearer.token.endpoint.url"] == "https://login/token"
    assert 'clientId="id" clientSecret="hush" scope="kafka";' in java["sasl.jaas.config"]
    assert "OAuthBearerLoginCallbackHandler" in java["sasl.login.callback.handler.class"]


def test_certificates_travel_as_text_to_java_and_as_files_to_librdkafka(tmp_path: Path) -> None:
    connection = Connection(
        {
            "bootstrap.servers": "a:1",
            "security.protocol": "SSL",
            "ssl.ca.location": _file(tmp_path, "ca.pem", CERTIFICATE),
            "ssl.certificate.location": _file(tmp_path, "me.pem", CERTIFICATE),
            "ssl.key.location": _file(tmp_path, "me.key", KEY),
            "ssl.key.password": "hush",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    java = connection.java()
    assert java["ssl.truststore.type"] == java["ssl.keystore.type"] == "PEM"
    assert java["ssl.truststore.certificates"] == CERTIFICATE.strip()
    assert java["ssl.keystore.key"] == KEY.strip()
    assert java["ssl.endpoint.identification.algorithm"] == ""
    assert not any(name.endswith(".location") for name in java)
    assert connection.librdkafka()["ssl.key.location"] == str(tmp_path / "me.key")
    travelling = connection.travelling()
    assert travelling.librdkafka()["ssl.key.pem"] == KEY
    assert travelling.librdkafka()["ssl.ca.pem"] == CERTIFICATE
    assert "location" not in str(travelling.librdkafka())
    assert KEY not in repr(travelling)
    assert "hush" not in repr(travelling)


def test_native_properties_go_to_their_kind_alone_and_win() -> None:
    connection = Connection.of(
        Settings.load(
            {
                "kafka.bootstrap.servers": "a:1",
                "kafka.java.client.id": "jvm",
                "kafka.librdkafka.linger.ms": "5",
            },
            environment={},
        )
    )
    assert connection.java() == {"bootstrap.servers": "a:1", "client.id": "jvm"}
    assert connection.librdkafka() == {
        "bootstrap.servers": "a:1",
        "client.id": "tallygate",
        "linger.ms": "5",
    }


def test_secrets_are_masked_when_printed() -> None:
    connection = Connection.to(
        "a:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="me",
        sasl_password="hunter2",
    )
    assert "hunter2" not in repr(connection)
    assert "me" in repr(connection)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"bootstrap.servers": ""}, "bootstrap.servers is empty"),
        ({"security.protocol": "TLS"}, "must be one of PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL"}, "set kafka.sasl.mechanism"),
        ({"sasl.mechanism": "MAGIC"}, "must be one of PLAIN, SCRAM"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "u"}, "kafka.sasl.password must be set too"),
        ({"ssl.ca.location": "/nowhere.pem"}, "names /nowhere.pem, which is not a file"),
        ({"securty.protocol": "SSL"}, "did you mean 'security.protocol'"),
    ],
)
def test_bad_connections_are_refused(properties: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Connection({"bootstrap.servers": "a:1", **properties})


def test_a_key_that_java_cannot_read_is_refused_with_the_cure(tmp_path: Path) -> None:
    connection = Connection(
        {
            "bootstrap.servers": "a:1",
            "ssl.certificate.location": _file(tmp_path, "me.pem", CERTIFICATE),
            "ssl.key.location": _file(tmp_path, "me.key", OLD_KEY),
        }
    )
    with pytest.raises(ConfigError, match="openssl pkcs8 -topk8"):
        connection.java()
