"""Check of a replication slot: it exists, has a reader, and does not retain too much log."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from replicator.ports.diagnosis import Diagnosis

from .postgres_connection import fetch_rows

GIB = 1024**3
SLOT = """
SELECT s.active, s.wal_status, s.plugin, s.database = current_database(),
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
                       s.restart_lsn)::bigint,
       (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size')
FROM pg_replication_slots s WHERE s.slot_name = %s"""
MUCH = 4 * GIB


def check_slot(name: str, connection: psycopg.Connection, slot: str) -> Iterator[Diagnosis]:
    """The diagnoses of a slot. `name`: their subject."""
    found = fetch_rows(connection, SLOT, slot)
    if not found:
        step = "The connector creates it when it starts. Read the connector's log, and check that `slot` is its slot.name."
        yield Diagnosis("warning", name, f"There is no replication slot {slot}.", step)
        return
    active, status, plugin, mine, held, limit_mb = found[0]
    if not mine or plugin != "pgoutput":
        where = f"uses {plugin}" if mine else "belongs to another database"
        yield Diagnosis("error", name, f"Replication slot {slot} {where}.", "Give the connector another slot.name.")
    if status == "lost":
        yield _lost_diagnosis(name, slot)
        return
    yield _check_reader(name, slot, bool(active))
    yield _check_retained(name, slot, held or 0, limit_mb, status)


def _lost_diagnosis(name: str, slot: str) -> Diagnosis:
    sentence = f"The server has thrown away log that slot {slot} still needed (wal_status is lost): changes are gone."
    step = (
        f"SELECT pg_drop_replication_slot('{slot}'); then restart the connector with snapshot.mode=when_needed, and "
        "raise max_slot_wal_keep_size."
    )
    return Diagnosis("error", name, sentence, step)


def _check_reader(name: str, slot: str, active: bool) -> Diagnosis:
    if active:
        return Diagnosis("ok", name, f"Replication slot {slot} is being read.")
    step = "Start the connector: until then the server keeps all log. Drop the slot if it is not needed any more."
    return Diagnosis("warning", name, f"Replication slot {slot} has no reader.", step)


def _check_retained(name: str, slot: str, held: int, limit_mb: int, status: str) -> Diagnosis:
    """Compare the log retained for the slot with the limit (-1: none) above which the server deletes it."""
    limit = limit_mb * 1024 * 1024
    sentence = f"Slot {slot} holds back {_format_size(held)} of log"
    if limit_mb < 0:
        sentence += ", and nothing bounds that."
        step = "See why the connector is behind; set max_slot_wal_keep_size so that the disk cannot fill up."
        return Diagnosis("warning", name, sentence, step) if held > MUCH else Diagnosis("ok", name, sentence)
    sentence += f" of the {_format_size(limit)} that max_slot_wal_keep_size allows."
    step = "See why the connector is behind, and raise max_slot_wal_keep_size: beyond it changes are lost."
    if status == "unreserved" or held > 0.9 * limit:
        return Diagnosis("error", name, sentence, step)
    return Diagnosis("warning" if held > 0.5 * limit else "ok", name, sentence, step if held > 0.5 * limit else "")


def _format_size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"
