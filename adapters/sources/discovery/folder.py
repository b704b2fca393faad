"""Looks at a folder: recorded topics, files of Kafka Connect's sinks, files of AWS DMS, or rows in files."""

from __future__ import annotations

import csv
import gzip
import os
import re
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from replicator.domain.change import RAW
from replicator.domain.errors import ConfigProblem
from replicator.ports.frames import Batch
from replicator.ports.source import DiscoveredSource, DiscoveredTable

from ..files import archive_source
from ..files import connect as connect_names
from ..files import dms as dms_names
from ..files.rows import ENDINGS, SUFFIXES
from ..files.rows import find_table as find_folder
from .records import GUESSED, describe_topic, guess_schema, list_sources

SAMPLE, MOST_FILES, MOST_NAMED = 100, 200, 8
"""Records or lines of a file that are read, files of an archive, and files that are named."""
ARCHIVE = {"topic", "partition", "offset", "value"}
NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(?P<fraction>\.\d+)?")
COLUMN = re.compile(r"[^\W\d][\w .-]*")
OPERATION = re.compile("_?op(eration)?", re.IGNORECASE)
OPERATIONS = {"I", "U", "D"}
"""The first values of rows in files of DMS."""
HEADER = {"csv": {"header": True}}
NO_HEADER = "has no header row, or another separator than a comma"
UNKEYED = "write `keys` and `policy: scd1` for current rows"


def discover_folder(path: str, _: str | None) -> Sequence[DiscoveredSource]:
    """`ports.source.Discover` of a folder or file of this machine: one source."""
    try:
        root = Path(os.path.normpath(Path(path).expanduser().absolute()))
        if not root.exists():
            step = "Name a folder, or a URL such as postgresql://USER@HOST:PORT/DATABASE."
            raise ConfigProblem(f"there is no folder {path}", next_step=step)
        if next(root.rglob("_delta_log"), None) is not None:
            # Files of its older versions would be read as rows.
            raise ConfigProblem(f"{path} has a Delta table", next_step="Write a source with `transport: delta` by hand.")
        paths = sorted(root.rglob("*") if root.is_dir() else [root])
        files = [file for file in paths if file.is_file() and not file.name.startswith((".", "_"))]
        source, read = _describe_files(root, files)
    except (OSError, RuntimeError) as error:  # The latter for the home of an unknown user.
        step = "Let this user read it, or name another folder."
        raise ConfigProblem(f"{path} cannot be read: {error}", next_step=step) from None
    others = [str(file.relative_to(root)) for file in files if file not in read and file.name.endswith(ENDINGS)]
    if not others:
        return [source]
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    step = f"# Left out, because a source reads files of one kind: {', '.join(others[:MOST_NAMED])}{more}"
    return [replace(source, steps=[*source.steps, step])]


def _describe_files(root: Path, files: Sequence[Path]) -> tuple[DiscoveredSource, set[Path]]:
    """The source, and the files that it reads."""
    if files_of_sink := [file for file in files if _has_name(connect_names.parse_name, file)]:
        return _describe_archive(root, {"files": "connect"}, [root]), set(files_of_sink)
    if dumps := [file for file in files if _has_name(dms_names.parse_name, file)]:
        alike = [file for file in dumps if (file.suffix == ".parquet") == (dumps[0].suffix == ".parquet")]
        return _describe_dumps(root, alike), set(alike)
    if archives := [file for file in files if set(_read_names(file)) >= ARCHIVE]:
        return _describe_archive(root, {}, archives[:MOST_FILES]), set(archives)
    kinds = Counter(kind for file in files for kind, endings in SUFFIXES.items() if file.name.endswith(endings))
    if not kinds:
        step = "Known are archives, files of Kafka Connect's sinks and of AWS DMS, and rows in CSV, JSON Lines and Parquet."
        raise ConfigProblem(f"{root} has no files that are recognised", next_step=step)
    kind = kinds.most_common(1)[0][0]
    rows = [file for file in files if file.name.endswith(SUFFIXES[kind])]
    return _describe_rows(root, kind, rows), set(rows)


def _has_name(parse: Callable[[Path], object], file: Path) -> bool:
    try:
        return parse(file) is not None
    except ConfigProblem:
        return False


def _describe_archive(root: Path, files: Mapping[str, str], paths: Iterable[Path]) -> DiscoveredSource:
    """Records in files: the first records of each path show the formats."""
    raw = pa.concat_tables([RAW.empty_table(), *(_read_records({"path": str(path), **files}) for path in paths)])
    topics = list(dict.fromkeys(raw["topic"].to_pylist()))
    described = {topic: describe_topic(topic, raw.filter(pc.equal(raw["topic"], topic))) for topic in topics}
    sources = list_sources("archive", str(root), described, lambda _: {"transport": "archive", "path": str(root), **files})
    if len(sources) > 1:
        formats = ", ".join(source.name for source in sources)
        raise ConfigProblem(
            f"{root} has records of several formats or topic prefixes: {formats}", next_step="Move each into its own folder."
        )
    return sources[0]


def _read_records(options: Mapping[str, object]) -> pa.Table:
    stop, frames = threading.Event(), [RAW.empty_table()]

    def add(batch: Batch[pa.Table]) -> None:
        frames.append(batch.frame)
        if sum(map(len, frames)) >= SAMPLE:
            stop.set()

    source = archive_source({**options, "batch_records": SAMPLE, "settle": "0 seconds"})
    try:
        source.run(source.start(), add, stop, once=True)
    finally:
        source.close()
    return pa.concat_tables(frames)


def _describe_dumps(root: Path, files: Sequence[Path]) -> DiscoveredSource:
    """Files of AWS DMS, which name their tables by their folders."""
    firsts = {dms_names.find_table(file): file for file in reversed(files)}
    firsts.pop("", None)  # Files of transactions hold several tables.
    if files[0].suffix == ".parquet":
        return _make_source("dms", "dms_parquet", root, {}, {table: {} for table in firsts})
    rows = {table: _read_cells(file) for table, file in firsts.items()}
    has_header = _have_headers(rows.values())
    for table, cells in rows.items():
        if cells and {row[0] for row in cells[has_header:] if row} <= OPERATIONS:
            rows[table] = [row[1:] for row in cells]
    return _make_source("dms", "dms_csv", root, HEADER if has_header else {}, _guess_tables(rows, has_header))


def _describe_rows(root: Path, kind: str, files: Sequence[Path]) -> DiscoveredSource:
    """Rows in files, which are called as their folders."""
    firsts = {find_folder(file): file for file in reversed(files)}
    tables: dict[str, dict[str, str]] = {table: {} for table in firsts}
    more: dict[str, Any] = {"files": kind}
    left: list[str] = []
    if kind == "csv":
        rows: dict[str, list[list[str]]] = {}
        for file in files:
            if not rows.get(table := find_folder(file)):
                rows[table], firsts[table] = _read_cells(file), file
        for table in [table for table, cells in rows.items() if not _have_headers([cells])]:
            reason = NO_HEADER if rows.pop(table) else "is empty"
            left.append(f"{table}/{firsts.pop(table).name} {reason}")
        if not rows:
            raise ConfigProblem("; ".join(left), next_step="Have the files begin with the names of their columns.")
        tables, more = _guess_tables(rows, has_header=True), more | HEADER
    elif kind == "jsonl":
        tables = {table: guess_schema(_read_objects(file)) for table, file in firsts.items()}
    columns = [set(tables[table] or _read_names(file)) for table, file in firsts.items()]
    operation = next((name for name in sorted(set.intersection(*columns)) if OPERATION.fullmatch(name)), "")
    source = _make_source("rows", "rows", root, more | ({"operation_column": operation} if operation else {}), tables)
    return replace(source, steps=[f"# Left out: {sentence}" for sentence in left])


def _make_source(
    name: str, form: str, root: Path, more: Mapping[str, Any], schemas: Mapping[str, Mapping[str, str]]
) -> DiscoveredSource:
    settings = {"format": form, "transport": "files", "path": str(root), **more}
    tables = [
        DiscoveredTable(table, settings={"schema": schema}, note=f"{UNKEYED}; {GUESSED}")
        if schema
        else DiscoveredTable(table, note=UNKEYED)
        for table, schema in sorted(schemas.items())
    ]
    return DiscoveredSource(name, f"{form} in {root}", settings, tables)


def _guess_tables(rows: Mapping[str, Sequence[Sequence[str]]], has_header: bool) -> dict[str, dict[str, str]]:
    """The `schema` of tables of CSV. Columns without a name are numbered."""
    schemas = {}
    for table, cells in rows.items():
        width = max(map(len, cells), default=0)
        names = list(cells[0]) if cells and has_header else [f"column_{number + 1}" for number in range(width)]
        values = (dict(zip(names, map(_read_cell, row), strict=False)) for row in cells[has_header:])
        schemas[table] = guess_schema([dict.fromkeys(names), *values])
    return schemas


def _have_headers(files: Iterable[Sequence[Sequence[str]]]) -> bool:
    """True if the first row of every file names columns."""
    firsts = [rows[0] for rows in files if rows]
    return bool(firsts) and not any(
        len(set(row)) < len(row) or not all(map(COLUMN.fullmatch, row)) or OPERATIONS.intersection(row[:1]) for row in firsts
    )


def _read_cell(text: str) -> int | float | str | None:
    match = NUMBER.fullmatch(text)
    return (float(text) if match["fraction"] else int(text)) if match else text or None


def _read_cells(file: Path) -> list[list[str]]:
    csv.field_size_limit(sys.maxsize)
    return list(csv.reader(_read_lines(file)))


def _read_objects(file: Path) -> list[dict[str, Any]]:
    lines = (line for line in _read_lines(file) if line.startswith("{"))
    try:
        return [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
    except msgspec.DecodeError:
        return []


def _read_names(file: Path) -> Iterable[str]:
    """The columns of Parquet, or the fields of the first JSON object."""
    if file.suffix == ".parquet":
        try:
            return list(pq.read_schema(file).names)
        except pa.ArrowInvalid:
            return ()
    return next(iter(_read_objects(file)), {}) if file.name.endswith(SUFFIXES["jsonl"]) else ()


def _read_lines(file: Path) -> list[str]:
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8-sig", errors="replace", newline="") as lines:
            return list(islice(lines, SAMPLE))
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigProblem(f"{file} cannot be read: {error}", next_step="Correct the file, or move it away.") from None
