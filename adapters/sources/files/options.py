"""Options of the archive source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from replicator.domain.errors import ConfigProblem

from ...object_store.options import Storage
from .file_list import ObjectFolder, Place, is_object_url


class ArchiveOptions(BaseModel):
    """`sources.<name>` in the configuration with `transport: archive`.

    - `path`: a local file, folder or glob (`**` for any depth), or a folder or file of a bucket, `s3://BUCKET/KEY`;
      `storage` has the access options.
    - `batch_records`, `batch_bytes` (of keys and values): limits of one batch. With `mode: batch` everything new is one
      batch: `batch_bytes` is its maximum size, and `batch_records` has no effect.
    - `settle`: seconds without a write after which a file is complete, if it is read as a whole.
    - `look_every`: seconds after which files are listed again without any notification.
    - `message_bytes`: the longest record; a line may be `records.LONGER` times longer.
    - `through`: names of DMS files below `path`. Only these are read, and the files of their tables before them.
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
        """The location of the files. Raises ConfigProblem for an unknown store."""
        return ObjectFolder.from_url(self.path, self.storage) if is_object_url(self.path) else self.path

    @property
    def is_whole(self) -> bool:
        """True if everything is one batch."""
        return self.mode == "batch"

    @classmethod
    def read(cls, options: Mapping[str, object]) -> ArchiveOptions:
        """The validated options. Raises ConfigProblem that names each wrong key."""
        try:
            return cls.model_validate({k: str(v) if k == "path" else v for k, v in options.items()})
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False, include_context=False)
            text = "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in found)
            raise ConfigProblem(f"The options of a source of files are not valid: {text}.") from None
