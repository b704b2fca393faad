"""A broker behind TLS and SASL: both engines read it by the same keys of the config."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from small_spark import SMALL

from adapters.jvm.java import find_java
from adapters.sources.kafka import KafkaSource
from adapters.sources.kafka.spark import KafkaSparkSource
from adapters.spark.frames import to_arrow
from adapters.stack.layout import StackPorts
from replicator.domain.change import RAW
from replicator.domain.errors import ReplicatorError
from replicator.domain.position import Position
from replicator.ports.frames import Batch

from .conftest import Broker, Seen

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(300)]

STORE_PASSWORD = "of-the-store"
WORD = 'p"s\\w'
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
VALUES = [b"%d" % i for i in range(50)]


@dataclass
class Secured:
    """A broker whose second listener wants TLS and a password; `security` is what a client needs."""

    broker: Broker
    address: str
    security: Mapping[str, str]

    def options(self, **security: str) -> dict[str, object]:
        return {
            "bootstrap_servers": self.address,
            "topics": ["secret"],
            "patience_seconds": 3,
            "security": {**self.security, **{name.replace("__", "."): value for name, value in security.items()}},
        }


def certificate(folder: Path) -> Path:
    """A key store with a certificate for this machine, signed by itself, and that certificate as PEM."""
    store = ("-keystore", str(folder / "broker.p12"), "-storetype", "PKCS12", "-storepass", STORE_PASSWORD, "-alias", "it")
    named = ("-dname", "CN=broker", "-ext", "SAN=ip:127.0.0.1", "-keyalg", "EC", "-validity", "2")
    tool = str(find_java().with_name("keytool"))
    subprocess.run([tool, "-genkeypair", *store, *named], check=True, capture_output=True)
    subprocess.run([tool, "-exportcert", "-rfc", *store, "-file", str(folder / "ca.pem")], check=True, capture_output=True)
    return folder / "ca.pem"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = certificate(folder)
    ports, port = StackPorts.free(), StackPorts.free().kafka
    plain = f"PLAINTEXT://127.0.0.1:{ports.kafka},SECURE://127.0.0.1:{port}"
    broker = Broker(
        folder / "kafka",
        ports,
        listeners=f"{plain},CONTROLLER://127.0.0.1:{ports.controller}",
        advertised__listeners=plain,
        listener__security__protocol__map="PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
        inter__broker__listener__name="PLAINTEXT",
        sasl__enabled__mechanisms="PLAIN",
        listener__name__secure__plain__sasl__jaas__config=f'{LOGIN} user_shop="{escaped(WORD)}";',
        ssl__keystore__location=str(folder / "broker.p12"),
        ssl__keystore__type="PKCS12",
        ssl__keystore__password=STORE_PASSWORD,
    )
    security = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "shop",
        "sasl.password": WORD,
        "ssl.ca.location": str(authority),
    }
    try:
        broker.create("secret")
        broker.produce("secret", VALUES)
        yield Secured(broker, f"127.0.0.1:{port}", security)
    finally:
        broker.service.kill()


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def read_here(options: dict[str, object], seen: Seen) -> None:
    KafkaSource(options).run(Position(), seen, Event(), once=True)


def read_on_spark(options: dict[str, object], seen: Seen) -> None:
    def take(batch: Batch[Any]) -> None:
        seen(replace(batch, frame=to_arrow(batch.frame).cast(RAW)))

    KafkaSparkSource({**options, "spark": SMALL}).run(Position(), take, Event(), once=True)


READERS = pytest.mark.parametrize("read", [read_here, read_on_spark])


@READERS
def test_the_right_password_reads(secured: Secured, read: Callable[[dict[str, object], Seen], None]) -> None:
    seen = Seen()
    read(secured.options(), seen)
    assert seen.values == VALUES


@READERS
@pytest.mark.parametrize("wrong", [{"sasl__password": "wrong"}, {"sasl__username": "nobody"}], ids=str)
def test_a_wrong_login_is_told(
    secured: Secured, read: Callable[[dict[str, object], Seen], None], wrong: dict[str, str]
) -> None:
    seen = Seen()
    with pytest.raises(ReplicatorError, match=r"(?i)auth") as refused:
        read(secured.options(**wrong), seen)
    assert not seen.values and WORD not in str(refused.value)


@READERS
def test_a_certificate_of_somebody_else_is_told(
    secured: Secured, read: Callable[[dict[str, object], Seen], None], tmp_path: Path
) -> None:
    seen = Seen()
    with pytest.raises(ReplicatorError, match=r"(?i)certificate|ssl"):
        read(secured.options(ssl__ca__location=str(certificate(tmp_path))), seen)
    assert not seen.values
