"""librdkafka's settings as those of the Java client that Spark's executors use.

Files are read here, on the driver, and their contents passed on: no path of this machine means anything on another.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from replicator.domain.errors import ConfigProblem

LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
SAME = frozenset({"security.protocol", "ssl.key.password", "ssl.cipher.suites"})
CONTENTS = {
    "ssl.ca.location": "ssl.truststore.certificates",
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
}
TEXTS = {
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
}
MECHANISM = ("sasl.mechanism", "sasl.mechanisms")
CREDENTIALS = ("sasl.username", "sasl.password")
HOST_CHECK = "ssl.endpoint.identification.algorithm"


def java_client(security: Mapping[str, str]) -> dict[str, str]:
    """The settings of the Java client for librdkafka's `security.*`, `sasl.*` and `ssl.*`. Holds secrets: never log it.

    Raises ConfigProblem naming a setting that has no counterpart, and a file that cannot be read.
    """
    out: dict[str, str] = {}
    for name, value in security.items():
        if name in SAME:
            out[name] = value
        elif name in CONTENTS:
            out[CONTENTS[name]] = _contents(name, value)
        elif name in TEXTS:
            out[TEXTS[name]] = value
        elif name == HOST_CHECK:
            out[HOST_CHECK] = "" if value == "none" else value
        elif name not in (*MECHANISM, *CREDENTIALS):
            raise _none(name)
    for kind in ("truststore", "keystore"):
        if any(name.startswith(f"ssl.{kind}.") for name in out):
            out[f"ssl.{kind}.type"] = "PEM"
    return out | _login(security)


def _login(security: Mapping[str, str]) -> dict[str, str]:
    mechanism = next((security[name] for name in MECHANISM if name in security), None)
    if mechanism is None:
        return {}
    if mechanism not in LOGIN:
        raise _none(f"sasl.mechanism {mechanism}")
    user, password = (_quoted(security.get(name, "")) for name in CREDENTIALS)
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{LOGIN[mechanism]} required username={user} password={password};",
    }


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _contents(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigProblem(
            f"the file of {name} cannot be read as PEM: {type(error).__name__}", next_step="Name a readable PEM file."
        ) from error


def _none(name: str) -> ConfigProblem:
    known = ", ".join(sorted([*SAME, *CONTENTS, *TEXTS, *MECHANISM, *CREDENTIALS, HOST_CHECK]))
    return ConfigProblem(
        f"the security setting {name} has no counterpart in the Kafka client that Spark uses",
        next_step=f"On Spark these work: {known}; with {', '.join(LOGIN)}.",
    )
