"""Settings of lineage: the place where events about computed tables and their inputs go."""

from __future__ import annotations

from pydantic import model_validator

from .fields import ConfigPath, HttpUrl, Name, Secret, Strict, make_value_error


class LineageSettings(Strict):
    """The receiver of OpenLineage events: the file `path`, one in each line, or `url`."""

    path: ConfigPath | None = None
    """A file of JSON lines."""
    url: HttpUrl | None = None
    """An endpoint that accepts events by POST, such as `http://HOST:PORT/api/v1/lineage`."""
    token: Secret | None = None
    """With `url`: the bearer token of the endpoint."""
    namespace: Name | None = None
    """The namespace of the jobs. By default the name of the pipeline."""

    @model_validator(mode="after")
    def _check_location(self) -> LineageSettings:
        if (self.path is None) == (self.url is None):
            raise make_value_error("place", "needs exactly one of 'path' and 'url'")
        if self.url is None and self.token is not None:
            raise make_value_error("inapplicable", "has a 'token', which means nothing without 'url'; remove it")
        return self
