"""A database with TLS: connections to unverified servers and from unknown clients are refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme
from support.pg_case import LaneWrites, apply_write, fetch_rows, make_table, open_sink

from adapters.postgres import connection as pg_connection
from adapters.sinks.postgres.check import PostgresCheck
from replicator.domain.errors import EnvironmentProblem

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

PASSWORD = "of the t'ester"


@dataclass
class Secured:
    """A server with TLS. Database `mutual` requires a client certificate, and database `secret` a password."""

    server: Any
    folder: Path
    authority: trustme.CA

    def use_certificate(self, certificate: trustme.LeafCert) -> None:
        """Restarts the server with this certificate."""
        data = self.server.folder / "data"
        certificate.private_key_pem.write_to_path(str(data / "server.key"))
        (data / "server.crt").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        (data / "server.key").chmod(0o600)
        self.server.user.take_ownership(data / "server.key", data / "server.crt")
        self.server.run("pg_ctl", "restart", "-w", "-m", "fast")

    def client(self, user: str) -> str:
        """DSN parameters with a certificate of the user."""
        path = self.folder / f"{user}.pem"
        certificate = self.authority.issue_cert("client@example.com", common_name=user)
        certificate.private_key_and_cert_chain_pem.write_to_path(str(path))
        path.chmod(0o600)
        return f"sslcert={path} sslkey={path}"

    def dsn(self, database: str = "postgres", **parameters: str) -> str:
        keys = {"sslmode": "verify-full", "sslrootcert": str(self.folder / "ca.pem"), **parameters}
        return " ".join((self.server.dsn(database), *(f"{key}={value}" for key, value in keys.items())))


@pytest.fixture(scope="module")
def secured_server(postgres_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    server, authority, folder = type(postgres_server)(), trustme.CA(), tmp_path_factory.mktemp("secured")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server.start()
    try:
        for name in ("mutual", "secret"):
            server.database(name)
        data = server.folder / "data"
        shutil.copyfile(folder / "ca.pem", data / "ca.crt")
        rules = "hostssl mutual all 127.0.0.1/32 cert\nhostssl secret all 127.0.0.1/32 scram-sha-256\n"
        (data / "pg_hba.conf").write_text(f"{rules}hostssl all all 127.0.0.1/32 trust\n")
        with (data / "postgresql.conf").open("a") as config:
            config.write("ssl = on\nssl_ca_file = 'ca.crt'\n")
        server.user.take_ownership(data / "ca.crt")
        secured = Secured(server, folder, authority)
        secured.use_certificate(authority.issue_cert("127.0.0.1"))
        yield secured
    finally:
        server.stop()


def write_row(dsn: str) -> int:
    """Writes a row and returns the number of rows in the target."""
    feed = LaneWrites(make_table({"id": pa.int64()}))
    with open_sink(dsn) as sink:
        apply_write(sink, feed.write({"id": 1}))
    return len(fetch_rows(dsn, "SELECT * FROM mirror.items"))


def test_known_client_can_write(secured_server: Secured) -> None:
    assert write_row(secured_server.dsn()) == 1
    assert write_row(f"{secured_server.dsn('mutual')} {secured_server.client('tester')}") == 1


WRONG = {
    "of another user": ("mutual", "nobody"),
    "none": ("mutual", ""),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_client_certificate_is_refused(secured_server: Secured, case: str) -> None:
    database, user = WRONG[case]
    with pytest.raises(EnvironmentProblem, match="certificate") as refused:
        write_row(f"{secured_server.dsn(database)} {secured_server.client(user) if user else ''}")
    assert "sslcert" in refused.value.next_step or "pg_hba" in refused.value.next_step


def test_wrong_password_is_refused_and_not_shown(secured_server: Secured) -> None:
    quoted = PASSWORD.replace("'", "\\'")
    with pytest.raises(EnvironmentProblem, match="password") as refused:
        write_row(secured_server.dsn("secret", password=f"'{quoted}'"))
    assert PASSWORD not in f"{refused.value}" and "user and password" in refused.value.next_step


def test_unverified_server_is_refused(secured_server: Secured, tmp_path: Path) -> None:
    """Its certificate has an unknown issuer, another host name, or has expired."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    now = datetime.now(UTC)
    past = {"not_before": now - timedelta(days=2), "not_after": now - timedelta(days=1)}

    def expect_refusal(**parameters: str) -> str:
        with pytest.raises(EnvironmentProblem, match="certificate") as problem:
            write_row(secured_server.dsn(**parameters))
        assert "sslrootcert" in problem.value.next_step
        return str(problem.value)

    assert "verify failed" in expect_refusal(sslrootcert=str(tmp_path / "other.pem"))
    assert "does not exist" in expect_refusal(sslrootcert=str(tmp_path / "none.pem"))
    try:
        secured_server.use_certificate(secured_server.authority.issue_cert("db.example"))
        assert "does not match host name" in expect_refusal()
        secured_server.use_certificate(secured_server.authority.issue_cert("127.0.0.1", **past))
        assert "expired" in expect_refusal()
    finally:
        secured_server.use_certificate(secured_server.authority.issue_cert("127.0.0.1"))


def test_connection_with_tls_on_one_side_only_is_refused(secured_server: Secured, postgres_dsn: str) -> None:
    with pytest.raises(EnvironmentProblem, match="no encryption"):
        write_row(f"{secured_server.server.dsn()} sslmode=disable")
    with pytest.raises(EnvironmentProblem, match="does not support SSL") as refused:
        write_row(f"{postgres_dsn} sslmode=require")
    assert "sslmode" in refused.value.next_step


def diagnose(dsn: str) -> list[tuple[str, str]]:
    found = [(d.severity, d.sentence) for d in PostgresCheck("pg", {"dsn": dsn}).diagnose()]
    return [one for one in found if "sslmode" in one[1] or "encrypted" in one[1]]


def test_doctor_warns_of_unencrypted_or_unverified_connections(
    secured_server: Secured, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server on the same machine gives no warning."""
    assert not diagnose(postgres_dsn)
    monkeypatch.setattr(pg_connection, "_is_local", lambda _: False)
    assert [severity for severity, _ in diagnose(secured_server.dsn())] == ["ok"]
    assert [severity for severity, _ in diagnose(postgres_dsn)] == ["warning"]
    assert diagnose(secured_server.dsn(sslmode="require")) == [
        ("warning", "With sslmode require, the identity of the server is not checked.")
    ]
