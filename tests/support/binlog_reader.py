"""Change events of one MariaDB table as Debezium's connector sends them. Reads the binlog like a replica."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pymysql
from pymysql.constants import COMMAND

from support.slot_reader import KEY, KINDS, TOPIC, encode_with_schema, make_envelope, make_plain_fields

SOURCE = [
    *make_plain_fields("string", "connector", "db", "table", "file"),
    *make_plain_fields("int64", "pos", "row", "ts_ms"),
]
ENVELOPE = make_envelope("mariadb", SOURCE)
HEADER = struct.Struct("<IBIIIH")
DUMP = struct.Struct("<IHI")
AT_ONCE = 1
"""A flag: send the existing events, and do not wait for more."""
CHECKSUM = 4
ROTATED, FORMAT, BEGINS, COMMITTED = 4, 15, 162, 16
OPS = {23: "c", 24: "u", 25: "d"}
"""Kind of event -> operation of its rows."""
REPLICA = "SET @master_binlog_checksum = 'CRC32', @mariadb_slave_capability = 4, @master_heartbeat_period = 0"


@dataclass
class BinlogReader:
    """`records`: everything sent so far. `own`: each change has its own binlog position, as before MariaDB 11.4;
    otherwise all changes have the position where the transaction begins. `counted`: changes have their number in the
    transaction."""

    port: int
    own: bool
    counted: bool
    records: list[dict[str, Any]] = field(default_factory=list)
    place: tuple[str, int] = ("", 4)
    follower: Any = None

    def create(self) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            self.place = cursor.fetchone()[:2]
        self.follower = self._dump(flags=0)

    def drop(self) -> None:
        """Stops reading. Later changes are lost until `create` is called again."""
        if self.follower is not None:
            with self.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"KILL {self.follower.thread_id()}")
            self.follower.close()
            self.follower = None

    def connect(self) -> Any:
        return pymysql.connect(host="127.0.0.1", port=self.port, user="cdc", password="cdc", autocommit=True)

    def poll(self) -> list[dict[str, Any]]:
        """Returns the new records."""
        known = len(self.records)
        begun, numbers = self.place, count(1)
        for kind, at, end, data in self._events():
            if kind == BEGINS:
                begun, numbers = at, count(1)
            elif kind in OPS:
                place = at if self.own else begun
                for before, after in decode_images(kind, data):
                    self.records.append(self._record(OPS[kind], before, after, place, next(numbers)))
            elif kind == COMMITTED:
                self.place = end
        return self.records[known:]

    def _record(self, op: str, before: Any, after: Any, place: tuple[str, int], number: int) -> dict[str, Any]:
        source = {"connector": "mariadb", "db": "public", "table": "items", "file": place[0], "pos": place[1], "row": 0}
        transaction = {"id": "0-1-1", "total_order": number, "data_collection_order": number} if self.counted else None
        payload = {"before": before, "after": after, "source": {**source, "ts_ms": 1_700_000_000_000}, "op": op}
        key = {"id": (after or before)["id"]}
        return {
            "topic": TOPIC,
            "partition": 0,
            "offset": len(self.records),
            "timestamp": None,
            "headers": None,
            "key": encode_with_schema(key, KEY),
            "value": encode_with_schema({**payload, "transaction": transaction}, ENVELOPE),
        }

    def _dump(self, flags: int) -> Any:
        connection = self.connect()
        with connection.cursor() as cursor:
            cursor.execute(REPLICA)
        # The server ends a replica when another one connects with its number.
        asked = DUMP.pack(self.place[1], flags, 77 + flags) + self.place[0].encode()
        connection._execute_command(COMMAND.COM_BINLOG_DUMP, asked)
        return connection

    def _events(self) -> Iterator[tuple[int, tuple[str, int], tuple[str, int], bytes]]:
        """Kind, position, end position and content of each event."""
        file, at = self.place
        connection = self._dump(AT_ONCE)
        while not (packet := connection._read_packet()).is_eof_packet():
            data = packet.get_all_data()[1:]
            _, kind, _, size, end, _ = HEADER.unpack_from(data)
            content = data[HEADER.size : -CHECKSUM]
            if kind == ROTATED:
                (at,) = struct.unpack_from("<Q", content)
                file = content[8:].decode()
            elif kind != FORMAT or end:
                yield kind, (file, at), (file, end or at + size), content
                at = end or at + size
        connection.close()


def decode_images(kind: int, data: bytes) -> Iterator[tuple[Any, Any]]:
    """The rows of an event before and after it. Columns: `id int, note text, turn int`."""
    at = 8 + 1 + (2 if OPS[kind] == "u" else 1)  # The table's number and flags, the number of columns, and which columns.
    while at < len(data):
        found = []
        for _ in range(2 if OPS[kind] == "u" else 1):
            row, at = _decode_row(data, at)
            found.append(row)
        yield (None if OPS[kind] == "c" else found[0]), (None if OPS[kind] == "d" else found[-1])


def _decode_row(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    nulls, at = data[at], at + 1
    values: list[Any] = []
    for number, kind in enumerate(KINDS.values()):
        if nulls >> number & 1:
            values.append(None)
        elif kind == "int32":
            values += struct.unpack_from("<i", data, at)
            at += 4
        else:
            (length,) = struct.unpack_from("<H", data, at)
            values.append(data[at + 2 : at + 2 + length].decode())
            at += 2 + length
    return dict(zip(KINDS, values, strict=True)), at
