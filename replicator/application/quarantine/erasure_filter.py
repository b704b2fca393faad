"""A decoder wrapper that drops the records of erased keys."""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from replicator.domain.change import ERROR, OLD_KEY, RAW_RECORD_POSITION, RECORD_POSITION
from replicator.domain.erasures import ERASED_KIND, Erasure, ErasureHashes, find_keys, to_key_text, to_key_texts
from replicator.domain.errors import EnvironmentProblem, Fatal
from replicator.domain.position import RecordPosition
from replicator.domain.table import TableSpec
from replicator.local_files import make_folder, replace_file
from replicator.ports.decoder import ROUTE, Decoder, DecoderFeatures

# The erasure list: the erased keys, as keyed hashes, in a folder of its own.

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
            entries = ErasureEntries(hashes, tuple(_from_stored(one) for one in content["erasures"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._make_read_error(self._key if isinstance(error, OSError) else self._list, error) from error
        if hashes.check != content.get("check"):
            raise self._make_read_error(self._key, ValueError("it is not the secret of the list"))
        return entries

    def open_hashes(self) -> ErasureHashes:
        """The hash function of the list. Creates its key if there is no list yet."""
        entries = self.load()
        if entries is not None:
            return entries.hashes
        try:
            make_folder(self._list.parent)
            key = secrets.token_bytes(KEY_BYTES)
            replace_file(self._key, key.hex().encode(), 0o600)
        except OSError as error:
            raise self._make_write_error(error) from error
        return ErasureHashes(key)

    def put_erasure(self, hashes: ErasureHashes, erasure: Erasure) -> None:
        """Add an erasure, or replace the entry of its key. Durable on return."""
        entries = self.load()
        others = [one for one in (entries.erasures if entries else ()) if one.identity != erasure.identity]
        content = {"format": 1, "check": hashes.check, "erasures": [to_json(one) for one in (*others, erasure)]}
        try:
            replace_file(self._list, (json.dumps(content, indent=1) + "\n").encode(), 0o644)
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


def to_json(one: Erasure) -> dict[str, Any]:
    """The entry in the form in which it is stored and shown."""
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


SAMPLE_RECORDS = 100
"""Records from which a decoder learns a schema."""
KeyColumns = tuple[str, ...]
KeyTexts = tuple[str, ...] | None


@dataclass(frozen=True)
class ErasedKeys:
    """The erased keys of one table that consist of these columns."""

    table: str
    columns: KeyColumns
    source: str
    hashes: ErasureHashes
    keys: frozenset[str]
    topics: frozenset[str]
    messages: frozenset[str]

    def has_key(self, key: Sequence[str]) -> bool:
        """True if the key was erased."""
        return self.hashes.hash_key(self.source, self.table, self.columns, key) in self.keys

    def is_message_erased(self, topic: str, key: bytes) -> bool:
        """True if records with this message key belong to an erased key."""
        return bool(self.messages) and self.hashes.hash_message(topic, key) in self.messages


class ErasureFilter:
    """`ports.decoder.Decoder` over another one that ignores records of erased keys.

    A record belongs to an erased key if any of its changes does, by its key now or before. Only the key columns
    are decoded for that, so unreadable values elsewhere do not matter.

    If the key cannot be decoded (or the record is a null record), the message key decides, and the value read
    as JSON. This applies in the topics of the table.
    """

    def __init__(self, decoder: Decoder, erased_keys: Iterable[ErasedKeys]) -> None:
        self._decoder = decoder
        self._erased_keys = tuple(erased_keys)
        self._topics = frozenset(topic for one in self._erased_keys for topic in one.topics)
        self._specs: dict[tuple[str, str], TableSpec | None] = {}

    @property
    def features(self) -> DecoderFeatures:
        """The features of the other decoder, but for printing: that would show erased records."""
        return replace(self._decoder.features, print_records=None, find_erased=self.find_erased)

    def route(self, raw: pa.Table) -> pa.Table:
        routes = self._decoder.route(raw)
        erased = self._find_erased_records(raw, routes)
        if erased is None:
            return routes
        nothing, kind = pa.scalar(None, pa.string()), pa.scalar(ERASED_KIND)
        columns = [pc.if_else(erased, kind if name == "ignored" else nothing, routes[name]) for name in ROUTE.names]
        return pa.table(columns, schema=ROUTE)

    def learn(self, sample: pa.Table, table: str, fingerprint: str) -> TableSpec:
        """The records have passed `route`, as for `decode`."""
        return self._decoder.learn(sample, table, fingerprint)

    def decode(self, raw: pa.Table, table: TableSpec) -> pa.Table:
        return self._decoder.decode(raw, table)

    def envelope(self, raw: pa.Table) -> pa.Table:
        return self._decoder.envelope(raw)

    def find_erased(self, raw: pa.Table) -> pa.Array | None:
        return self._find_erased_records(raw, self._decoder.route(raw)) if raw.num_rows else None

    def list_other_keys(self, raw: pa.Table) -> set[tuple[str, ...]]:
        """The keys of changes in these records that were not erased, as texts: the row had them before or after a
        key change."""
        routes = self._decoder.route(raw)
        other_keys: set[tuple[str, ...]] = set()
        for one in self._erased_keys:
            for _, records, fingerprint in _group_records(raw, routes, one.table):
                spec = self._find_key_schema(records, one, fingerprint)
                decoded = () if spec is None else _read_keys(self._decoder.decode(records, spec), one.columns)
                for keys in (*decoded, self._read_old_keys(records, one.columns)):
                    other_keys |= {key for key in keys if key is not None and not one.has_key(key)}
        return other_keys

    def _find_erased_records(self, raw: pa.Table, routes: pa.Table) -> pa.Array | None:
        erased: set[int] = set()
        # The unrouted records in topics of tables with erased keys, under the empty table name.
        unclear: dict[str, set[int]] = defaultdict(set)
        if self._topics:
            in_topics = pc.is_in(raw["topic"], value_set=pa.array(sorted(self._topics), raw.schema.field("topic").type))
            unclear[""] = set(pc.indices_nonzero(pc.and_(in_topics, pc.is_null(routes["fingerprint"]))).to_pylist())
        for table in {one.table for one in self._erased_keys}:
            erased_keys = [one for one in self._erased_keys if one.table == table]
            in_table, unread = self._find_in_table(raw, routes, table, erased_keys)
            erased |= in_table
            unclear[table] |= unread
        for table, numbers in unclear.items():
            erased_keys = [one for one in self._erased_keys if table in ("", one.table)]
            erased |= self._find_by_message(raw, sorted(numbers - erased), erased_keys, routed=bool(table))
        if not erased:
            return None
        return pa.array([number in erased for number in range(raw.num_rows)], pa.bool_())

    def _find_in_table(
        self, raw: pa.Table, routes: pa.Table, table: str, erased_keys: Sequence[ErasedKeys]
    ) -> tuple[set[int], set[int]]:
        """The records of `table` that belong to an erased key, and the ones whose key cannot be decoded."""
        erased: set[int] = set()
        unread: set[int] = set()
        for indices, records, fingerprint in _group_records(raw, routes, table):
            for one in erased_keys:
                hits, errors = self._decode_keys(records, one, fingerprint)
                erased |= {indices[number] for number in _find_erased_keys(self._read_old_keys(records, one.columns), one)}
                if hits or errors:
                    numbers = dict(zip(_read_positions(records, RAW_RECORD_POSITION), indices, strict=True))
                    erased |= {number for position, number in numbers.items() if position in hits}
                    unread |= {number for position, number in numbers.items() if position in errors}
        return erased, unread - erased

    def _read_old_keys(self, records: pa.Table, columns: KeyColumns) -> list[KeyTexts]:
        """The keys in the before images, read as JSON, by record.

        If the configuration has another key than the source, the source does not report changes of it as key
        changes.
        """
        fields = [(f"key_{number}", Any, None) for number in range(len(columns))]
        names = {f"key_{number}": name for number, name in enumerate(columns)}
        read = msgspec.json.Decoder(msgspec.defstruct("Image", fields, rename=names.get)).decode
        images = self._decoder.envelope(records)["before"].to_pylist()
        return [None if text is None else _parse_key(read, text) for text in images]

    def _decode_keys(
        self, records: pa.Table, one: ErasedKeys, fingerprint: str
    ) -> tuple[set[RecordPosition], set[RecordPosition]]:
        spec = self._find_key_schema(records, one, fingerprint)
        if spec is None:
            return set(), set(_read_positions(records, RAW_RECORD_POSITION))
        changes = self._decoder.decode(records, spec)
        bad = pc.is_valid(changes[ERROR])
        good = changes.filter(pc.invert(bad))
        hits = {number for keys in _read_keys(good, one.columns) for number in _find_erased_keys(keys, one)}
        at = good.take(pa.array(sorted(hits), pa.int64()))
        return set(_read_positions(at)), set(_read_positions(changes.filter(bad)))

    def _find_key_schema(self, records: pa.Table, one: ErasedKeys, fingerprint: str) -> TableSpec | None:
        """The key columns of the table, under the schema of the fingerprint; None if unknown."""
        schema_key = (one.table, fingerprint)
        if schema_key not in self._specs:
            try:
                self._specs[schema_key] = self._decoder.learn(records.slice(0, SAMPLE_RECORDS), one.table, fingerprint)
            except Fatal:
                self._specs[schema_key] = None
        spec = self._specs[schema_key]
        if spec is None or not set(one.columns) <= set(spec.column_names):
            return None
        return replace(spec, columns=tuple(c for c in spec.columns if c.name in one.columns), keys=one.columns)

    def _find_by_message(
        self, raw: pa.Table, numbers: Sequence[int], erased_keys: Sequence[ErasedKeys], *, routed: bool
    ) -> set[int]:
        """The records that belong to an erased key by their messages. `routed`: they are of its table."""
        if not numbers:
            return set()
        records = raw.take(pa.array(numbers, pa.int64()))
        mask_records = self._decoder.features.mask_records
        envelopes = self._decoder.envelope(records if mask_records is None else mask_records(records))
        own = (records[n].to_pylist() for n in ("topic", "key", "value"))  # Images are null if the operation is unknown.
        rows = zip(numbers, *own, *[envelopes[name].to_pylist() for name in ("table", "before", "after")], strict=True)
        return {row[0] for row in rows if any(_is_match(one, *row[1:], routed=routed) for one in erased_keys)}


def _group_records(raw: pa.Table, routes: pa.Table, table: str) -> Iterator[tuple[list[int], pa.Table, str]]:
    """The records of the table by fingerprint, with their indices. Rejects that name the table do not count: their columns
    are unknown."""
    prints = pc.if_else(pc.equal(routes["table"], table), routes["fingerprint"], None)
    for fingerprint in pc.unique(prints.drop_null()).to_pylist():
        indices = pc.indices_nonzero(pc.equal(prints, fingerprint))
        yield indices.to_pylist(), raw.take(indices), fingerprint


def filter_erased(decoder: Decoder, hashes: ErasureHashes, erasures: Iterable[Erasure]) -> Decoder:
    """The decoder with a filter, or itself if nothing was erased."""
    groups: dict[tuple[str, str, KeyColumns], list[Erasure]] = defaultdict(list)
    for one in erasures:
        groups[one.source, one.table, one.columns].append(one)
    erased_keys = []
    for (source, table, columns), group in groups.items():
        topics = frozenset(topic for one in group for topic in one.topics)
        messages = frozenset(message for one in group for message in one.messages)
        keys = frozenset(one.hash for one in group)
        erased_keys.append(ErasedKeys(table, columns, source, hashes, keys, topics, messages))
    return ErasureFilter(decoder, erased_keys) if erased_keys else decoder


def _find_erased_keys(keys: Sequence[KeyTexts], one: ErasedKeys) -> set[int]:
    """The numbers of the erased keys. Repeated keys are checked once."""
    erased = {key for key in set(keys) if key is not None and one.has_key(key)}
    return {number for number, key in enumerate(keys) if key in erased} if erased else set()


def _parse_key(read: Callable[[str], Any], text: str) -> KeyTexts:
    try:
        texts = [to_key_text(value) for value in msgspec.structs.astuple(read(text))]
    except msgspec.MsgspecError:
        return None
    return None if None in texts else tuple(map(str, texts))


def _read_keys(changes: pa.Table, names: KeyColumns) -> Iterator[list[KeyTexts]]:
    """The keys of changes, and their old keys; None for a key with a NULL."""
    columns = [[changes[name] for name in names]]
    if OLD_KEY in changes.column_names:
        columns.append([pc.struct_field(changes[OLD_KEY], name) for name in names])
    for key_columns in columns:
        rows = zip(*(to_key_texts(column).to_pylist() for column in key_columns), strict=True)
        yield [None if None in row else row for row in rows]


def _read_positions(rows: pa.Table, names: Sequence[str] = RECORD_POSITION) -> Iterator[RecordPosition]:
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def _is_match(
    one: ErasedKeys, topic: str, key: bytes | None, value: bytes | None, table: str | None, *images: str | None, routed: bool
) -> bool:
    if not routed and (
        topic not in one.topics or (table is not None and _unqualified_name(table) != _unqualified_name(one.table))
    ):
        return False
    if key is not None and one.is_message_erased(topic, key):
        return True
    documents = [_parse_document(text) for text in (key, value, *images) if text]
    return any(one.has_key(row_key) for document in documents for row_key in find_keys(one.columns, document))


def _unqualified_name(table: str) -> str:
    return table.rpartition(".")[2]


def _parse_document(text: str | bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
