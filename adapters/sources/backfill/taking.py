"""Reads a table whole, and writes its rows down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.errors import Fatal
from replicator.domain.position import Position
from replicator.ports.backfill import Taken

from .database import Database, Moment, Row, Table, Tell, refuse_names
from .events import Events
from .journal import Kept, State

PIECE_ROWS = 50_000
PIECE_BYTES = 32 << 20
Read = tuple[Sequence[str], Moment]
"""Up to which key rows were read, and when."""


class TableBackfill:
    """`ports.backfill.Backfill` of one table of a database. Options: `table`; `keys`, where they are not those of its
    primary key; `state`, the folder of the source's journal; `piece_rows`, the most rows of one piece; `plain_names`: the
    stream has names only as Avro allows them."""

    def __init__(self, database: Database[Any], options: Mapping[str, Any]) -> None:
        self._database = database
        self._name = str(options["table"])
        self._keys: Sequence[str] | None = options.get("keys") or None
        self._kept = Kept(Path(str(options["state"])), self._name)
        self._piece_rows = int(options.get("piece_rows", PIECE_ROWS))
        self._plain_names = bool(options.get("plain_names"))
        self._is_held = False

    def rows(self, tell: Tell, *, anew: bool = False) -> Taken:
        """See `Backfill`."""
        self._hold()
        table = self._database.look(self._name, self._keys)
        if self._plain_names:
            refuse_names(table)
        this = self._database.identity()
        known = None if anew else self._unfinished(this, table)
        resumed = known is not None and bool(self._kept.of_run(known.run))
        if known is None or known.stage == "rows":
            known = self._read(table, this, known, tell)
        rows = sum(piece.end - piece.first for piece, said in self._kept.of_run(known.run) if said["stage"] == "rows")
        return Taken(rows, resumed, known.below, table.keys, known.begun)

    def deletes(self, keys: pa.Table) -> int:
        """See `Backfill`."""
        state = self._state()
        table = self._database.look(self._name, self._keys)
        moments = self._moments(state)
        borders = [last for last, _ in moments[:-1]]
        found = [(key, moments[number][1]) for key, number in self._database.placed(table, keys, borders)]
        events = Events(table, self._database.log)
        known = self._known(state, [events.key(key) for key, _ in found])
        gone = [(key, moment) for (key, moment), is_known in zip(found, known, strict=True) if not is_known]
        if gone:
            said = {"run": state.run, "stage": "deletes", "micros": max(moment.micros for _, moment in gone)}
            self._kept.append([events.key(k) for k, _ in gone], [events.deleted(k, m) for k, m in gone], said)
        return len(gone)

    def end(self) -> Position:
        """See `Backfill`."""
        pieces = self._kept.pieces()
        return Position({self._kept.topic: pieces[-1].end} if pieces else {})

    def finish(self) -> None:
        """See `Backfill`."""
        state = self._state()
        self._kept.note(replace(state, stage="done"))
        self._kept.remove_before(state.run)

    def close(self) -> None:
        """See `Backfill`."""
        self._kept.release()
        self._is_held = False

    def _hold(self) -> None:
        if not self._is_held:
            self._kept.hold()
            self._is_held = True

    def _state(self) -> State:
        state = self._kept.state()
        if state is None:
            raise Fatal(f"No rows of {self._name} were written down.", next_step="Repeat the command.")
        return state

    def _unfinished(self, this: str, table: Table[Any]) -> State | None:
        """The run to go on with. What was read of another database, or of other columns, is of no use."""
        known = self._kept.state()
        fits = known is not None and known.stage != "done" and (known.system, known.form) == (this, table.form)
        return known if fits else None

    def _read(self, table: Table[Any], this: str, known: State | None, tell: Tell) -> State:
        """Write down all rows, or those that are missing."""
        with self._database.snapshot(table, tell) as snapshot:
            moment = snapshot.moment
            if known is None:
                begun = datetime.fromtimestamp(moment.micros / 1_000_000, UTC).isoformat()
                known = self._kept.begin(moment.place, begun, this, table.form)
            count = 0
            for keys, values, last in self._pieces(snapshot.rows(self._last(known)), table, moment):
                said = {"run": known.run, "stage": "rows", "place": moment.place, "micros": moment.micros, "last": last}
                self._kept.append(keys, values, said)
                count += len(keys)
                tell(f"{self._name}: {count:,} rows read")
        return self._kept.note(replace(known, stage="deletes"))

    def _last(self, state: State) -> Sequence[str] | None:
        """The key that was written down last."""
        read = [said for _, said in self._kept.of_run(state.run) if said["stage"] == "rows"]
        return read[-1]["last"] if read else None

    def _pieces(
        self, rows: Iterator[Row], table: Table[Any], moment: Moment
    ) -> Iterator[tuple[list[bytes], list[bytes], list[str]]]:
        """Keys and values of consecutive rows by key, each time with the last one's key."""
        events = Events(table, self._database.log)
        keys: list[bytes] = []
        values: list[bytes] = []
        size, last = 0, list[str]()
        for key, row, texts in rows:
            keys.append(events.key(key))
            values.append(events.read(row, moment))
            size, last = size + len(values[-1]), list(texts)
            if len(keys) >= self._piece_rows or size >= PIECE_BYTES:
                yield keys, values, last
                keys, values, size = [], [], 0
        if keys:
            yield keys, values, last

    def _moments(self, state: State) -> list[Read]:
        """When rows were read, each time with the key up to which they were; the last such time is for all beyond, too."""
        found: dict[tuple[int, ...], Read] = {}
        for _, said in self._kept.of_run(state.run):
            if said["stage"] == "rows":
                moment = Moment(tuple(said["place"]), said["micros"])
                found[moment.place] = said["last"], moment
        if not found:
            micros = int(datetime.fromisoformat(state.begun).timestamp() * 1_000_000)
            return [((), Moment(state.below, micros))]
        return list(found.values())

    def _known(self, state: State, keys: Sequence[bytes]) -> list[bool]:
        """Which of the keys were written down in this run."""
        wanted = pa.array(keys, pa.binary())
        found = pa.array([False] * len(keys))
        for piece, _ in self._kept.of_run(state.run):
            found = pc.or_(found, pc.is_in(wanted, value_set=piece.keys().combine_chunks()))
        return [bool(one) for one in found.to_pylist()]
