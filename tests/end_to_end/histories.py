"""Row versions computed from the topics, and contradictions between versions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from .compare import Row, Rows, read_images, to_log_records
from .topics import Record


def get_begin(row: Row) -> tuple[int, ...]:
    return (row["_cdc_seq_1"], row["_cdc_seq_2"], row["_cdc_seq_3"])


def get_end(row: Row) -> tuple[float, ...]:
    return tuple(row[f"_cdc_end_seq_{n}"] if row["_cdc_end_seq_1"] is not None else float("inf") for n in (1, 2, 3))


def find_overlaps(versions: Sequence[Row]) -> list[str]:
    """Versions of one key that overlap, and versions that end before they begin."""
    ordered = sorted(versions, key=lambda row: (row["id"], get_begin(row)))
    lines = [f"{row['id']} at {get_begin(row)} is empty" for row in ordered if get_begin(row) >= get_end(row)]
    pairs = [(one, other) for one, other in pairwise(ordered) if one["id"] == other["id"]]
    return lines + [
        f"{one['id']} at {get_begin(one)} overlaps the next" for one, other in pairs if get_end(one) > get_begin(other)
    ]


def read_versions(records: Sequence[Record], topic: str) -> Rows:
    """The versions computed from the topic, by key and by the log position where each begins."""
    found: dict[Any, Row] = {}
    began: dict[Any, int] = {}
    for event, images in read_images(to_log_records(records), topic):
        position = json.loads(event["value"])["payload"]["source"]["lsn"]
        for key, row in images.items():
            if key in began:
                last = found[key, began[key]]
                if row is not None and row | {"_cdc_end_seq_2": None} == last:
                    continue
                found[key, began.pop(key)] = last | {"_cdc_end_seq_2": position}
            if row is not None:
                began[key] = position
                found[key, position] = row | {"_cdc_end_seq_2": None}
    return found
