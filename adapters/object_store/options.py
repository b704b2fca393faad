"""Options of an object store, the same for all its clients."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from replicator.domain.errors import ConfigProblem
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
