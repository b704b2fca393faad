"""How a schema registry is reached."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class RegistryOptions(BaseModel):
    """`url`: where the registry answers as Confluent's does. `user`, `password`: of basic authentication. `ca`: a file with
    the certificates that its own is signed by, instead of those that are usual."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    url: str = Field(min_length=1)
    user: str | None = None
    password: SecretStr | None = None
    ca: str | None = None
