"""librdkafka's settings as settings of the Java client, which Spark's executors use.

The driver reads files and sends their contents: its paths do not exist on other machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicator.domain.errors import ConfigProblem

LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
BEARER = "org.apache.kafka.common.security.oauthbearer"
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
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
TOKENS = "sasl.oauthbearer."
METHOD, ENDPOINT = f"{TOKENS}method", f"{TOKENS}token.endpoint.url"
CLIENT = {f"{TOKENS}client.id": "clientId", f"{TOKENS}client.secret": "clientSecret", f"{TOKENS}scope": "scope"}
"""Names of options in the Java client's JAAS line (KIP-768)."""
OAUTH = (METHOD, ENDPOINT, *CLIENT)
MECHANISM = ("sasl.mechanism", "sasl.mechanisms")
CREDENTIALS = ("sasl.username", "sasl.password")
HOST_CHECK = "ssl.endpoint.identification.algorithm"


def java_client(security: Mapping[str, str]) -> dict[str, str]:
    """The Java client's settings for librdkafka's `security.*`, `sasl.*` and `ssl.*`. Contains secrets: never log it.

    Raises ConfigProblem that names an unsupported setting, or an unreadable file.
    """
    out: dict[str, str] = {}
    for name, value in security.items():
        if name in SAME:
            out[name] = value
        elif name in CONTENTS:
            out[CONTENTS[name]] = _read_file(name, value)
        elif name in TEXTS:
            out[TEXTS[name]] = value
        elif name == HOST_CHECK:
            out[HOST_CHECK] = "" if value == "none" else value
        elif name not in (*MECHANISM, *CREDENTIALS, *OAUTH):
            raise _unsupported_error(name)
    for kind in ("truststore", "keystore"):
        if any(name.startswith(f"ssl.{kind}.") for name in out):
            out[f"ssl.{kind}.type"] = "PEM"
    return out | _login(security)


def _login(security: Mapping[str, str]) -> dict[str, str]:
    mechanism = next((security[name] for name in MECHANISM if name in security), None)
    if mechanism is None:
        return {}
    if mechanism == "OAUTHBEARER":
        return _token_login(security)
    if mechanism not in LOGIN:
        raise _unsupported_error(f"sasl.mechanism {mechanism}")
    user, password = (_quote(security.get(name, "")) for name in CREDENTIALS)
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{LOGIN[mechanism]} required username={user} password={password};",
    }


def _token_login(security: Mapping[str, str]) -> dict[str, str]:
    """Login with a token from an OAuth server for a client id and secret (RFC 6749, section 4.4)."""
    if security.get(METHOD) != "oidc" or ENDPOINT not in security:
        raise _unsupported_error(f"sasl.mechanism OAUTHBEARER without {METHOD} oidc and {ENDPOINT}")
    pairs = " ".join(f"{own}={_quote(security[name])}" for name, own in CLIENT.items() if name in security)
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{BEARER}.OAuthBearerLoginModule required {pairs};",
        "sasl.login.callback.handler.class": f"{BEARER}.OAuthBearerLoginCallbackHandler",
        ENDPOINT: security[ENDPOINT],
    }


def allow_endpoint(jvm: Any, client: Mapping[str, str]) -> None:
    """Allow requests to the OAuth server in `client` in this JVM (required since Kafka 3.9.1). Executors of a cluster
    need `spark.executor.extraJavaOptions`."""
    if ENDPOINT in client:
        jvm.java.lang.System.setProperty(ALLOWED, client[ENDPOINT])


def _quote(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read_file(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigProblem(
            f"the file of {name} cannot be read as PEM: {type(error).__name__}", next_step="Name a readable PEM file."
        ) from error


def _unsupported_error(name: str) -> ConfigProblem:
    names = ", ".join(sorted([*SAME, *CONTENTS, *TEXTS, *MECHANISM, *CREDENTIALS, HOST_CHECK, *OAUTH]))
    return ConfigProblem(
        f"the security setting {name} has no counterpart in the Kafka client that Spark uses",
        next_step=f"On Spark these work: {names}; with {', '.join(LOGIN)}, OAUTHBEARER.",
    )
