"""Check of snapshots for `doctor`: they exist, have versions in their names, and are readable; or the database accepts
the query. Processes none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from replicator.domain.errors import ReplicatorError
from replicator.domain.plain_values import format_count
from replicator.ports.runtime import Diagnosis

from ...decoders.common.row_files import CsvDialect
from .file_formats import CsvFormat, JsonLinesFormat, ParquetFormat, SnapshotFormat
from .file_snapshots import list_snapshots
from .options import SnapshotsSettings
from .source import snapshot_query

LOCATION_KEYS = ("path", "files", "dsn", "table", "query")
OF_TEXT: Mapping[str, SnapshotFormat] = {"csv": CsvFormat({}, CsvDialect()), "jsonl": JsonLinesFormat({})}
"""Formats for file names only: the columns are not known here."""


class SnapshotsCheck:
    """`ports.runtime.Check`, with the source's options in `LOCATION_KEYS`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._place = {key: options[key] for key in LOCATION_KEYS if options.get(key) is not None}
        self._parquet = ParquetFormat(options["memory"]) if "memory" in options else ParquetFormat()

    def diagnose(self) -> Sequence[Diagnosis]:
        try:
            return [self._check_database() if "dsn" in self._place else self._check_folder(str(self._place["path"]))]
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step)]

    def _check_database(self) -> Diagnosis:
        options = SnapshotsSettings.read({**self._place, "state": ".", "keys": ()})
        columns = snapshot_query(options).read_columns()
        count = format_count(len(columns), "column")
        return Diagnosis("ok", self._name, f"The database can be queried for {options.name}: {count}.")

    def _check_folder(self, path: str) -> Diagnosis:
        kind = self._place.get("files", "parquet")
        form: SnapshotFormat = self._parquet if kind == "parquet" else OF_TEXT[kind]
        found = list_snapshots(path, form)
        if not found:
            step = "The pipeline starts once there is one."
            return Diagnosis("warning", self._name, f"There is no snapshot in {path} yet.", step)
        newest = f"{Path(path).name} has {format_count(len(found), 'snapshot')}; the newest is version {found[-1].version}"
        if kind != "parquet":
            return Diagnosis("ok", self._name, f"{newest}.")
        rows = found[-1].read_rows(form)
        if rows is None:
            step = "It is read when it is complete."
            return Diagnosis("warning", self._name, f"{newest}, which is not complete yet.", step)
        return Diagnosis("ok", self._name, f"{newest}, with {format_count(rows.num_rows, 'row')}.")
