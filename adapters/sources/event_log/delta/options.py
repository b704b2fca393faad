"""Options of the source that reads an event log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from ....object_store.options import Storage
from ..options import LogOptions


class DeltaSourceOptions(LogOptions):
    """`sources.<name>` of the configuration with `transport: delta`.

    `path` is the folder of the table, its `file://` URL, or `s3://BUCKET/KEY`, which `storage` says how to reach.
    With `mode: batch` all that has accumulated is one batch, of at most `batch_bytes`.
    """

    transport: Literal["delta"] = "delta"
    path: str = Field(min_length=1)
    storage: Storage | None = None
    mode: Literal["stream", "batch"] = "stream"

    @classmethod
    def read(cls, options: Mapping[str, object]) -> DeltaSourceOptions:
        """The options checked. Raises ConfigProblem that names each wrong key."""
        return cls.from_options({k: str(v) if k == "path" else v for k, v in options.items()}, "a delta source")
