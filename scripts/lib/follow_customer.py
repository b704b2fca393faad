"""One customer inserted, updated and deleted in the source, and each step awaited in every target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

SOURCE = os.environ.get("SOURCE_DSN", "postgresql://source_user:source_password@127.0.0.1:5433/source_db")
DATALAKE = os.environ.get("DATALAKE_DSN", "postgresql://datalake_user:datalake_password@127.0.0.1:5434/datalake_db")
TARGET = os.environ.get("TARGET_DSN", "postgresql://target_user:target_password@127.0.0.1:5435/target_db")
DAEMON_PORT = int(os.environ.get("REPLICATOR_HTTP_PORT", "8090"))
SECONDS = float(os.environ.get("TEST_CDC_SECONDS", "60"))
NEW, UPDATED = "new@example.com", "updated@example.com"
Row = Mapping[str, Any] | None


class Failed(Exception):
    """A step did not arrive, or something needed does not run; holds the sentence and the next step."""


def main() -> int:
    """0 when every step arrived, 1 when one did not, 3 when a database does not answer."""
    try:
        require_daemon()
        follow()
    except Failed as failure:
        sys.stderr.write(f"{failure}\n")
        return 1
    except psycopg.OperationalError as failure:
        sys.stderr.write(f"A database does not answer: {failure}Start the services: scripts/start.sh\n")
        return 3
    sys.stdout.write("Every step arrived in every target.\n")
    return 0


def require_daemon() -> None:
    """Its health address answers while the daemon runs."""
    connection = HTTPConnection("127.0.0.1", DAEMON_PORT, timeout=5)
    try:
        connection.request("GET", "/livez")
        connection.getresponse().read()
    except OSError as failure:
        raise Failed("The daemon does not run. Start it in another terminal: scripts/run-consumer.sh") from failure
    finally:
        connection.close()


def follow() -> None:
    """The three steps."""
    with psycopg.connect(SOURCE, autocommit=True) as source:
        source.execute("DELETE FROM customers WHERE email IN (%s, %s)", (NEW, UPDATED))  # of a run that was cut off
        [key] = source.execute(
            "INSERT INTO customers (first_name, last_name, email) VALUES ('New', 'Customer', %s) RETURNING id", (NEW,)
        ).fetchone() or [None]
        expect(f"INSERT {NEW}", key, lambda row: row is not None and row["email"] == NEW)
        source.execute("UPDATE customers SET email = %s WHERE id = %s", (UPDATED, key))
        expect(f"UPDATE {UPDATED}", key, lambda row: row is not None and row["email"] == UPDATED)
        source.execute("DELETE FROM customers WHERE id = %s", (key,))
        expect("DELETE", key, lambda row: row is None)


def expect(step: str, key: int, arrived: Callable[[Row], bool]) -> None:
    """Wait for the step in each target and print how long it took."""
    sys.stdout.write(f"{step} (id {key})\n")
    start = time.monotonic()
    for name, read in TARGETS.items():
        while not arrived(row := read(key)):
            if time.monotonic() - start > SECONDS:
                raise Failed(
                    f"{name}: not seen within {SECONDS:.0f} s; found {shown(row)}. "
                    "Look at scripts/check-connector.sh and `replicator status`."
                )
            time.sleep(0.1)
        sys.stdout.write(f"  {name:<48} {time.monotonic() - start:6.2f} s\n")
        sys.stdout.flush()


def shown(row: Row) -> str:
    """What was found, without more of the row than its address."""
    return "no row" if row is None else f"email {row['email']}"


def live(row: Row) -> Row:
    """A row a target keeps and marks as deleted counts as gone."""
    return None if row is None or row.get("_cdc_deleted") else row


def from_delta(key: int) -> Row:
    """The row in the Delta table, read through the program's own query command."""
    command = ["replicator", "query", "lake.customers", "--where", f"id = {key}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError as failure:
        raise Failed(f"`{' '.join(command)}` failed: {done.stderr.strip()}") from failure
    return live(next(iter(answer["result"] or []), None))


def from_postgres(dsn: str, table: str) -> Callable[[int], Row]:
    """A reader of the row in a PostgreSQL table."""
    query = sql.SQL("SELECT * FROM {} WHERE id = %s").format(sql.Identifier(*table.split(".")))

    def read(key: int) -> Row:
        with psycopg.connect(dsn, row_factory=dict_row) as connection:
            return live(connection.execute(query, (key,)).fetchone())

    return read


TARGETS: Mapping[str, Callable[[int], Row]] = {
    "Delta Lake, deltalake/customers": from_delta,
    "PostgreSQL, datalake_db cdc_processed.customers": from_postgres(DATALAKE, "cdc_processed.customers"),
    "PostgreSQL, target_db public.customers": from_postgres(TARGET, "public.customers"),
}

if __name__ == "__main__":
    sys.exit(main())
