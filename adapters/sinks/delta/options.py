"""Options of Delta sinks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from replicator.ports.adapter_options import Engine, SinkOptions
from replicator.ports.options import (
    VACUUM,
    CatalogSchema,
    Duration,
    FromZero,
    LakePath,
    PositiveDuration,
    StorageSettings,
    refuse_idle_storage,
    unset,
)

from ...stores import locate_lake

DEAD_LETTERS_FOLDER = "_replicator/dead_letters"


class DeltaSettings(SinkOptions):
    """Delta Lake tables, one folder for each table."""

    what: ClassVar[str] = "a Delta sink"
    rank: ClassVar[int] = 1
    assumed: ClassVar[Mapping[str, Any]] = {"kind": "delta"}
    is_lake: ClassVar[bool] = True
    holds_projections: ClassVar[bool] = True
    in_seconds: ClassVar[frozenset[str]] = frozenset(VACUUM)

    kind: Literal["delta"]
    path: LakePath
    """The folder of the lake, or `s3://BUCKET/FOLDER`. Each table is a folder in it."""
    storage: StorageSettings | None = None
    """The access to the object store of an `s3://` path."""
    compact_every: FromZero | None = unset(50)
    """Compact the small files of a table after this number of commits. 0: never."""
    vacuum_every: Duration | None = None
    """The time between two vacuums of a table. A vacuum deletes old files after a commit. By default never."""
    vacuum_retain: PositiveDuration | None = None
    """How long a vacuum leaves old files, rounded up to whole hours. Readers of older versions need them. By default
    as the table's properties say, usually 7 days."""
    schema_name: CatalogSchema | None = Field(None, alias="schema")
    """Spark only: the schema of the session's catalog for the tables, and for views of their current rows."""

    @property
    def catalog_of(self) -> Engine | None:
        return None if self.schema_name is None else "spark"

    @model_validator(mode="after")
    def _check_storage(self) -> DeltaSettings:
        refuse_idle_storage(self.path, self.storage)
        return self

    @classmethod
    def place_dead_letters(cls, section: Mapping[str, Any]) -> Mapping[str, Any] | None:
        path = section.get("path")
        if not isinstance(path, str) or "://" in path:
            return None
        return {"path": f"{path.rstrip('/')}/{DEAD_LETTERS_FOLDER}"}

    def for_projector(self, section: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return locate_lake(section)
