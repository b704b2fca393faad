"""The shipped connector for further databases of the stack's source server."""

from __future__ import annotations

import psycopg

from adapters.stack import EmbeddedStack
from adapters.stack.processes import await_condition


def make_slot_name(prefix: str) -> str:
    """The slot's name. PostgreSQL allows lower-case letters, digits and underscores."""
    return f"{prefix}_slot".lower().replace("-", "_")


def register_source(stack: EmbeddedStack, database: str, prefix: str, **overrides: str) -> str:
    """Registers the connector with its own name, slot and topic prefix, and returns its name.

    Topics are `<prefix>.public.<table>`. In `overrides`, write dots as double underscores.
    """
    own = {
        "name": f"{prefix}-connector",
        "database.dbname": database,
        "topic.prefix": prefix,
        "slot.name": make_slot_name(prefix),
    }
    return stack.register_connector(overrides={**own, **{k.replace("__", "."): v for k, v in overrides.items()}})


def drop_source(stack: EmbeddedStack, prefix: str) -> None:
    """Deletes the connector and slot that `register_source` created for the prefix. Topics stay."""
    stack.rest.delete(f"{prefix}-connector")
    drop_slot(stack.dsn("source", "postgres", superuser=True), make_slot_name(prefix))


def drop_slot(dsn: str, name: str, seconds: float = 30) -> None:
    """Drops a replication slot when its reader has disconnected. Does nothing if there is no slot."""
    find = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    with psycopg.connect(dsn, autocommit=True) as admin:
        await_condition(lambda: admin.execute(find, (name,)).fetchone() in (None, (False,)), seconds, alive=lambda: True)
        if admin.execute(find, (name,)).fetchone() is not None:
            admin.execute("SELECT pg_drop_replication_slot(%s)", (name,))
