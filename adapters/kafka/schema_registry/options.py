"""Options of a schema registry."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class RegistryOptions(BaseModel):
    """`url`: the base URL of an API compatible with Confluent's. `user`, `password`: for basic authentication. `ca`: a file
    with CA certificates, instead of the default ones."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: str = Field(min_length=1)
    user: str | None = None
    password: SecretStr | None = None
    ca: str | None = None
