"""Options of the archive source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from replicator.domain.errors import ConfigProblem


class ArchiveOptions(BaseModel):
    """`sources.<name>` of the configuration with `transport: archive`.

    `path` is a file, a folder or a glob (`**` for any depth) on this machine. `batch_records` and `batch_bytes` (of keys
    and values) bound one batch.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    transport: Literal["archive"] = "archive"
    format: str = ""
    path: str = Field(min_length=1)
    start_from: Literal["earliest"] = "earliest"
    batch_records: int = Field(500_000, ge=1)
    batch_bytes: int = Field(128 * 1024 * 1024, ge=1)

    @classmethod
    def read(cls, options: Mapping[str, object]) -> ArchiveOptions:
        """The options checked. Raises ConfigProblem that names each wrong key."""
        try:
            return cls.model_validate({k: str(v) if k == "path" else v for k, v in options.items()})
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False, include_context=False)
            text = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in found)
            raise ConfigProblem(f"The options of a source of files are not valid: {text}.") from None
