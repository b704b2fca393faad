"""Check of a database for `doctor`: it answers, and has the required columns. Reads no row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from replicator.domain.errors import ReplicatorError
from replicator.domain.plain_values import format_count
from replicator.ports.runtime import Diagnosis

from .database import QueryDatabase
from .options import QuerySettings

LOCATION_KEYS = ("dsn", "table", "query", "cursor_column", "start_after")
START = "Start the server, or correct host and port in `dsn`."
NO_DELETES = "A query does not see deleted rows. If that matters, read the table with `transport: snapshots`."


class QueryCheck:
    """`ports.runtime.Check` with the source's options in `LOCATION_KEYS`, and the table's `keys` and `schema` if given."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._place = {key: options[key] for key in LOCATION_KEYS if options.get(key) is not None}
        self._keys = tuple(options.get("keys") or ())
        self._schema = dict(options.get("schema") or {})

    def diagnose(self) -> Sequence[Diagnosis]:
        declared = {"schema": self._schema} if self._schema else {}
        keys = self._keys or ("?",)
        try:
            options = QuerySettings.read({**self._place, "state": ".", "keys": keys, **declared})
            with QueryDatabase(options, brief=True).connect() as reading:
                missing = [key for key in self._keys if key not in reading.schema.names]
                if missing:
                    step = f"There are: {', '.join(reading.schema.names)}. Correct `keys`."
                    return [Diagnosis("error", self._name, f"{options.name} has no column {missing[0]!r}.", step)]
                reading.check_query()
                columns = format_count(len(reading.columns), "column")
                found = [Diagnosis("ok", self._name, f"{options.name} can be queried: {columns}.")]
                if options.query is None and self._keys and not reading.is_unique(self._keys):
                    sentence = f"The database has no unique index on ({', '.join(self._keys)}) of {options.name}."
                    step = "If two rows have equal keys, one of them is lost. Correct `keys`, or create a unique index."
                    found.append(Diagnosis("warning", self._name, sentence, step))
        except ReplicatorError as problem:
            return [Diagnosis("error", self._name, problem.sentence, problem.next_step or START)]
        return [*found, Diagnosis("ok", self._name, NO_DELETES)]
