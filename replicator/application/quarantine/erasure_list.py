"""The erasure list: the erased keys, as keyed hashes, in a folder of its own."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from replicator.application import durable
from replicator.domain.erasures import Erasure, ErasureHashes
from replicator.domain.errors import EnvironmentProblem

LIST, KEY = "erasures.json", "erasures.key"
KEY_BYTES = 32


@dataclass(frozen=True)
class ErasureEntries:
    """The content of the list: the erased keys, and the hash function that recognises them."""

    hashes: ErasureHashes
    erasures: tuple[Erasure, ...] = ()

    def select_source(self, source: str) -> tuple[Erasure, ...]:
        """The erasures in tables of a source."""
        return tuple(one for one in self.erasures if one.source == source)


class ErasureList:
    """`erasures.json` and `erasures.key` in a folder. One writer at a time; readers always see a complete list.

    They are two files so that the list can be shown and copied: only with both can a key be tested.
    """

    def __init__(self, folder: Path) -> None:
        self._list, self._key = folder / LIST, folder / KEY

    @property
    def path(self) -> Path:
        """The path of the list."""
        return self._list

    def load(self) -> ErasureEntries | None:
        """The content; None if nothing was ever erased.

        EnvironmentProblem if it cannot be read or its key is missing: erased rows would return.
        """
        try:
            content = json.loads(self._list.read_bytes())
        except (FileNotFoundError, NotADirectoryError):  # A bad state folder is reported elsewhere.
            return None
        except (OSError, ValueError) as error:
            raise self._make_read_error(self._list, error) from error
        try:
            hashes = ErasureHashes(bytes.fromhex(self._key.read_text("ascii")))
            found = ErasureEntries(hashes, tuple(_from_stored(one) for one in content["erasures"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._make_read_error(self._key if isinstance(error, OSError) else self._list, error) from error
        if hashes.check != content.get("check"):
            raise self._make_read_error(self._key, ValueError("it is not the secret of the list"))
        return found

    def open_hashes(self) -> ErasureHashes:
        """The hash function of the list. Creates its key if there is no list yet."""
        known = self.load()
        if known is not None:
            return known.hashes
        try:
            durable.make_folder(self._list.parent)
            key = secrets.token_bytes(KEY_BYTES)
            durable.replace_file(self._key, key.hex().encode(), 0o600)
        except OSError as error:
            raise self._make_write_error(error) from error
        return ErasureHashes(key)

    def put_erasure(self, hashes: ErasureHashes, erasure: Erasure) -> None:
        """Add an erasure, or replace the entry of its key. Durable on return."""
        known = self.load()
        others = [one for one in (known.erasures if known else ()) if one.identity != erasure.identity]
        content = {"format": 1, "check": hashes.check, "erasures": [_to_stored(one) for one in (*others, erasure)]}
        try:
            durable.replace_file(self._list, (json.dumps(content, indent=1) + "\n").encode(), 0o644)
        except OSError as error:
            raise self._make_write_error(error) from error

    def _make_read_error(self, path: Path, error: Exception) -> EnvironmentProblem:
        why = (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
        return EnvironmentProblem(
            f"{path}, a file of the erasure list, cannot be read: {why}",
            next_step="Restore it from a copy. Nothing is read without it, because erased rows would come back.",
        )

    def _make_write_error(self, error: OSError) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"{self._list.parent} cannot be written ({error.strerror})",
            next_step="Make the folder of the erasure list (`erasures`, by default in `state`) writable.",
        )


def to_json(erasure: Erasure) -> dict[str, Any]:
    """The entry in the form in which it is stored and shown."""
    return _to_stored(erasure)


def _to_stored(one: Erasure) -> dict[str, Any]:
    removed = None if one.removed is None else dict(one.removed)
    sets = {"topics": sorted(one.topics), "messages": sorted(one.messages)}
    names = {"source": one.source, "table": one.table, "columns": list(one.columns), "hash": one.hash}
    return {**names, "at": one.at.isoformat(), "by": one.by, **sets, "removed": removed}


def _from_stored(data: dict[str, Any]) -> Erasure:
    topics, messages = (frozenset(map(str, data[name])) for name in ("topics", "messages"))
    columns: Iterable[Any] = data["columns"]
    at, removed = datetime.fromisoformat(data["at"]), data["removed"]
    whom = (str(data["source"]), str(data["table"]), tuple(map(str, columns)), str(data["hash"]))
    return Erasure(*whom, at, str(data["by"]), topics, messages, removed)
