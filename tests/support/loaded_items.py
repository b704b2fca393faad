"""The table `public.items` in a database of each kind, with a reader that follows its changes like a connector."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from random import Random
from typing import Any, Protocol

import psycopg
import pymysql
from servers.mariadb import MariaDb

from adapters.sources.backfill import PostgresBackfill
from adapters.sources.backfill.mariadb import MariaDbBackfill
from support.binlog_reader import BinlogReader
from support.slot_reader import SlotReader

TABLE = "public.items"


class Items(Protocol):
    """A table with 40 rows. `slot` reads its changes."""

    slot: Any

    def execute(self, statement: str) -> list[Any]:
        """Runs a statement in its own transaction, and returns its rows."""

    def connect(self) -> Any:
        """A connection for changes, which are committed or rolled back."""

    def change(self, connection: Any, random: Random, key: int, turn: int) -> None:
        """Changes a row in a random way."""

    def backfill(self, **options: Any) -> Any:
        """The reader of a backfill."""


class PostgresItems:
    """The table in PostgreSQL, with a replication slot."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.slot = SlotReader(dsn, f"slot_{dsn.rpartition('_')[2]}")
        self.execute("CREATE TABLE items (id int PRIMARY KEY, note text, turn int)")
        self.execute("CREATE PUBLICATION shop FOR TABLE items")
        self.execute("INSERT INTO items SELECT i, 'as it was', 0 FROM generate_series(1, 40) i")
        self.slot.create()

    def execute(self, statement: str) -> list[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def connect(self) -> Any:
        return psycopg.connect(self.dsn)

    def change(self, connection: Any, random: Random, key: int, turn: int) -> None:
        act = random.random()
        if act < 0.3:
            connection.execute("DELETE FROM items WHERE id = %s", (key,))
        elif act < 0.35:
            connection.execute("UPDATE items SET turn = turn WHERE id = %s", (key,))
        else:
            connection.execute(
                "INSERT INTO items VALUES (%s, 'changed', %s) "
                "ON CONFLICT (id) DO UPDATE SET note = 'again', turn = excluded.turn",
                (key, turn),
            )

    def backfill(self, **options: Any) -> PostgresBackfill:
        return PostgresBackfill({"dsn": self.dsn, "publication": "shop", "slot": self.slot.slot, "table": TABLE, **options})


class MariaDbItems:
    """The table in MariaDB, read from the binlog."""

    def __init__(self, server: MariaDb, random: Random) -> None:
        self.server = server
        server.execute("DROP DATABASE IF EXISTS public; CREATE DATABASE public CHARACTER SET utf8mb4")
        self.slot = BinlogReader(server.port, own=random.random() < 0.5, counted=random.random() < 0.5)
        self.execute("CREATE TABLE items (id int PRIMARY KEY, note text, turn int)")
        self.execute("INSERT INTO items SELECT seq, 'as it was', 0 FROM seq_1_to_40")
        self.slot.create()

    def execute(self, statement: str) -> list[Any]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    @contextmanager
    def connect(self) -> Iterator[Any]:
        more = {"database": "public", "init_command": "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"}
        with closing(pymysql.connect(host="127.0.0.1", port=self.server.port, user="cdc", password="cdc", **more)) as made:
            yield made
            made.commit()

    def change(self, connection: Any, random: Random, key: int, turn: int) -> None:
        act = random.random()
        with connection.cursor() as cursor:
            if act < 0.3:
                cursor.execute("DELETE FROM items WHERE id = %s", (key,))
            elif act < 0.32:
                cursor.execute("FLUSH BINARY LOGS")  # This commits.
            else:
                cursor.execute(
                    "INSERT INTO items VALUES (%s, 'changed', %s) "
                    "ON DUPLICATE KEY UPDATE note = 'again', turn = VALUES(turn)",
                    (key, turn),
                )

    def backfill(self, **options: Any) -> MariaDbBackfill:
        dsn = f"mariadb://cdc:cdc@127.0.0.1:{self.server.port}"
        return MariaDbBackfill({"dsn": dsn, "table": TABLE, **options})
