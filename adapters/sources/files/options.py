"""Options of the archive source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from replicator.domain.errors import ConfigProblem

from ...object_store.options import Storage
from .file_list import Place
from .object_folder import ObjectFolder, is_object_url


class ArchiveOptions(BaseModel):
    """`sources.<name>` of the configuration with `transport: archive`.

    `path` is a file, a folder or a glob (`**` for any depth) on this machine, or a folder or file of a bucket,
    `s3://BUCKET/KEY`, which `storage` says how to reach. `batch_records` and `batch_bytes` (of keys and values) bound one
    batch. With `mode: batch` all that has accumulated is one: `batch_bytes` is the most it may hold, and `batch_records`
    bounds nothing. `settle`: the seconds that nobody must have written to a file before it counts as complete, where a file
    is read as a whole. `look_every`: after so many seconds files are listed anew, though nothing told of a change.
    `message_bytes`: the longest record; a line may be `line_reader.LONGER` times longer.
    `through`: of DMS's files only those are read that have these names below `path`, and those of their tables that come
    before them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    transport: Literal["archive"] = "archive"
    format: str = ""
    path: str = Field(min_length=1)
    storage: Storage | None = None
    settle: float | None = Field(None, ge=0)
    look_every: float | None = Field(None, ge=0)
    through: frozenset[str] | None = None
    start_from: Literal["earliest"] = "earliest"
    message_bytes: int = Field(16 * 1024 * 1024, ge=1)
    mode: Literal["stream", "batch"] = "stream"
    batch_records: int = Field(500_000, ge=1)
    batch_bytes: int = Field(128 * 1024 * 1024, ge=1)

    @property
    def place(self) -> Place:
        """Where the files are. ConfigProblem for a store that is not known."""
        return ObjectFolder.from_url(self.path, self.storage) if is_object_url(self.path) else self.path

    @property
    def is_whole(self) -> bool:
        """Everything is to be one batch."""
        return self.mode == "batch"

    @classmethod
    def read(cls, options: Mapping[str, object]) -> ArchiveOptions:
        """The options checked. Raises ConfigProblem that names each wrong key."""
        try:
            return cls.model_validate({k: str(v) if k == "path" else v for k, v in options.items()})
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False, include_context=False)
            text = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in found)
            raise ConfigProblem(f"The options of a source of files are not valid: {text}.") from None
