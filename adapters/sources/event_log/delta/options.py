"""Options of the event log source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from ....object_store.options import Storage
from ..options import LogOptions


class DeltaSourceOptions(LogOptions):
    """`sources.<name>` in the configuration with `transport: delta`.

    `path` is the folder of the table, its `file://` URL, or `s3://BUCKET/KEY`; `storage` has the access options. With
    `mode: batch` everything new is one batch, of at most `batch_bytes`.
    """

    transport: Literal["delta"] = "delta"
    path: str = Field(min_length=1)
    storage: Storage | None = None
    mode: Literal["stream", "batch"] = "stream"

    @classmethod
    def read(cls, options: Mapping[str, object]) -> DeltaSourceOptions:
        """The validated options. Raises ConfigProblem that names each wrong key."""
        return cls.from_options({k: str(v) if k == "path" else v for k, v in options.items()}, "a delta source")
