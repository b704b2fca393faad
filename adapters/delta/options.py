"""Options of sinks in a lake, of one table in it, and the source columns that they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Self

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.plan import ApplyPlan
from replicator.ports.frames import Lane
from replicator.ports.options import StorageSettings, to_timedelta

from .lake import Lake
from .table_writer import EVERY_COMMITS, VacuumSchedule
from .tables import stored_name, stored_names
from .types import storage_type


class _StrictOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class LakeSettings(Protocol):
    """The keys of a sink or a store in a lake, as its validated model has them. A sink also has those of vacuums."""

    @property
    def path(self) -> str | None: ...
    @property
    def storage(self) -> StorageSettings | None: ...
    @property
    def compact_every(self) -> int | None: ...


class LakeOptions(_StrictOptions):
    """The options of a sink in a lake.

    `path`: a local folder, `file://` or `s3://` URL. `storage`: the access to an object store. `compact_every`,
    `vacuum_every` and `vacuum_retain` (seconds): see `TableMaintenance`.
    """

    path: str
    storage: StorageSettings | None = None
    compact_every: int = Field(EVERY_COMMITS, ge=0)
    vacuum_every: float = Field(0, ge=0)
    vacuum_retain: float | None = Field(None, gt=0)

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> Self:
        """The options. Raises ConfigProblem with the name of each missing, unknown or invalid option."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            raise ConfigProblem(
                f"options of a Delta sink: {_describe_error(error)}",
                next_step="The options are `path`, the lake's folder, `storage`, `compact_every`, a number of commits, "
                "`vacuum_every` and `vacuum_retain`, numbers of seconds.",
            ) from None

    @classmethod
    def from_settings(cls, settings: LakeSettings) -> LakeOptions:
        """The options of a sink whose model is validated already."""
        if settings.path is None:
            raise ConfigProblem("options of a Delta store: path is missing", next_step="Name its folder in `path`.")
        every, retain = getattr(settings, "vacuum_every", None), getattr(settings, "vacuum_retain", None)
        return cls.model_construct(
            path=settings.path,
            storage=settings.storage,
            compact_every=EVERY_COMMITS if settings.compact_every is None else settings.compact_every,
            vacuum_every=to_timedelta(every or "0 seconds").total_seconds(),
            vacuum_retain=None if retain is None else to_timedelta(retain).total_seconds(),
        )

    @property
    def lake(self) -> Lake:
        """The lake at `path`. Raises ConfigProblem when it is not possible."""
        return Lake.from_path(self.path, self.storage)

    @property
    def vacuum(self) -> VacuumSchedule:
        """When its tables are vacuumed."""
        return VacuumSchedule(self.vacuum_every, self.vacuum_retain)


class TableOptions(_StrictOptions):
    """The options of a lane's table, from its `to` entry.

    - `partition_by`, `cluster_by`: columns of the source.
    - `change_data_feed`, `deletion_vectors`: true switches them on permanently.
    - `compact_every`, `vacuum_every`, `vacuum_retain`: override those of the lake.
    """

    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    change_data_feed: bool = False
    deletion_vectors: bool = False
    compact_every: int | None = Field(None, ge=0)
    vacuum_every: float | None = Field(None, ge=0)
    vacuum_retain: float | None = Field(None, gt=0)

    @classmethod
    def from_lane(cls, lane: Lane) -> TableOptions:
        """The options of the lane. Raises ConfigProblem with each unknown or invalid option, and the line."""
        try:
            return cls.model_validate(dict(lane.options))
        except ValidationError as error:
            raise ConfigProblem(
                f"options of a Delta table: {_describe_error(error)}", next_step=f"Correct them in {config_location(lane)}."
            ) from None


def config_location(lane: Lane) -> str:
    """The places where an option of the lane can be set, for people."""
    return f"{lane.config_line or f'the entry of lane {lane.id}'}, its table or `defaults`"


def _describe_error(error: ValidationError) -> str:
    errors = error.errors(include_input=False)
    return "; ".join(f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in errors)


Fits = Callable[[pa.Field], bool]
"""True when a column, as a table stores it, is suitable."""


def select_columns(
    lane: Lane, plan: ApplyPlan, option: str, wanted: Sequence[str], *, fits: Fits, which: str, stays: str
) -> list[str]:
    """The columns of `wanted` under their stored names.

    Raises ConfigProblem for a column that the source does not have, or that is not suitable. `which` names
    suitable columns. `stays`: the property that an existing table keeps without the option.
    """
    types = {c.name: c.type for c in plan.table.columns}
    for name in wanted:
        if name not in types:
            raise ConfigProblem(
                f"table {lane.table} has no column {name!r} for `{option}`: it has {', '.join(map(repr, types))}",
                next_step=f"Correct `{option}` in {config_location(lane)}, or remove it: a table that is there keeps its "
                f"{stays}.",
            )
        if not fits(pa.field(stored_name(name), storage_type(types[name]))):
            raise ConfigProblem(
                f"column {name!r} of table {lane.table} has type {types[name]}; {which}",
                next_step=f"Name another column in `{option}` in {config_location(lane)}.",
            )
    return find_stored_names(wanted)


def find_stored_names(names: Sequence[str], existing_names: Sequence[str] = ()) -> list[str]:
    """The stored names of these columns. `existing_names`: the columns of the table."""
    renames = stored_names(names, existing_names)
    return [renames.get(name, name) for name in names]
