"""Options and errors of an object store, the same for all its clients."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from replicator.domain.errors import ConfigProblem, EnvironmentProblem, ReplicatorError, Retryable
from replicator.ports.options import StorageSettings

SCHEMES = ("s3", "s3a")
RETRIES = 3
RETRY_SECONDS, CONNECT_SECONDS, REQUEST_SECONDS = 20, 5, 60
"""Limits of the clients. Then the lane itself waits and retries. The libraries' default is three silent minutes."""


class Storage(StorageSettings):
    """The access to an S3 store, for its clients."""

    @classmethod
    def from_settings(cls, settings: StorageSettings | None) -> Storage:
        """The access of a section of the config, which is validated already."""
        return settings if isinstance(settings, cls) else cls.model_construct(**dict(settings or {}))

    def __repr__(self) -> str:
        return "Storage(...)"

    __str__ = __repr__

    @property
    def config(self) -> dict[str, str]:
        """The given keys, under the names that both Rust libraries use. Secrets are in clear."""
        fields = self.model_dump(exclude={"allow_http"}, exclude_none=True)
        return {f"aws_{name}": v.get_secret_value() if isinstance(v, SecretStr) else v for name, v in fields.items()}

    @property
    def may_be_plain(self) -> bool:
        """True if the endpoint may be unencrypted. Given timeouts, obstore ignores the environment, so it is read here."""
        return self.allow_http or os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")

    def to_delta_rs(self) -> dict[str, str]:
        """The options as storage options of delta-rs."""
        return {
            **self.config,
            "allow_http": str(self.may_be_plain).lower(),
            "max_retries": str(RETRIES),
            "retry_timeout": f"{RETRY_SECONDS}s",
            "connect_timeout": f"{CONNECT_SECONDS}s",
            "timeout": f"{REQUEST_SECONDS}s",
        }

    def to_obstore(self) -> dict[str, Any]:
        """The options as arguments of obstore's stores."""
        return {
            "config": self.config,
            "client_options": {
                "allow_http": self.may_be_plain,
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                "timeout": timedelta(seconds=REQUEST_SECONDS),
            },
            "retry_config": {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
        }


def split_url(path: str) -> tuple[str, str]:
    """Bucket and key of `s3://BUCKET/KEY`. ConfigProblem for URLs of other stores."""
    url = urlsplit(path)
    if url.scheme not in SCHEMES or not url.netloc:
        raise ConfigProblem(
            f"what lies on {url.scheme}:// cannot be reached yet",
            next_step="Give `path` as a local folder, or as s3://BUCKET/FOLDER.",
        )
    return url.netloc, url.path.strip("/")


# Errors of object stores as the program's own. delta-rs and obstore use the same Rust library, so their texts are the
# same.


_OF_STORE = re.compile(r"\bS3 error\b|Error performing \w+ https?://|\bMissing(Region|AccessKeyId)?\b.*\bcredential")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_STATUS = re.compile(r"\b([345]\d\d) [A-Z][a-z]+")
_NOT_SENT = re.compile(
    r"dns error|tcp connect error|connection closed|operation timed out|error sending request", re.IGNORECASE
)
_NOT_BUILT = re.compile(r"builder error|BadScheme")
_NO_CREDENTIALS = re.compile(r"credential|169\.254\.169\.254|instance metadata", re.IGNORECASE)
_TRANSIENT = frozenset({408, 409, 412, 429})

KEYS = "`access_key_id` and `secret_access_key` under `storage`, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


def is_store_error(text: str) -> bool:
    """True if the text is an error of an object store."""
    return _OF_STORE.search(text) is not None


def translate_store_error(text: str, location: str) -> ReplicatorError | None:
    """The error to raise for a store's error text about `location`; None if the text is not from a store. It quotes only
    codes, since the store's text may repeat secrets of the request."""
    if not is_store_error(text):
        return None
    code, status = _find(_CODE, text), _find(_STATUS, text)
    detail = code or status
    for applies, sentence, step in _LASTING:
        if applies(code, status, text):
            return EnvironmentProblem(f"{sentence.format(location)}{f' ({detail})' if detail else ''}", next_step=step)
    sent = "cannot be reached" if _NOT_SENT.search(text) else "does not answer as it should"
    return Retryable(f"the object store of {location} {sent}{f' ({detail})' if detail else ''}")


_LASTING: tuple[tuple[Callable[[str, str, str], bool], str, str], ...] = (
    (
        lambda code, _, __: code == "NoSuchBucket",
        "the bucket of {} does not exist",
        "Create it, or correct `path`.",
    ),
    (
        lambda code, _, __: code == "NoSuchKey",
        "a file of {} is not in the object store any more",
        "Restore it, or load the lane again with `replicator lanes resync`.",
    ),
    (
        lambda _, status, __: status in ("401", "403"),
        "the object store refuses access to {}",
        f"Check {KEYS}; the key must be allowed to list the bucket, to read in it, and for a sink to write and delete.",
    ),
    (
        lambda _, status, text: not status and _NOT_BUILT.search(text) is not None,
        "the endpoint of {} cannot be used",
        "Correct it (AWS_ENDPOINT_URL); one without encryption needs `allow_http: true` or AWS_ALLOW_HTTP.",
    ),
    (
        lambda _, status, text: not status and _NO_CREDENTIALS.search(text) is not None,
        "there are no credentials for {}",
        f"Give {KEYS}.",
    ),
    (
        lambda _, status, __: status[:1] in ("3", "4") and int(status) not in _TRANSIENT,
        "the object store cannot answer for {}",
        "Check `endpoint` and `region` under `storage`.",
    ),
)
"""Permanent errors: a test of code, status and text, the sentence, and the next step."""


def _find(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""
