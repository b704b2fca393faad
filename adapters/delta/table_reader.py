"""Queries over current and old versions of Delta tables. Conditions can read only the table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from replicator.domain.errors import ConfigProblem, Fatal

from .errors import first_line
from .folders import Folder
from .lake import decode_name, is_hashed
from .tables import has_table, open_table, read_schema, source_name


def read_table(
    path: Folder, name: str, *, version: int | None, as_of: datetime | None, where: str | None, limit: int | None
) -> pa.Table:
    """See `ports.reads.Reader.read`; `path` is the table's folder. Columns have their source names."""
    table = open_at(path, name, version=version, as_of=as_of)
    schema = to_source_names(read_schema(table))
    scan = pa.RecordBatchReader.from_stream(table.scan())
    reader = pa.RecordBatchReader.from_batches(to_source_names(scan.schema), (b.rename_columns(schema.names) for b in scan))
    with translate_missing_files(name, table):
        if where is not None:
            return _read_matching(reader, name, where, limit).cast(schema)
        return _read_first(reader, schema, limit)


def read_columns(path: Folder, name: str, version: int) -> pa.Schema:
    """The columns of `read_table` at a version."""
    return to_source_names(read_schema(open_at(path, name, version=version, as_of=None)))


@contextmanager
def translate_missing_files(name: str, table: DeltaTable) -> Iterator[None]:
    """Raises Fatal when data files of that version of a table are deleted."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if not _is_gone(error):
            raise
        raise Fatal(
            f"table {name!r} cannot be read at version {table.version()}: its files were cleaned away",
            next_step="Query a later version.",
        ) from error


def _is_gone(error: Exception) -> bool:
    """True when delta-rs reports that a file is missing, through any reader."""
    return "Object Store error" in str(error) and "not found" in str(error)


def to_source_names(schema: pa.Schema) -> pa.Schema:
    """The columns under their source names."""
    return pa.schema([field.with_name(source_name(field.name)) for field in schema])


def table_name(folder: Folder) -> str:
    """The original name of the table in `folder`."""
    if is_hashed(folder.name):
        return open_table(folder).metadata().name or folder.name
    return decode_name(folder.name)


def open_at(path: Folder, name: str, *, version: int | None, as_of: datetime | None) -> DeltaTable:
    """The table at its newest version, at `version`, or at the version of a time. Raises Fatal when there is
    none."""
    if not has_table(path):
        raise Fatal(f"there is no table {name!r} in the lake", next_step="`replicator status` lists the targets.")
    if version is not None and as_of is not None:
        raise ConfigProblem("a query has both a version and a time", next_step="Use only one of them.")
    try:
        table = _open_version(path, version)
        if as_of is not None:
            _load_version_at(table, as_of if as_of.tzinfo else as_of.replace(tzinfo=UTC))
    except (DeltaError, OSError, ValueError) as error:
        asked = f"version {version}" if as_of is None else f"the time {as_of.isoformat()}"
        raise Fatal(f"table {name!r} cannot be read at {asked}: {_describe_versions(path)}") from error
    return table


def _open_version(path: Folder, version: int | None) -> DeltaTable:
    """The table at that version, or at the newest. Raises ValueError for a future version, which delta-rs would
    search one by one."""
    table = open_table(path)
    if version is None:
        return table
    if not 0 <= version <= table.version():
        raise ValueError("the table has no such version")
    return open_table(path, version)


def _load_version_at(table: DeltaTable, moment: datetime) -> None:
    """Loads the version of that time. Raises ValueError for a time before the first version; delta-rs would
    load the first."""
    if moment.timestamp() * 1000 < min(entry["timestamp"] for entry in table.history()):
        raise ValueError("the table is younger")
    table.load_as_version(moment)


def _describe_versions(path: Folder) -> str:
    entries = open_table(path).history()
    versions = [entry["version"] for entry in entries]
    first = datetime.fromtimestamp(min(entry["timestamp"] for entry in entries) / 1000, UTC)
    return f"it has versions {min(versions)} to {max(versions)}, from {first.isoformat(timespec='seconds')} on"


def _read_first(reader: pa.RecordBatchReader, schema: pa.Schema, limit: int | None) -> pa.Table:
    batches, rows = [], 0
    for batch in reader:
        if limit is not None and rows >= limit:
            break
        batches.append(batch)
        rows += batch.num_rows
    table = pa.Table.from_batches(batches, reader.schema).cast(schema)
    return table if limit is None else table.slice(0, limit)


def _read_matching(reader: pa.RecordBatchReader, name: str, where: str, limit: int | None) -> pa.Table:
    with duckdb.connect() as connection:
        for setting in ("enable_external_access = false", "python_enable_replacements = false", "TimeZone = 'UTC'"):
            connection.execute(f"SET {setting}")
        connection.execute("SET lock_configuration = true")
        try:
            matching = connection.from_arrow(reader).filter(where)
            return (matching if limit is None else matching.limit(limit)).to_arrow_table()
        except duckdb.Error as error:
            if _is_gone(error):
                raise pa.ArrowInvalid(str(error)) from error
            raise ConfigProblem(
                f"the condition on table {name!r} cannot be evaluated: {first_line(error)}",
                next_step="Write a SQL condition on the table's columns.",
            ) from error
