"""A decoder wrapper that hides poison records; all other records are decoded."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from support.application_world import ReplicatedTuples
from support.histories_of_items import make_change
from support.tuple_engine import TupleEngine

from replicator.application.quarantine.poison_records import POISON_REASON, filter_poison_records, load_poison_records
from replicator.domain.change import RAW
from replicator.domain.errors import RejectCode
from replicator.domain.transactions import TransactionMark
from replicator.ports.decoder import ENVELOPE, ROUTE, DecoderFeatures
from replicator.ports.engine import EngineFeatures, TransactionTracking
from replicator.ports.stores import REPLAYED
from replicator.testing.fakes import FakeDeadLetters, FakeDecoder
from replicator.testing.stores_contract import make_dead_letter

DEADLY = b"deadly"
PLACES = pa.table({"topic": ["t", "t"], "partition": pa.array([0, 0], pa.int32()), "offset": [1, 2]})


class Strict(FakeDecoder):
    """Says of each record what its value is, or its topic if that cannot be read; must not get a deadly one."""

    def route(self, raw: pa.Table) -> pa.Table:
        return pa.Table.from_pylist([{"table": table, "fingerprint": "f"} for table in self._read_tables(raw)], ROUTE)

    def envelope(self, raw: pa.Table) -> pa.Table:
        return pa.Table.from_pylist([{"table": table, "op": "c"} for table in self._read_tables(raw)], ENVELOPE)

    def _read_tables(self, raw: pa.Table) -> list[str]:
        records = zip(raw["topic"].to_pylist(), raw["value"].to_pylist(), strict=True)
        return [topic if value == b"\xff" else read_value(value) for topic, value in records]


class Telling(Strict):
    @property
    def features(self) -> DecoderFeatures:
        return replace(super().features, read_marks=self.read_marks, find_connector=lambda _: None)

    def read_marks(self, raw: pa.Table) -> Sequence[TransactionMark]:
        return [read_value(value) for value in raw["value"].to_pylist()]  # type: ignore[misc]


class RedactingDecoder(Strict):
    """Knows topic `private`, of which it withholds what it cannot read."""

    @property
    def features(self) -> DecoderFeatures:
        return replace(super().features, mask_records=self.mask_records)

    def mask_records(self, raw: pa.Table) -> pa.Table:
        rows = raw.to_pylist()
        for each in rows:
            private = each["topic"] == "private"
            unreadable = each["value"] == b"\xff"
            if private:
                each |= {
                    "key": None,
                    "value": b"withheld" if unreadable else b"veiled " + read_value(each["value"]).encode(),
                }
        return pa.Table.from_pylist(rows, RAW)


class Both(Telling, RedactingDecoder):
    pass


def read_value(value: bytes) -> str:
    assert value != DEADLY
    return value.decode()


RECORDS = st.lists(st.tuples(st.sampled_from(["plain", "private"]), st.booleans()), max_size=8)


def raw_of(records: Sequence[tuple[str, bool]]) -> tuple[pa.Table, list[Any]]:
    rows = [
        {"topic": topic, "partition": 0, "offset": i, "key": b"k", "value": DEADLY if deadly else b"v%d" % i}
        for i, (topic, deadly) in enumerate(records)
    ]
    places = [(topic, 0, i) for i, (topic, deadly) in enumerate(records) if deadly]
    return pa.Table.from_pylist(rows, RAW), places


@given(RECORDS)
def test_other_records_are_routed_unchanged(records):
    raw, places = raw_of(records)
    decoder = pickle.loads(pickle.dumps(filter_poison_records(Both(), [*places, ("elsewhere", 0, 0)])))
    deadly = [is_deadly for _, is_deadly in records]
    for said, name, value in ((decoder.route(raw), "fingerprint", "f"), (decoder.envelope(raw), "op", "c")):
        assert said["error"].to_pylist() == [POISON_REASON if each else None for each in deadly]
        assert said["table"].to_pylist() == [topic if each else f"v{i}" for i, (topic, each) in enumerate(records)]
        assert said[name].to_pylist() == [None if each else value for each in deadly]
    assert decoder.features.read_marks(raw) == [f"v{i}" for i, each in enumerate(deadly) if not each]


@given(RECORDS)
def test_possibly_private_records_are_redacted(records):
    """In topics whose unreadable records the decoder redacts. Records of other topics are stored unchanged."""
    raw, places = raw_of(records)
    veiled = filter_poison_records(Both(), [*places, ("elsewhere", 0, 0)]).features.mask_records(raw).to_pylist()
    assert [each["offset"] for each in veiled] == list(range(len(records)))
    for (topic, deadly), each in zip(records, veiled, strict=True):
        plain = DEADLY if deadly else b"v%d" % each["offset"]
        private = b"withheld" if deadly else b"veiled " + plain
        assert (each["key"], each["value"]) == ((None, private) if topic == "private" else (b"k", plain))


def test_wrapper_has_the_features_of_its_decoder():
    for decoder in (Strict(), Telling(), RedactingDecoder(), Both()):
        spared = filter_poison_records(decoder, [("a", 0, 0)]).features
        for each in fields(DecoderFeatures):
            assert (getattr(spared, each.name) is None) == (getattr(decoder.features, each.name) is None)
        assert filter_poison_records(decoder, []) is decoder


class Looking(TupleEngine):
    """What sees transactions asks each batch for its connector. `asked` gets the decoder."""

    def __init__(self, asked: Callable[[Any], None]) -> None:
        find_nothing = lambda *_: ()  # noqa: E731
        self.features = EngineFeatures(
            transactions=TransactionTracking(
                marks=find_nothing,
                connector=lambda _, decoder: asked(decoder),
                parts=find_nothing,
                attend=lambda *_: None,
                exact_parts=find_nothing,
            )
        )


def test_filtered_records_are_never_decoded(tmp_path: Path):
    notes, asked = tmp_path / "notes.json", []
    notes.write_text(json.dumps({"running": True, "condemned": [["t", 0, 2]], "rejected": True}))

    def look(decoder: Any) -> None:
        is_noted = json.loads(notes.read_text())["decoding"] is not None
        asked.append((decoder.find_poison_records(PLACES).to_pylist(), is_noted))

    ReplicatedTuples([make_change(i, "c", i) for i in range(4)], notes=notes, engine=Looking(look)).start().once()
    assert asked == [([False, True], True)], "spared; and noted, for another one that ends the program"


def test_reader_of_past_records_skips_the_poison_records_of_the_stream(tmp_path: Path):
    """Noted ones without a dead letter, and open dead letters, but none that was retried."""
    store, notes = FakeDeadLetters(), tmp_path / "s.crashes"
    crashed = {"lane": "", "code": RejectCode.CRASHED, "source": "s", "topic": "t", "partition": 0}
    store.write([replace(make_dead_letter(i), **crashed, offset=i) for i in range(3)])
    store.write([replace(make_dead_letter(5), **{**crashed, "source": "other"}, offset=5)])
    store.mark([letter for letter in store.read() if letter.offset == 1], REPLAYED)
    assert load_poison_records(notes, "s", lambda: store) == set()
    notes.write_text(json.dumps({"condemned": [["t", 0, 1], ["t", 0, 9]], "rejected": True}))
    assert load_poison_records(notes, "s", lambda: store) == {("t", 0, 0), ("t", 0, 2), ("t", 0, 9)}
