"""Credentials: on a real broker that asks for them, redacted wherever they could show, refused when incomplete."""

import asyncio
import base64
import json
import logging
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kvtrail.cli.config import config as config_command
from kvtrail.cli.local.kafka import KafkaBroker
from kvtrail.cli.local.ports import free_ports
from kvtrail.cli.producers import producers
from kvtrail.producers.facts import publish_fact, template_published
from kvtrail.producers.kafka import KafkaTransport
from kvtrail.producers.kafka_client import connection
from kvtrail.producers.publisher import LifecyclePublisher
from kvtrail.producers.transport import TransportError
from kvtrail.schemas.config import Config, KafkaConfig, KafkaSecurity, PublisherConfig, load_config
from kvtrail.schemas.errors import ConfigError
from kvtrail.schemas.topics import FACTS
from kvtrail.streams.credentials import credentials
from kvtrail.streams.topics import ensure_topics
from pydantic import ValidationError

from .load import Load, complete
from .reading import TENANT, decode, events, read_topic, until

SECRET = "hunter2-and-more"

SETTINGS = """
listeners=PLAINTEXT://{{host}}:{{port}},SASL://{{host}}:{sasl},TLS://{{host}}:{tls},BOTH://{{host}}:{both},CONTROLLER://{{host}}:{{controller}}
advertised.listeners=PLAINTEXT://{{host}}:{{port}},SASL://{{host}}:{sasl},TLS://{{host}}:{tls},BOTH://{{host}}:{both}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,BOTH:SASL_SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{secret}";
listener.name.sasl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";
listener.name.both.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.both.scram-sha-512.connections.max.reauth.ms=1000
listener.name.both.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={folder}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
listener.name.tls.ssl.client.auth=required
"""  # noqa: E501  # one property a line


def certificates(folder: Path) -> None:
    """An authority, a broker and a client, as a person would make them."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2",
            "-subj", "/CN=authority")  # fmt: skip
    for name in ("broker", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
                "-subj", f"/CN={name}")  # fmt: skip
        (folder / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.crt", "-days", "2", "-extfile", f"{name}.ext")  # fmt: skip
    (folder / "broker.pem").write_text((folder / "broker.key").read_text() + (folder / "broker.crt").read_text())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, KafkaConfig]]:
    """A broker that asks for credentials: the ways to reach it, by name."""
    folder = tmp_path_factory.mktemp("certificates")
    certificates(folder)
    sasl, tls, both = free_ports(3)
    token = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "none"}, {"sub": "alice", "iat": 0, "exp": 4_000_000_000})
    )
    (folder / "token").write_text(f"{token}.\n")
    settings = SETTINGS.format(sasl=sasl, tls=tls, both=both, secret=SECRET, folder=folder)
    users = [
        part
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for part in ("--add-scram", f"{mechanism}=[name=alice,password={SECRET}]")
    ]
    with KafkaBroker(tmp_path_factory.mktemp("guarded"), settings=settings, format_options=users) as broker:
        asyncio.run(ensure_topics(broker.config))
        alice = {"username": "alice", "password": SECRET}
        known = {"ca_file": folder / "ca.pem"}
        shown = known | {"cert_file": folder / "client.crt", "key_file": folder / "client.key"}

        def way(port: int, **security: Any) -> KafkaConfig:
            return KafkaConfig(bootstrap=f"127.0.0.1:{port}", security=KafkaSecurity(**security))

        yield {
            "open": broker.config,
            "PLAIN": way(sasl, protocol="SASL_PLAINTEXT", mechanism="PLAIN", **alice),
            "SCRAM-SHA-256": way(sasl, protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", **alice),
            "SCRAM-SHA-512": way(sasl, protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-512", **alice),
            "OAUTHBEARER": way(sasl, protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER", token_file=folder / "token"),
            "client certificate": way(tls, protocol="SSL", **shown),
            "no certificate": way(tls, protocol="SSL", **known),
            "unknown authority": way(both, protocol="SASL_SSL", **alice),
            "SCRAM over TLS": way(both, protocol="SASL_SSL", **alice, **known),
            "wrong password": way(
                sasl, protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-512", username="alice", password="wrong-" + SECRET
            ),
        }


@pytest.mark.kafka
@pytest.mark.parametrize(
    "how", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "client certificate", "SCRAM over TLS"]
)
def test_every_client_gets_in_with_its_credentials(guarded: dict[str, KafkaConfig], how: str) -> None:
    with LifecyclePublisher.to_kafka(f"gpu {how}", guarded[how]) as publisher:
        publisher.hit("k", TENANT, store="kv", tier="gpu")
        assert publisher.flush(30)
    publish_fact(guarded[how], template_published("support_v7", "a" * 64, source=how))
    asyncio.run(ensure_topics(guarded[how]))  # the admin client
    found = events(decode(value for _, _, value in read_topic(guarded["open"])))
    assert [event.seq for event in found if event.node == f"gpu {how}"] == [1, 2]
    assert any(f'"{how}"'.encode() in value for _, _, value in read_topic(guarded["open"], FACTS))


@pytest.mark.kafka
def test_sessions_that_expire_under_load_cost_nothing(
    guarded: dict[str, KafkaConfig], caplog: pytest.LogCaptureFixture
) -> None:
    """The broker ends every connection that has not said again after a second who it is, and aiokafka never does."""
    transport = KafkaTransport(guarded["SCRAM over TLS"])
    publisher = LifecyclePublisher("gpu-sessions", transport, PublisherConfig(linger_s=0.01))
    with Load(publisher) as load:
        until(lambda: " closed" in caplog.text, "a session ends")
        ended = time.monotonic()
        until(lambda: time.monotonic() - ended > 3, "some more of them")
        sent = publisher.stats().sent
        until(lambda: publisher.stats().sent > sent + 200, "events arrive")
    assert publisher.close(60) and publisher.stats().lost == 0
    complete(guarded["open"], {"gpu-sessions": load.made + 1})


@pytest.mark.kafka
@pytest.mark.parametrize("how", ["wrong password", "no certificate", "unknown authority"])
def test_without_them_nothing_is_taken_and_no_secret_is_told(
    guarded: dict[str, KafkaConfig], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        transport = KafkaTransport(guarded[how], request_timeout_s=5)
        try:
            with pytest.raises(TransportError) as caught:
                await transport.send("n:gpu-1", b"{}", 1, 1)
            assert SECRET not in str(caught.value) and caught.value.remedy
        finally:
            await transport.stop()

    asyncio.run(work())
    assert SECRET not in caplog.text


@pytest.mark.kafka
@pytest.mark.parametrize("how", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER", "client certificate"])
def test_not_even_a_log_at_level_debug_holds_a_secret(
    guarded: dict[str, KafkaConfig], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with LifecyclePublisher.to_kafka("gpu-1", guarded[how]) as publisher:
        publisher.hit("k", TENANT, store="kv", tier="gpu")
        assert publisher.flush(30)
    asyncio.run(ensure_topics(guarded[how]))
    assert "Request to" in caplog.text, "aiokafka says what it sends"
    token_file = guarded["OAUTHBEARER"].security.token_file
    assert token_file is not None
    assert SECRET not in caplog.text and token_file.read_text().strip() not in caplog.text


@pytest.mark.kafka
def test_the_doctor_names_what_is_wrong_with_credentials_and_tells_none(
    guarded: dict[str, KafkaConfig], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    environ = {
        "KAFKA__BOOTSTRAP": guarded["PLAIN"].bootstrap,
        "KAFKA__SECURITY__PROTOCOL": "SASL_PLAINTEXT",
        "KAFKA__SECURITY__MECHANISM": "PLAIN",
        "KAFKA__SECURITY__USERNAME": "alice",
        "KAFKA__SECURITY__PASSWORD": "wrong-" + SECRET,
    }
    for name, value in environ.items():
        monkeypatch.setenv(f"KVTRAIL_{name}", value)
    said = CliRunner().invoke(producers, ["doctor", "--timeout", "5"])
    (line,) = [line for line in said.output.splitlines() if line.startswith("broker")]
    assert said.exit_code == 1 and "does not work" in line and "credentials" in line
    assert SECRET not in said.output and SECRET not in caplog.text


def test_secrets_come_from_files_or_the_environment_and_never_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text(SECRET + "\n")
    environ = {
        "KVTRAIL_KAFKA__SECURITY__PROTOCOL": "SASL_SSL",
        "KVTRAIL_KAFKA__SECURITY__USERNAME": "alice",
        "KVTRAIL_KAFKA__SECURITY__PASSWORD_FILE": str(tmp_path / "password"),
    }
    config = load_config(environ=environ)
    assert config.kafka.security.password.get_secret_value() == SECRET
    assert SECRET not in repr(config) and SECRET not in config.model_dump_json()
    assert connection(config.kafka)["sasl_plain_password"] == SECRET
    assert SECRET not in repr(credentials(config.kafka))
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    shown = CliRunner().invoke(config_command, ["check"]).output
    assert "kafka.security.password " in shown and "(set)" in shown and SECRET not in shown


def test_a_file_of_settings_reaches_into_sections(tmp_path: Path) -> None:
    path = tmp_path / "kvtrail.toml"
    path.write_text(f'[kafka.security]\nprotocol = "SASL_SSL"\nusername = "alice"\npassword = "{SECRET}"\n')
    shown = CliRunner().invoke(config_command, ["check", "--config", str(path)]).output
    (line,) = [line for line in shown.splitlines() if line.startswith("kafka.security.username")]
    assert "alice" in line and str(path) in line
    assert SECRET not in shown and "(unknown)" not in shown


@pytest.mark.parametrize(
    "values",
    [
        {"protocol": "SASL_SSL", "username": "alice"},
        {"protocol": "SASL_SSL", "password": SECRET},
        {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER"},
        {"username": "alice", "password": SECRET},
        {"protocol": "SASL_PLAINTEXT", "username": "a", "password": SECRET, "ca_file": "ca.pem"},
        {"protocol": "SSL", "key_file": "key.pem"},
        {"protocol": "SASL_SSL", "username": "a", "password": SECRET, "mechanism": "GSSAPI"},
    ],
)
def test_what_is_not_whole_is_refused_without_its_values(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        KafkaSecurity(**values)
    assert SECRET not in str(caught.value)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.security\.password_file"):
        load_config(
            environ={
                "KVTRAIL_KAFKA__SECURITY__PROTOCOL": "SASL_SSL",
                "KVTRAIL_KAFKA__SECURITY__USERNAME": "alice",
                "KVTRAIL_KAFKA__SECURITY__PASSWORD_FILE": str(tmp_path / "nothing"),
            }
        )
    (tmp_path / "rubbish").write_text("no certificate")
    for name in ("ca_file", "cert_file"):
        with pytest.raises(ConfigError, match=rf"kafka\.security\.{name}"):
            connection(KafkaConfig(security=KafkaSecurity(protocol="SSL", **{name: tmp_path / "rubbish"})))


def test_a_plain_broker_needs_nothing() -> None:
    assert connection(Config().kafka) == {"bootstrap_servers": "127.0.0.1:9092", "security_protocol": "PLAINTEXT"}
    assert credentials(Config().kafka) is None
