"""Options of the sources over a Delta table, and of those that write rows to a journal, a Delta table of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from replicator.domain.transform.columns import Mask
from replicator.ports.adapter_options import ROWS, CatalogTable, Mode, SourceOptions, given
from replicator.ports.options import IS_INSTANCE, LakePath, StorageSettings, Topic, ZonedTime, refuse_idle_storage, unset

APPENDED = "appended"


class DeltaSourceSettings(SourceOptions):
    """A Delta table: the event log of a pipeline, read as its recorded topics. With format `rows`, the rows of any
    Delta table."""

    what: ClassVar[str] = "a delta source"
    rank: ClassVar[int] = 4
    assumed: ClassVar[Mapping[str, Any]] = {"transport": "delta", "format": ""}

    transport: Literal["delta"]
    path: LakePath | None = None
    """The folder of the table, its `file://` URL or `s3://BUCKET/FOLDER`."""
    storage: StorageSettings | None = None
    """The access to the object store of an `s3://` path."""
    topics: list[Topic] | None = Field(default=None, min_length=1)
    """Event logs: the recorded topics to read, as names, globs or regular expressions that begin with `^`. By default
    all."""
    table: CatalogTable | None = None
    """Format `rows` on Spark, instead of `path`: the table as `[CATALOG.]SCHEMA.TABLE`."""
    mode: Mode | None = unset("stream")
    """`stream`: batches of limited size. `batch`: everything that is there in one batch, with one merge for each
    table."""
    changes: Literal["appended", "feed"] | None = unset(APPENDED)
    """Format `rows`: read appended rows (`appended`) or the table's change data feed (`feed`)."""
    start_from: Literal["earliest", "latest"] | None = unset("earliest")
    """Format `rows`: where lanes without a position start. `earliest`: with the rows of the table. `latest`: with
    later changes."""
    since: ZonedTime | None = None
    """Event logs: only records with this time at the source or later. Records without a time are included."""
    until: ZonedTime | None = None
    """Event logs: only records with this time at the source or earlier. Records without a time are included."""

    masked: tuple[str, ...] = given(())
    """Columns that are already masked in the table. Record headers mark them."""
    below: Mapping[str, Mapping[str, int]] | None = given()
    """Event logs: by topic and partition the offset at which the log ends for this reader. Other partitions have no
    records then."""
    part: bool = given(False)
    """Event logs: true accepts that first records may have been removed."""

    @model_validator(mode="after")
    def _check_storage(self) -> DeltaSourceSettings:
        refuse_idle_storage(self.path, self.storage)
        return self

    @classmethod
    def read(cls, options: Self | Mapping[str, Any]) -> Self:
        """See `AdapterOptions.read`. Also ConfigProblem for options that do not fit together."""
        settings = super().read(options)
        if settings.format == ROWS:
            if (settings.path is None) == (settings.table is None):
                raise cls.refuse("give one of 'path' and 'table'")
            if settings.changes == "feed" and settings.columns:
                why = "the feed says operations and order itself: leave out operation_column and sequence_columns"
                raise cls.refuse(why)
        elif settings.path is None:
            raise cls.refuse("path is missing")
        elif settings.start_from == "latest":
            raise cls.refuse("start_from: an event log is read from its beginning")
        return settings

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of rows that the decoder reads. They are kept even if they are bookkeeping columns of a target."""
        return (*((self.operation_column,) if self.operation_column else ()), *(self.sequence_columns or ()))

    @property
    def lake(self) -> str | None:
        return self.path


# Sources that write rows to a journal, and read that.

CHANGE, VERSION = "_change", "_snapshot"
"""Columns of the journal: the operation, and the version of the read."""


class JournalOptions(SourceOptions):
    """Base of the options of these sources."""

    state: str = given("")
    """The folder for state between runs."""
    keys: tuple[str, ...] = given(())
    """The key columns."""
    columns: dict[str, str] = given({}, alias="schema")
    """The declared columns, with their types."""
    private: dict[str, Annotated[Mask, IS_INSTANCE]] = given({})
    """The masks of columns."""

    @classmethod
    def read(cls, options: Self | Mapping[str, Any]) -> Self:
        """See `AdapterOptions.read`. Also ConfigProblem without a folder for the journal."""
        settings = super().read(options)
        if not settings.state:
            raise cls.refuse("state is missing")
        return settings

    @property
    def name(self) -> str:
        """The name of the table and of the stream."""
        raise NotImplementedError

    @property
    def stateful_table(self) -> str | None:
        return self.name

    def for_decoder(self, section: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `SourceOptions.for_decoder`: the source makes the records."""
        return {**section, "operation_column": CHANGE, "sequence_columns": (VERSION,)}
