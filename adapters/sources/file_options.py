"""Options of the sources of files: archives (`transport: archive`) and folders of immutable files (`transport: files`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from replicator.ports.adapter_options import ROWS, Mode, RecordOptions, SourceOptions, given
from replicator.ports.options import Duration, LakePath, StorageSettings, refuse_idle_storage, to_timedelta, unset

RECORDED, CONNECT, LINES = "recorded", "connect", "lines"
"""The kinds of files in an archive."""
SETTLE = LOOK_EVERY = "10 seconds"


class FileSourceOptions(SourceOptions):
    """The keys and limits that both kinds of sources share."""

    what: ClassVar[str] = "a source of files"

    message_bytes: int = given(16 * 1024 * 1024, ge=1)
    """The longest record. A line may be `file_list.LONGER` times longer."""

    if TYPE_CHECKING:  # Keys of both models, which describe them.
        path: str
        storage: StorageSettings | None
        settle: str | None
        look_every: str | None
        through: list[str] | None

    @model_validator(mode="after")
    def _check_storage(self) -> FileSourceOptions:
        refuse_idle_storage(self.path, self.storage)
        return self

    @property
    def settle_seconds(self) -> float | None:
        """Seconds without a write after which a file is complete, if it is read as a whole. None: the default."""
        return None if self.settle is None else to_timedelta(self.settle).total_seconds()

    @property
    def look_seconds(self) -> float:
        """Seconds after which files are listed again without any notification."""
        return to_timedelta(self.look_every or LOOK_EVERY).total_seconds()


class ArchiveSettings(FileSourceOptions, RecordOptions):
    """Recorded topics as JSON Lines (also `.gz`) or Parquet, or the files of Kafka Connect's sinks."""

    rank: ClassVar[int] = 2
    assumed: ClassVar[Mapping[str, Any]] = {"transport": "archive", "format": ""}

    transport: Literal["archive"]
    path: LakePath
    """A file, a folder, a glob or `s3://BUCKET/FOLDER`."""
    files: Literal["recorded", "connect", "lines"] | None = unset(RECORDED)
    """`recorded`: files of `replicator record`. `connect`: files of object-store sinks, named
    `TOPIC+PARTITION+OFFSET.json`. `lines`: the file of Kafka's file sink, with one value in each line."""
    topic: str | None = Field(None, pattern=r"^[A-Za-z0-9._-]{1,249}$")
    """With `files: lines`: the topic name of the records. Required there."""
    settle: Duration | None = unset(SETTLE)
    """With `files: connect`: a file is read when it has not changed for this time."""
    mode: Mode | None = unset("stream")
    """`stream`: batches of limited size. `batch`: everything that is there in one batch, with one merge for each
    table."""
    storage: StorageSettings | None = None
    """The access to the object store of an `s3://` path."""
    look_every: Duration | None = unset(LOOK_EVERY)
    """The time between two listings of files. Changes in local folders are seen at once."""

    through: list[str] | None = given()
    """See `FilesSettings`: never set."""


class FilesSettings(FileSourceOptions):
    """Folders of files. For AWS DMS: CSV (also `.gz`) or Parquet files in SCHEMA/TABLE, named after their time. For
    `rows`: folders with the names of tables, and files named after a number or time."""

    rank: ClassVar[int] = 3
    assumed: ClassVar[Mapping[str, Any]] = {"transport": "files", "format": ""}

    transport: Literal["files"]
    path: LakePath
    """A file, a folder, a glob or `s3://BUCKET/FOLDER`."""
    files: Literal["csv", "jsonl", "parquet"] | None = None
    """With format `rows`, required there: CSV with a header row, JSON Lines (both also `.gz`) or Parquet."""
    mode: Mode | None = unset("stream")
    """`stream`: batches of limited size. `batch`: everything that is there in one batch, with one merge for each
    table."""
    storage: StorageSettings | None = None
    """The access to the object store of an `s3://` path."""
    settle: Duration | None = unset(SETTLE)
    """A file is read when it has not changed for this time. No wait in an object store."""
    look_every: Duration | None = unset(LOOK_EVERY)
    """The time between two listings of files. Changes in local folders are seen at once."""

    through: list[str] | None = None
    """File names below `path`. Only these files are read, and earlier files of the same tables."""

    def for_decoder(self, section: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options without `csv`, which only the reader of the files needs: the decoder gets rows as JSON."""
        if self.format != ROWS:
            return section
        defaults = {"inserts_only": "operation_column" not in section, "text_values": self.files == "csv", "in_files": True}
        return {"sequence_columns": (), **defaults, **{key: value for key, value in section.items() if key != "csv"}}


# Versions in file names: the digits at their end.

DIGITS = re.compile(r"(\d(?:[\d_:T.-]*\d)?)Z?\Z")


def find_version_digits(name: str, suffixes: Iterable[str]) -> list[str]:
    """The digit groups before the longest of `suffixes` in `name`; empty if there are none."""
    suffix = next((one for one in sorted(suffixes, key=len, reverse=True) if name.endswith(one)), "")
    match = DIGITS.search(name.removesuffix(suffix))
    return re.findall(r"\d+", match[1]) if match else []
