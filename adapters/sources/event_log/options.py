"""Options that all event log sources share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from replicator.domain.errors import ConfigProblem


class LogOptions(BaseModel):
    """Options of an event log source.

    - `topics`: names, globs, or regular expressions that start with `^`.
    - `since`, `until`: the range of source times, inclusive. Records without a time are included.
    - `below`: by topic and partition the offset at which the log ends for this reader. Other partitions have no records
      then.
    - `part`: the reader accepts that first records may have been removed. `ports.source.SourceFeatures.removed` reports
      nothing then.
    - `batch_records`, `batch_bytes` (of keys and values): limits of one batch.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    format: str = ""
    topics: tuple[str, ...] = Field(("*",), min_length=1)
    start_from: Literal["earliest"] = "earliest"
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    below: Mapping[str, Mapping[str, int]] | None = None
    part: bool = False
    batch_records: int = Field(500_000, ge=1)
    batch_bytes: int = Field(128 * 1024 * 1024, ge=1)

    @classmethod
    def from_options(cls, options: Mapping[str, object], what: str) -> Self:
        """The validated options of `what`. Raises ConfigProblem that names each wrong key, never a value."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False, include_context=False)
            text = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in found)
            raise ConfigProblem(f"The options of {what} are not valid: {text}.") from None
