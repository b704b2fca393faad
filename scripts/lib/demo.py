"""The demo: the daemon runs, rows change in the source, and every target shows them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psycopg
import targets
from rich.console import Console
from rich.table import Table

SECONDS = 120.0
console = Console(width=None if sys.stdout.isatty() else 120)
CHANGES = """
BEGIN;
INSERT INTO customers (first_name, last_name, email, city) VALUES ('Hedy', 'Lamarr', '{email}', 'Vienna');
INSERT INTO orders (customer_id, status, total_amount) SELECT id, 'new', 101.00 FROM customers WHERE email = '{email}';
INSERT INTO order_items (order_id, product_id, quantity, unit_price)
    SELECT max(id), 3, 1, 12.00 FROM orders UNION ALL SELECT max(id), 4, 1, 89.00 FROM orders;
COMMIT;
UPDATE orders SET status = 'paid' WHERE id = (SELECT max(id) FROM orders);
UPDATE products SET stock_quantity = stock_quantity - 1 WHERE id IN (3, 4);
UPDATE customers SET city = 'Hollywood' WHERE email = '{email}';
INSERT INTO customers (first_name, last_name, email) VALUES ('Gone', 'Soon', 'gone-{email}');
DELETE FROM customers WHERE email = 'gone-{email}';
"""


def main() -> int:
    daemon = subprocess.Popen(["replicator", "run", "-q"], stdin=subprocess.DEVNULL)
    try:
        heading("The daemon runs (replicator run); waiting for the first rows")
        await_equal(daemon)
        changes = CHANGES.format(email=f"hedy-{int(time.time())}@example.com").strip()
        heading("Changes in the source")
        console.print(changes, highlight=False, style="dim")
        change(changes)
        seconds = await_equal(daemon)
        console.print(f"every target equals the source, {seconds:.1f} s after the last commit")
        show()
    finally:
        daemon.send_signal(signal.SIGTERM)
        code = daemon.wait(60)
    heading(f"The daemon stopped in order (exit {code})")
    return code


def heading(text: str) -> None:
    console.print(f"== {text}", style="bold", highlight=False)


def change(statements: str) -> None:
    with psycopg.connect(targets.SOURCE, autocommit=True) as source:
        for statement in statements.split(";\n"):
            source.execute(statement.encode())


def await_equal(daemon: subprocess.Popen[bytes]) -> float:
    """Wait until every mirror and every log gives the source's rows; the seconds it took."""
    began = time.monotonic()
    while any(different(*place) for place in places()):
        if daemon.poll() is not None:
            raise SystemExit(f"the daemon ended with exit code {daemon.returncode}; see its message above")
        if time.monotonic() - began > SECONDS:
            raise SystemExit("the targets do not follow; look at `replicator status` and scripts/check-connector.sh")
        time.sleep(0.1)
    return time.monotonic() - began


def places() -> list[tuple[str, str]]:
    return [(place, table) for table in targets.TABLES for place in (*targets.MIRRORS, *targets.LOGS)]


def different(place: str, table: str) -> int:
    return compare(targets.source_rows(table), place, reader(place)(place, table))


def compare(expected: targets.Rows, place: str, found: targets.Rows) -> int:
    return targets.differences(expected, found, encoded=place in targets.LOGS)


def reader(place: str) -> Callable[[str, str], Any]:
    return targets.mirror_rows if place in targets.MIRRORS else targets.logged_state


def show() -> None:
    """The last screen: counts of every table everywhere, and the newest customers as each target has them."""
    counts = Table(title="Rows, and whether every column of every row equals the source", title_justify="left")
    for name in ("table", "source_db", *targets.MIRRORS, *(f"{log} replayed" for log in targets.LOGS)):
        counts.add_column(name, overflow="fold")
    for table in targets.TABLES:
        expected = targets.source_rows(table)
        found = {place: reader(place)(place, table) for place in (*targets.MIRRORS, *targets.LOGS)}
        cells = (f"{len(rows)} {'DIFFERENT' if compare(expected, p, rows) else 'equal'}" for p, rows in found.items())
        counts.add_row(table, str(len(expected)), *cells)
    console.print(counts)
    console.print(newest())


def newest() -> Table:
    table = Table(title="The newest customers in every target", title_justify="left")
    for name in ("target", "id", "first_name", "last_name", "email", "city"):
        table.add_column(name, overflow="fold")
    for place in ("source_db", *targets.MIRRORS, *targets.LOGS):
        rows = targets.source_rows("customers") if place == "source_db" else reader(place)(place, "customers")
        for key in sorted(rows)[-2:]:
            row = rows[key]
            table.add_row(place, str(key), row["first_name"], row["last_name"], row["email"], row["city"])
    return table


if __name__ == "__main__":
    sys.exit(main())
