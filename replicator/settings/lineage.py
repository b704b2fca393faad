"""Settings of where it is told which tables were computed from which."""

from __future__ import annotations

from pydantic import model_validator

from .fields import ConfigPath, HttpUrl, Name, Secret, Strict, make_value_error


class LineageSettings(Strict):
    """Where OpenLineage events go: appended to the file `path`, a line each, or sent to `url`."""

    path: ConfigPath | None = None
    """A file of JSON lines."""
    url: HttpUrl | None = None
    """What takes events by POST, such as http://HOST:PORT/api/v1/lineage."""
    token: Secret | None = None
    """With `url`: the bearer token that it asks for."""
    namespace: Name | None = None
    """The namespace of the jobs, the pipeline's name by default."""

    @model_validator(mode="after")
    def _check_location(self) -> LineageSettings:
        if (self.path is None) == (self.url is None):
            raise make_value_error("place", "needs exactly one of 'path' and 'url'")
        if self.url is None and self.token is not None:
            raise make_value_error("inapplicable", "has a 'token', which means nothing without 'url'; remove it")
        return self
