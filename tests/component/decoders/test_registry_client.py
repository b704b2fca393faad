"""Answers of a schema registry give a schema, a reject, a retry or a stop."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from servers.schema_registry import API, open_proxy, serve_answer
from support.avro_of_connect import Avro
from support.debezium_events import ID, make_change_event, make_raw_records

from adapters.decoders.debezium_avro import DebeziumAvroDecoder
from adapters.kafka.schema_registry import Registry, UnknownSchema
from adapters.observability.checks.registry import RegistryCheck
from replicator.domain.errors import EnvironmentProblem, Retryable
from replicator.ports.options import RegistrySettings

SECRET = "hunter2-secret"
MORE = {"type": "int32", "optional": True, "field": "more"}


def registry_at(url: str, **more: object) -> Registry:
    return Registry(RegistrySettings.model_validate({"url": url, **more}))


def test_schema_is_found_or_unknown(registry):
    url = f"{registry}{API}"
    (value,) = Avro(url).frame(make_raw_records([make_change_event([ID], after={"id": 1})]))["value"].to_pylist()
    assert "cdc.public.t" in (registry_at(url).read_schema(int.from_bytes(value[1:5], "big")).schema_str or "")
    with pytest.raises(UnknownSchema):
        registry_at(url).read_schema(888_888)


def test_known_schemas_need_no_registry_and_others_wait(registry):
    avro = Avro(f"{registry}{API}")
    known, fresh = (avro.frame(make_raw_records([make_change_event([ID], after={"id": n})], topic="gate")) for n in range(2))
    more = avro.frame(make_raw_records([make_change_event([ID, MORE], after={"id": 1, "more": 2})], topic="gate"))
    with open_proxy(registry) as before:
        decoder = DebeziumAvroDecoder({"registry": {"url": before.url}})
        assert decoder.route(known)["error"].null_count == 1
        before.refuse_connections()
        again = DebeziumAvroDecoder({"registry": {"url": before.url}})
        assert again.route(fresh)["error"].null_count == 1, "the process stores schemas, not the decoder"
        for call in (again.route, again.envelope, again.marks):
            with pytest.raises(Retryable, match="does not answer") as away:
                call(more)
            assert before.url in str(away.value)
        before.open()
        assert again.route(more)["error"].null_count == 1


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_reported_and_not_shown(status):
    with serve_answer(status, b'{"error_code": 40101, "message": "no"}') as (url, credentials):
        with pytest.raises(EnvironmentProblem, match=rf"refuses these credentials \(HTTP {status}\)") as stopped:
            registry_at(url, user="u", password=SECRET).read_schema(1)
        assert SECRET not in str(stopped.value) and credentials == ["Basic dTpodW50ZXIyLXNlY3JldA=="]
        with pytest.raises(EnvironmentProblem, match="asks for credentials"):
            registry_at(url).read_schema(1)


@pytest.mark.parametrize(
    ("status", "body", "kind", "sentence"),
    [
        (500, b'{"error_code": 50001}', Retryable, "HTTP 500"),
        (503, b"<html>", Retryable, "HTTP 503"),
        (429, b"{}", Retryable, "HTTP 429"),
        (404, b"<html>not here", EnvironmentProblem, "HTTP 404"),
        (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}', EnvironmentProblem, "HTTP 404"),
        (301, b"", EnvironmentProblem, "HTTP 301"),
        (200, b"<html>a page", EnvironmentProblem, "something else than a registry"),
        (200, b"[]", EnvironmentProblem, "something else than a registry"),
        (200, b"{}", EnvironmentProblem, "something else than a registry"),
    ],
)
def test_other_answers_are_errors_and_never_rejects(status, body, kind, sentence):
    with serve_answer(status, body) as (url, _), pytest.raises(kind, match=sentence) as raised:
        registry_at(url).read_schema(1)
    assert type(raised.value) is kind and raised.value.next_step


def make_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate of this machine, and a server context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "registry")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    built = x509.CertificateBuilder(name, name, key.public_key(), 7, now - timedelta(1), now + timedelta(1))
    signed = built.add_extension(address, critical=False).sign(key, hashes.SHA256())
    file, private = folder / "ca.pem", folder / "key.pem"
    file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(*encoding))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, private)
    return file, context


def test_registry_certificate_must_be_trusted(registry, tmp_path):
    file, context = make_certificate(tmp_path)
    with open_proxy(registry, context) as before:
        assert registry_at(before.url, ca=str(file)).count_subjects() >= 0
        with pytest.raises(EnvironmentProblem, match="a certificate that is not trusted"):
            registry_at(before.url).read_schema(1)
    with pytest.raises(EnvironmentProblem, match="cannot be read"):
        registry_at("https://h", ca=str(tmp_path / "missing.pem")).read_schema(1)


def test_doctor_reports_the_state_of_the_registry(registry):
    Avro(f"{registry}{API}").frame(make_raw_records([make_change_event([ID], after={"id": 1})]))
    (fine,) = RegistryCheck("registry of source shop", {"url": f"{registry}{API}", "tables": []}).diagnose()
    assert fine.severity == "ok" and "subjects" in fine.sentence
    with serve_answer(401) as (url, _):
        (refused,) = RegistryCheck("registry of source shop", {"url": url, "user": "u", "password": SECRET}).diagnose()
    assert refused.severity == "error" and SECRET not in str(refused) and "user" in refused.next_step
    with serve_answer(200, b"[]") as (url, _):
        (empty,) = RegistryCheck("registry of source shop", {"url": url}).diagnose()
    assert empty.severity == "warning" and "knows no schemas" in empty.sentence
