"""Lines longer than a record may be, in small compressed files."""

from __future__ import annotations

import gzip
import json
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.sources.files.dms import DmsFilesSource
from adapters.sources.files.rows import RowsFilesSource
from adapters.sources.files.source import ArchiveSource
from adapters.sources.files.spark_splits import FileSplit, SliceLimits, SplitScan
from replicator.domain.change import ERROR_HEADER
from replicator.domain.position import Position

MESSAGE, LONG = 10_000, 80_000_000


def of_archive(number: int) -> bytes:
    record = {"topic": "t", "partition": 0, "offset": number, "key": "k", "value": f"v{number}"}
    return json.dumps(record).encode() + b"\n"


def of_csv(number: int) -> bytes:
    return b"%d,v%d\n" % (number, number)


def of_json(number: int) -> bytes:
    return b'{"id": %d}\n' % number


FILES = [
    ("a.jsonl", ArchiveSource, {}, of_archive),
    ("a.jsonl.gz", ArchiveSource, {}, of_archive),
    ("public/users/LOAD00000001.csv", DmsFilesSource, {"format": "dms_csv"}, of_csv),
    ("public/users/LOAD00000001.csv.gz", DmsFilesSource, {"format": "dms_csv"}, of_csv),
    ("users/1.csv.gz", RowsFilesSource, {"files": "csv"}, of_csv),
    ("users/1.jsonl.gz", RowsFilesSource, {"files": "jsonl"}, of_json),
]


@pytest.mark.parametrize(("name", "kind", "options", "line"), FILES, ids=[one[0] for one in FILES])
def test_too_long_line_is_rejected_without_a_full_read(
    tmp_path: Path, name: str, kind: Any, options: dict[str, Any], line: Callable[[int], bytes]
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb", 1) if name.endswith(".gz") else path.open("wb") as file:
        for part in (line(0), line(1), b"1," + b"a" * LONG + b"\n", line(2), b"a" * LONG + b"\n", line(3)):
            file.write(part)
    source = kind({"path": str(tmp_path), "message_bytes": MESSAGE, "settle": "0 seconds", **options})
    for engine in ("local", "spark"):
        tracemalloc.start()
        try:
            rows = read_by(engine, source)
            assert tracemalloc.get_traced_memory()[1] < LONG / 2
        finally:
            tracemalloc.stop()
        check(rows)


@pytest.mark.parametrize(("name", "kind", "options"), [one[:3] for one in FILES if "csv" in one[0]])
def test_row_over_many_lines_is_rejected_at_the_limit(tmp_path: Path, name: str, kind: Any, options: dict[str, Any]) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [of_csv(n) for n in range(100)]
    text = b"".join([of_csv(0), b'1,"open\n', *lines])
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    source = kind({"path": str(tmp_path), "message_bytes": 25, "settle": "0 seconds", **options})
    for engine in ("local", "spark"):
        rows = read_by(engine, source)
        (reason,) = (value for row in rows for key, value in row["headers"] if key == ERROR_HEADER)
        assert reason.startswith(b"TOO_LARGE:") and b"limits.message_bytes" in reason
        assert b"99" in rows[-1]["value"], "the lines behind it are rows"
        assert 75 < len(rows) < len(lines)


def check(rows: list[dict[str, Any]]) -> None:
    rejects = [value.decode() for row in rows for key, value in row["headers"] or () if key == ERROR_HEADER]
    assert [code.partition(":")[0] for code in rejects] == ["TOO_LARGE", "TOO_LARGE"]
    assert all("limits.message_bytes" in text and " line " in text for text in rejects)
    assert rows[-1]["value"] and b"3" in rows[-1]["value"], "reading goes on after it"


def read_by(engine: str, source: Any) -> list[dict[str, Any]]:
    if engine == "spark":
        (file,) = source._list_files()
        piece = FileSplit(file, 0, file.size, begun=0, lines=0, weight=0)
        frames = [chunk for chunk, _, _ in SplitScan(source._form, piece, SliceLimits(1000, 1 << 20)).read_slices()]
    else:
        frames = []
        source.run(Position(), lambda batch: frames.append(batch.frame), threading.Event(), once=True)
    return [
        {**row, "headers": [(h["name"], h["value"]) for h in row["headers"] or ()]} for f in frames for row in f.to_pylist()
    ]
