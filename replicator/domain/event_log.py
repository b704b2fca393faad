"""The event log: every record of a source, raw and complete, with its decoded envelope."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import pyarrow as pa

from replicator.domain.policy.expr import AllOf, source
from replicator.domain.policy.plan import ApplyPlan, Clause, ReconcileRule
from replicator.domain.policy.policies import TIMESTAMP
from replicator.domain.policy.policy_names import EVENT_LOG_POLICY

from .errors import AlreadyWritten
from .position import Position, TopicPartition
from .table import Column, TableSpec

EVENT_LOG: tuple[Column, ...] = (
    Column("event_id", pa.string(), nullable=False),
    Column("topic", pa.string(), nullable=False),
    Column("partition", pa.int32(), nullable=False),
    Column("offset", pa.int64(), nullable=False),
    Column("timestamp", TIMESTAMP),
    Column("headers", pa.string()),
    Column("key", pa.binary()),
    Column("value", pa.binary()),
    *(Column(name, pa.string()) for name in ("source", "connector", "db", "table", "op", "before", "after")),
    *(Column(f"seq_{i}", pa.int64()) for i in range(1, 5)),
    Column("tx", pa.string()),
    Column("ts", TIMESTAMP),
    Column("schema_id", pa.string()),
    Column("error", pa.string()),
    Column("ingested_at", TIMESTAMP),
)
"""`event_id` is `<topic>-<partition>-<offset>`. `headers` is JSON text: a list of [name, value] pairs, with `{"base64":
...}` for a value that is not UTF-8. `ingested_at` has one value per batch. The rest is as in `ports.decoder.ENVELOPE`."""


RETAINED_COLUMNS = frozenset({"event_id", "topic", "partition", "offset", "timestamp", "error", "ingested_at"})
ERASED_COLUMNS = tuple(column.name for column in EVENT_LOG if column.name not in RETAINED_COLUMNS)
"""The columns that are NULL in an erased record. Its position stays, since a log is read by positions, and so do its
times."""


def make_duplicate_error(lane: str, place: TopicPartition, ends: Position) -> AlreadyWritten:
    """The error of a lane that may not begin a partition of which it has written nothing: its records would be in the
    log twice. `ends`: per partition the offset after the last record in the log."""
    return AlreadyWritten(
        f"the event log contains records of topic {place.topic} that lane {lane} did not write, so the lane would write "
        "them again",
        lane=lane,
        step="Give this log another location, or continue the lane after the records that are already there",
        ends=ends,
    )


def make_event_log_plan() -> ApplyPlan:
    """Insert every row. Its frame is the event-log frame itself; only the position detects redelivery.

    Therefore a lane may not begin a partition if another lane has written its records to the same log: see
    `make_duplicate_error`.
    """
    return ApplyPlan(
        policy=EVENT_LOG_POLICY,
        table=TableSpec("events", EVENT_LOG, ("event_id",), 0),
        fold="none",
        target=EVENT_LOG,
        reconcile=ReconcileRule(identity=("event_id",), guard="absent", complete=False, uses_tombstones=False),
        merge_keys=(),
        clauses=(Clause(False, AllOf(()), "insert", tuple((c.name, source(c.name)) for c in EVENT_LOG)),),
        truncates=False,
    )


# JSON form of record bytes in the archive transport.


def encode_bytes(data: bytes | None) -> Any:
    """Text if the bytes are UTF-8, so that people can read it; otherwise `{"base64": ...}`."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def decode_bytes(value: Any) -> bytes | None:
    """The bytes that `encode_bytes` encoded."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else b64decode(value["base64"])
