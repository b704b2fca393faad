"""A broker with TLS: both engines read it with the same config, and unknown clients are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trustme
from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from support.kafka_fixtures import BatchCollector, Broker
from support.small_spark import SMALL
from support.tokens import AUDIENCE, Tokens, token_server

from adapters.sinks.kafka import KafkaDeadLetters
from adapters.sources.kafka.source import KafkaSource
from adapters.sources.kafka.spark import KafkaSparkSource
from adapters.spark.frames import to_arrow
from adapters.stack.layout import StackPorts, find_free_port
from replicator.domain.change import RAW
from replicator.domain.errors import ReplicatorError
from replicator.domain.position import Position
from replicator.ports.frames import Batch
from replicator.testing.stores_contract import make_dead_letter

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(300)]

WORD = 'p"s\\w'
CLIENT_SECRET = "of-the-client"
OF_KAFKA = "org.apache.kafka.common.security"
VALUES = [b"%d" % i for i in range(50)]
LISTENERS = {
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "PLAIN": "SASL_SSL",
    "SCRAM": "SASL_SSL",
    "OAUTH": "SASL_SSL",
    "EXPIRED": "SSL",
    "ELSEWHERE": "SSL",
}
"""What the broker listens for, and the protocol. It shows a certificate of another machine as ELSEWHERE."""


@dataclass
class Secured:
    """A broker that wants its clients to be known; `clients`: what to say on which listener."""

    broker: Broker
    ports: Mapping[str, int]
    clients: Mapping[str, Mapping[str, str]]
    folder: Path

    def options(self, listener: str, **security: str) -> dict[str, object]:
        said = {name.replace("__", "."): value for name, value in security.items()}
        told = {"security.protocol": LISTENERS[listener], "ssl.ca.location": str(self.folder / "ca.pem")}
        return {
            "bootstrap_servers": f"127.0.0.1:{self.ports[listener]}",
            "topics": ["secret"],
            "patience_seconds": 3,
            "security": {k: v for k, v in {**told, **self.clients.get(listener, {}), **said}.items() if v},
        }


def store(folder: Path, name: str, certificate: trustme.LeafCert) -> Path:
    """The key, written as Java wants it, and the certificate in one PEM file."""
    path = folder / f"{name}.pem"
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + chain)
    return path


def get_broker_settings(listener: str, path: Path) -> dict[str, str]:
    """The broker's settings for what it shows there."""
    return {
        f"listener.name.{listener}.ssl.keystore.{key}": value for key, value in (("type", "PEM"), ("location", str(path)))
    }


def logins(tokens: Tokens) -> dict[str, str]:
    """The broker's settings for who may come in."""
    escaped = WORD.replace("\\", "\\\\").replace('"', '\\"')
    oauth = "listener.name.oauth.oauthbearer.sasl"
    return {
        "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plain.plain.sasl.jaas.config": f'{OF_KAFKA}.plain.PlainLoginModule required user_shop="{escaped}";',
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.scram.scram-sha-512.sasl.jaas.config": f"{OF_KAFKA}.scram.ScramLoginModule required;",
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{oauth}.jaas.config": f"{OF_KAFKA}.oauthbearer.OAuthBearerLoginModule required;",
        f"{oauth}.server.callback.handler.class": f"{OF_KAFKA}.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "listener.name.oauth.sasl.oauthbearer.jwks.endpoint.url": tokens.keys.as_uri(),
        "listener.name.oauth.sasl.oauthbearer.expected.audience": AUDIENCE,
    }


def clients(tokens: Tokens, own: Path) -> dict[str, dict[str, str]]:
    return {
        "MUTUAL": {"ssl.certificate.location": str(own), "ssl.key.location": str(own)},
        "PLAIN": {"sasl.mechanism": "PLAIN", "sasl.username": "shop", "sasl.password": WORD},
        "SCRAM": {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "shop", "sasl.password": WORD},
        "OAUTH": {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": tokens.endpoint,
            "sasl.oauthbearer.client.id": tokens.client,
            "sasl.oauthbearer.client.secret": tokens.secret,
            "sasl.oauthbearer.scope": "kafka",
        },
    }


@pytest.fixture(scope="module")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority, now = trustme.CA(), datetime.now(UTC)
    past = {"not_before": now - timedelta(days=2), "not_after": now - timedelta(days=1)}
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    ours = store(folder, "broker", authority.issue_cert("127.0.0.1"))
    own = store(folder, "client", authority.issue_cert("replicator.example"))
    expired = store(folder, "expired", authority.issue_cert("127.0.0.1", **past))
    elsewhere = store(folder, "elsewhere", authority.issue_cert("kafka.example"))
    ports = StackPorts.find_free()
    secure = {name: find_free_port() for name in LISTENERS}
    plain = ",".join((f"PLAINTEXT://127.0.0.1:{ports.kafka}", *(f"{n}://127.0.0.1:{p}" for n, p in secure.items())))
    with token_server(folder, "replicator", CLIENT_SECRET) as tokens:
        settings = {
            "listeners": f"{plain},CONTROLLER://127.0.0.1:{ports.controller}",
            "advertised.listeners": plain,
            "listener.security.protocol.map": ",".join(
                ("PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT", *(f"{name}:{kind}" for name, kind in LISTENERS.items()))
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(ours),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "ca.pem"),
            "listener.name.mutual.ssl.client.auth": "required",
            **get_broker_settings("expired", expired),
            **get_broker_settings("elsewhere", elsewhere),
            **logins(tokens),
        }
        allowed = ("-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=" + tokens.keys.as_uri(),)
        broker = Broker(
            folder / "kafka", ports, java_options=allowed, **{k.replace(".", "__"): v for k, v in settings.items()}
        )
        try:
            broker.create("secret")
            broker.produce("secret", VALUES)
            info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
            wanted = UserScramCredentialUpsertion("shop", info, WORD.encode())
            broker.admin.alter_user_scram_credentials([wanted])["shop"].result(20)
            yield Secured(broker, secure, clients(tokens, own), folder)
        finally:
            broker.service.kill()


def read_here(options: dict[str, object], seen: BatchCollector) -> None:
    KafkaSource(options).run(Position(), seen, Event(), once=True)


def read_on_spark(options: dict[str, object], seen: BatchCollector) -> None:
    def take(batch: Batch[Any]) -> None:
        seen(replace(batch, frame=to_arrow(batch.frame).cast(RAW)))

    KafkaSparkSource({**options, "spark": SMALL}).run(Position(), take, Event(), once=True)


Read = Callable[[dict[str, object], BatchCollector], None]


@pytest.mark.parametrize("read", [read_here, read_on_spark])
@pytest.mark.parametrize("listener", ["TLS", "MUTUAL", "PLAIN", "SCRAM", "OAUTH"])
def test_known_user_reads(secured_broker: Secured, read: Read, listener: str) -> None:
    seen = BatchCollector()
    read(secured_broker.options(listener), seen)
    assert seen.values == VALUES


def list_dead_letters_of(options: dict[str, object], topic: str = "secret-letters") -> KafkaDeadLetters:
    return KafkaDeadLetters({**{k: v for k, v in options.items() if k in ("bootstrap_servers", "security")}, "topic": topic})


# The client is the one of `read_here`, which `test_known_user_reads` tries on each listener.
@pytest.mark.parametrize(
    "listener", [*(pytest.param(name, marks=pytest.mark.long) for name in ("TLS", "MUTUAL", "PLAIN", "SCRAM")), "OAUTH"]
)
def test_known_user_writes_dead_letters(secured_broker: Secured, listener: str) -> None:
    store = list_dead_letters_of(secured_broker.options(listener), f"letters-{listener}")
    store.write([make_dead_letter(1), make_dead_letter(2)])
    store.remove([make_dead_letter(1)])
    assert list(store.read()) == [make_dead_letter(2)]


WRONG = [
    ("PLAIN", {"sasl__password": "wrong"}),
    ("PLAIN", {"sasl__username": "nobody"}),
    ("SCRAM", {"sasl__password": "wrong"}),
    ("OAUTH", {"sasl__oauthbearer__client__secret": "wrong"}),
    ("MUTUAL", {"ssl__certificate__location": "", "ssl__key__location": ""}),
]


def refuse(read: Read, options: dict[str, object]) -> tuple[BatchCollector, str, str]:
    """What was seen, and what was told instead."""
    seen = BatchCollector()
    try:
        read(options, seen)
    except ReplicatorError as refused:
        return seen, str(refused), f"{refused} {refused.next_step}"
    return seen, "", ""


def refuse_all(cases: Sequence[dict[str, object]]) -> Iterator[tuple[str, str]]:
    """What is told of each case on each engine. Kafka's client waits for seconds before it tells: all do so together."""
    each = [(read, options) for options in cases for read in (read_here, read_on_spark)]
    with ThreadPoolExecutor(len(each)) as pool:
        told = list(pool.map(lambda case: refuse(*case), each))
    for (read, options), (seen, sentence, whole) in zip(each, told, strict=True):
        assert not seen.values and "security" in whole, (read, options)
        yield sentence, whole


def test_an_unknown_user_is_reported(secured_broker: Secured) -> None:
    for sentence, whole in refuse_all([secured_broker.options(listener, **wrong) for listener, wrong in WRONG]):
        assert re.search("auth|certificate", sentence, re.IGNORECASE), sentence
        assert WORD not in whole and CLIENT_SECRET not in whole


@pytest.mark.parametrize(
    ("listener", "wrong"), [WRONG[0], *(pytest.param(*one, marks=pytest.mark.long) for one in WRONG[1:])], ids=str
)
def test_unknown_user_writes_no_dead_letters(secured_broker: Secured, listener: str, wrong: dict[str, str]) -> None:
    store = list_dead_letters_of(secured_broker.options(listener, **wrong))
    with pytest.raises(ReplicatorError, match=r"(?i)auth|certificate") as refused:
        store.write([make_dead_letter(1)])
    told = f"{refused.value} {refused.value.next_step}"
    assert WORD not in told and CLIENT_SECRET not in told and "'security' of dead_letters" in told


def test_broker_with_an_invalid_certificate_is_not_read(secured_broker: Secured, tmp_path: Path) -> None:
    """Expired, for another host, or of an unknown authority."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    untrusted = secured_broker.options("TLS", ssl__ca__location=str(tmp_path / "other.pem"))
    for sentence, _ in refuse_all([secured_broker.options("EXPIRED"), secured_broker.options("ELSEWHERE"), untrusted]):
        assert re.search("certificate|ssl", sentence, re.IGNORECASE), sentence


def test_client_without_tls_gets_an_error(secured_broker: Secured) -> None:
    options = secured_broker.options("TLS", security__protocol="PLAINTEXT", ssl__ca__location="")
    assert all(sentence for sentence, _ in refuse_all([options]))
