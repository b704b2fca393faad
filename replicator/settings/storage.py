"""Settings for access to an object store, of sinks and sources."""

from __future__ import annotations

from pydantic import Field, model_validator

from .fields import HttpUrl, Secret, Strict, make_value_error


class StorageSettings(Strict):
    """The access to an object store. Missing keys come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_REGION` and so on)
    or from the machine's role."""

    access_key_id: Secret | None = None
    """The id of the access key, together with `secret_access_key`."""
    secret_access_key: Secret | None = None
    """The secret of the access key."""
    session_token: Secret | None = None
    """The session token of temporary credentials."""
    region: str | None = Field(None, min_length=1)
    """The region of the bucket, such as `eu-central-1`."""
    endpoint: HttpUrl | None = None
    """The URL of a store that is not Amazon's."""
    allow_http: bool = False
    """Allows an `endpoint` without encryption (`http://`)."""

    @model_validator(mode="after")
    def _check_whole(self) -> StorageSettings:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise make_value_error("storage", "needs both 'access_key_id' and 'secret_access_key', or none of them")
        if self.session_token is not None and self.access_key_id is None:
            raise make_value_error("storage", "has a 'session_token' without 'access_key_id'")
        if (self.endpoint or "").startswith("http://") and not self.allow_http:
            raise make_value_error("storage", "has an 'endpoint' without encryption; write https://, or 'allow_http: true'")
        return self


def refuse_idle_storage(path: str | None, storage: StorageSettings | None) -> None:
    """Raise PydanticCustomError for a `storage` together with a path on this machine."""
    if storage is not None and "://" not in (path or ""):
        raise make_value_error(
            "inapplicable", "has a 'storage', which means nothing without an s3:// URL in 'path'; remove it"
        )
