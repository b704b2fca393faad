"""The demo: the daemon runs, rows change in the source, and every target shows them. Arguments are the daemon's."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import targets
from rich.console import Console
from rich.table import Table

from replicator.domain.errors import ReplicatorError
from replicator.wiring.configuration import read_config
from replicator.wiring.daemon import ask_status

SECONDS = 300.0
TELL = 15.0
"""Seconds between two lines that say what is waited for."""
LOOK = 3.0
"""Seconds between two looks at whether a lane is suspended."""
ADVICE = "; look at `replicator status` and scripts/check-connector.sh"
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


class Failed(Exception):
    """The targets do not follow; holds the sentences for people."""


def main() -> int:
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    # In a session of its own: Ctrl-C would reach it too, and the second signal, ours, would cut its orderly end short.
    daemon = subprocess.Popen(["replicator", "run", "-q", *sys.argv[1:]], stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        replicate(daemon)
    except Failed as failure:
        console.print(f"error: {failure}", style="bold red", highlight=False, soft_wrap=True)
        stop(daemon)
        return 1
    except psycopg.OperationalError as failure:
        console.print(f"error: a database does not answer: {failure}", style="bold red", highlight=False, soft_wrap=True)
        stop(daemon)
        return 3
    except KeyboardInterrupt:
        heading("Interrupted; the daemon is told to stop")
        stop(daemon)
        return 130
    code = stop(daemon)
    heading(f"The daemon stopped in order (exit {code})")
    return code


def replicate(daemon: subprocess.Popen[bytes]) -> None:
    heading(f"The daemon runs ({' '.join(['replicator run', *sys.argv[1:]])}); waiting for the first rows")
    if "spark" in sys.argv:
        console.print("Java starts, and Spark compiles the plans of every target for the first time: minutes on two cores.")
    await_running(daemon)
    await_equal(daemon)
    changes = CHANGES.format(email=f"hedy-{int(time.time())}@example.com").strip()
    heading("Changes in the source")
    console.print(changes, highlight=False, style="dim")
    change(changes)
    seconds = await_equal(daemon)
    console.print(f"every target equals the source, {seconds:.1f} s after the last commit")
    show()


def stop(daemon: subprocess.Popen[bytes]) -> int:
    """The daemon's exit code; a further Ctrl-C meanwhile changes nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    daemon.send_signal(signal.SIGTERM)
    return daemon.wait(60)


def heading(text: str) -> None:
    console.print(f"== {text}", style="bold", highlight=False)


def change(statements: str) -> None:
    with psycopg.connect(targets.SOURCE, autocommit=True) as source:
        for statement in statements.split(";\n"):
            source.execute(statement.encode())


def await_running(daemon: subprocess.Popen[bytes]) -> None:
    """Wait until the daemon has opened its source: targets may be equal from an earlier run."""
    wait(daemon, lambda: "" if (report() or {}).get("lanes") else "the daemon has not opened its lanes")


def await_equal(daemon: subprocess.Popen[bytes]) -> float:
    """Wait until every mirror and every log gives the source's rows; the seconds it took. Failed when they do not."""
    return wait(daemon, first_difference)


def wait(daemon: subprocess.Popen[bytes], lacking: Callable[[], str]) -> float:
    """The seconds until `lacking` says nothing any more. Failed when the daemon ends, cannot go on, or takes too long."""
    began = looked = told = time.monotonic()
    while found := lacking():
        now = time.monotonic()
        if daemon.poll() is not None:
            raise Failed(f"the daemon ended with exit code {daemon.returncode}; see its message above")
        if now - began > SECONDS:
            raise Failed(f"{found} after {SECONDS:.0f} s{suspended() or ADVICE}")
        if now - looked > LOOK:
            looked = now
            if said := suspended():
                raise Failed(f"{found}, and will not follow{said}")
        if now - told > TELL:
            told = now
            console.print(f"  {now - began:.0f} s: {found}", style="dim", highlight=False)
        time.sleep(0.1)
    return time.monotonic() - began


def first_difference() -> str:
    """Which table differs from the source, where, and by how much; empty when none does."""
    for place, table in places():
        if rows := different(place, table):
            return f"table {table} in {place} differs from the source in {rows} row{'s' if rows > 1 else ''}"
    return ""


def suspended() -> str:
    """What the daemon says of lanes that are suspended: these do not go on by themselves. Empty when there are none."""
    lines = [
        f"\n  lane {lane['id']} is suspended: {lane['error']}\n    {lane['next_step']}"
        for lane in (report() or {"lanes": ()})["lanes"]
        if lane["status"] == "suspended"
    ]
    return "".join(lines)


def report() -> dict[str, Any] | None:
    """What the daemon says of itself; None while it does not answer."""
    try:
        return ask_status(read_config(Path("config/replicator.yaml"), None, ()))
    except ReplicatorError:
        return None


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
