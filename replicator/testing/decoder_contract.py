"""The promises of a decoder. Inherit `DecoderContract`."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st

from replicator.domain.change import ERROR, OFFSET, OLD_KEY, OP, PARTITION, RAW, TOPIC, changes_schema
from replicator.domain.errors import Reject
from replicator.domain.table import TableSpec
from replicator.ports.decoder import ENVELOPE, ROUTE, Decoder

from .contract import SEED, Contract, for_all
from .decoder_fuzz import (
    CODES,
    INPUTS,
    DecoderFuzz,
    alter_json,
    check_changes,
    check_positions,
    check_results,
    note_progress,
)

BAD_VALUES = (
    b"",
    b"\xff\xfe\x00",
    b"null",
    b"42",
    b'"text"',
    b"[]",
    b"{}",
    b'{"payload": null}',
    b'{"op": "u"',
    b'{"a":' * 5000,
    b'{"op": "c", "after": 1, "source": []}',
)


class DecoderContract(Contract):
    """Every promise of `ports.decoder.Decoder` as a test. Define `new_decoder` and `samples`."""

    def new_decoder(self) -> Decoder:
        """A decoder with the configuration for the samples."""
        raise NotImplementedError

    def samples(self) -> pa.Table:
        """A raw frame of good records, if possible from real servers: at least one table, with at least two records
        of it."""
        raise NotImplementedError

    def make_recorded(self) -> pa.Table:
        """More good records for the same decoder, as input for mutations: recorded topics."""
        return RAW.empty_table()

    def mutate_record(self, value: bytes, rng: Random) -> bytes:
        """A record, altered where a reader of the format may fail: see `mutations`. Override it for other formats
        than JSON."""
        return alter_json(value, rng)

    def list_slices(self, decoder: Decoder, raw: pa.Table) -> Iterator[tuple[TableSpec, pa.Table]]:
        """The records by table and fingerprint, each with the learned table."""
        routes = decoder.route(raw)
        pairs = list(zip(routes["table"].to_pylist(), routes["fingerprint"].to_pylist(), strict=True))
        for table, fingerprint in dict.fromkeys(p for p in pairs if p[1] is not None):
            run = raw.filter(pa.array([pair == (table, fingerprint) for pair in pairs]))
            yield decoder.learn(run, table, fingerprint), run

    def decode_records(self, decoder: Decoder, raw: pa.Table) -> dict[tuple[str, int, int], list[str]]:
        """By record, its decoded rows as text."""
        out: dict[tuple[str, int, int], list[str]] = {}
        for table, run in self.list_slices(decoder, raw):
            for row in decoder.decode(run, table).to_pylist():
                out.setdefault((row[TOPIC], row[PARTITION], row[OFFSET]), []).append(repr(row))
        return out

    def test_route_gives_one_result_per_record(self) -> None:
        """Schema `ROUTE`, one row per record: a table with its fingerprint, or a kind to ignore, or an error."""
        raw = pa.concat_tables([self.samples(), make_bad_records()])
        routes = self.new_decoder().route(raw)
        assert routes.schema.equals(ROUTE)
        assert routes.num_rows == raw.num_rows
        check_results(routes)
        assert all(row["ignored"] is None or row["table"] is None for row in routes.to_pylist())
        assert any(routes["table"].to_pylist())

    def test_changes_have_the_schema_of_their_table(self) -> None:
        """`decode` returns `changes_schema(table)`. Operations and sequences follow the definition of the frame."""
        decoder = self.new_decoder()
        for table, run in self.list_slices(decoder, self.samples()):
            changes = decoder.decode(run, table)
            check_changes(changes, table, run)
            assert 1 <= table.sequence <= 4
            assert set(table.keys) <= set(table.column_names)
            for row in changes.filter(pc.is_null(changes[ERROR])).to_pylist():
                assert set(row["_unsent"] or ()) <= set(table.column_names) - set(table.keys)
                assert all(row[name] is None for name in row["_unsent"] or ())

    def test_every_routed_record_becomes_a_row(self) -> None:
        """Every record routed to a table becomes at least one row, in order."""
        decoder = self.new_decoder()
        for table, run in self.list_slices(decoder, self.samples()):
            check_positions(decoder.decode(run, table), run)

    def test_table_of_key_columns_decodes_the_same_keys(self) -> None:
        """For a table with only its key columns, `decode` returns the same operations, keys and old keys."""
        decoder = self.new_decoder()
        for table, run in self.list_slices(decoder, self.samples()):
            if table.keys:
                alone = replace(table, columns=tuple(c for c in table.columns if c.name in table.keys))
                names = [OP, TOPIC, PARTITION, OFFSET, OLD_KEY, *table.keys]
                whole = decoder.decode(run, table)
                good = pc.is_null(whole[ERROR])
                assert decoder.decode(run, alone).select(names).filter(good).equals(whole.select(names).filter(good))

    def test_empty_record_is_ignored(self) -> None:
        """A record without key, value and headers has no table and is no reject."""
        topics = sorted(set(self.samples()["topic"].to_pylist()))
        nothing = pa.Table.from_pylist([{"topic": t, "partition": 0, "offset": 2**40} for t in topics], RAW)
        assert all(self.new_decoder().route(nothing)["ignored"].to_pylist())

    def test_bad_record_is_isolated(self) -> None:
        """A bad record gets its own error. Its neighbours decode as without it."""
        good = self.samples()
        alone = self.decode_records(self.new_decoder(), good)
        bad = make_bad_records()
        mixed = pa.concat_tables([bad, *(t for row in split_in_two(good) for t in (row, bad))])
        changes = self.decode_records(self.new_decoder(), mixed)
        assert {position: rows for position, rows in changes.items() if position[0] != "bad"} == alone
        errors = self.new_decoder().route(bad)["error"].to_pylist()
        assert any(errors)
        assert {Reject.parse(error).code for error in errors if error} <= CODES

    def test_decode_never_raises(self) -> None:
        """Records that are cut or altered anywhere become changes or rejects, never an exception."""
        good = self.samples()
        values = [v for v in good["value"].to_pylist() if v]
        keys = good["key"].to_pylist()

        @for_all(value=st.sampled_from(values), key=st.sampled_from(keys), cut=st.floats(0, 1), junk=st.binary(max_size=8))
        def check(value: bytes, key: bytes | None, cut: float, junk: bytes) -> None:
            at = int(cut * len(value))
            bad = [value[:at], value[:at] + junk + value[at + len(junk) :], junk]
            rows = [{"topic": "bad", "partition": 0, "offset": i, "key": key, "value": v} for i, v in enumerate(bad)]
            raw = pa.concat_tables([good.slice(0, 1), pa.Table.from_pylist(rows, RAW)])
            decoder = self.new_decoder()
            routed = decoder.route(raw)
            assert routed.num_rows == 4
            envelope = decoder.envelope(raw)
            assert (envelope.num_rows, envelope.schema) == (4, ENVELOPE)
            for table, run in self.list_slices(decoder, good):
                same = pa.concat_tables([run.slice(0, 1), pa.Table.from_pylist(rows, RAW)])
                positions = decoder.decode(same, table).select([TOPIC, OFFSET]).to_pylist()
                assert len({(p[TOPIC], p[OFFSET]) for p in positions}) == 4
                break

    def test_mutated_records_are_accounted_for(self) -> None:
        """Each of `INPUTS` mutated records is ignored by kind, rejected or decoded, with the same result alone and
        among others."""
        decoder = self.new_decoder()
        good = pa.concat_tables([self.samples(), self.make_recorded()])
        fuzz = DecoderFuzz(decoder, list(self.list_slices(decoder, good)), self.mutate_record, SEED)
        fuzz.run(INPUTS)
        assert min(fuzz.counts["changed"], fuzz.counts["refused"] + fuzz.counts["rejected"]) > INPUTS // 100, fuzz.counts
        note_progress((), fuzz.counts, done=True)

    def test_errors_show_no_values(self) -> None:
        """No error contains content of the record."""
        secret = "hunter2-secret"  # noqa: S105
        good = self.samples().slice(0, 1).to_pylist()[0]
        bad = [f'{{"password": "{secret}"'.encode(), secret.encode(), (good["value"] or b"")[:-20] + secret.encode()]
        rows = [{"topic": secret[:3], "partition": 0, "offset": i, "value": v} for i, v in enumerate(bad)]
        errors = self.new_decoder().route(pa.Table.from_pylist(rows, RAW))["error"].to_pylist()
        assert not any(secret in (error or "") for error in errors)

    def test_envelope_never_fails(self) -> None:
        """Schema `ENVELOPE`, one row per record, for any bytes. Most good records have an operation."""
        raw = pa.concat_tables([self.samples(), make_bad_records()])
        envelope = self.new_decoder().envelope(raw)
        assert envelope.schema.equals(ENVELOPE)
        assert envelope.num_rows == raw.num_rows
        operations = Counter(envelope["op"].to_pylist())
        assert operations.total() > operations[None]

    def test_decoder_is_pure_and_picklable(self) -> None:
        """A pickled copy returns the same, and so does a second call."""
        decoder = self.new_decoder()
        first = self.decode_records(decoder, self.samples())
        copy = pickle.loads(pickle.dumps(decoder))  # noqa: S301
        assert self.decode_records(decoder, self.samples()) == first == self.decode_records(copy, self.samples())

    def test_empty_frame_decodes_to_no_rows(self) -> None:
        """No records give no rows, with the right schemas."""
        decoder = self.new_decoder()
        assert decoder.route(RAW.empty_table()).schema.equals(ROUTE)
        assert decoder.envelope(RAW.empty_table()).num_rows == 0
        for table, run in self.list_slices(decoder, self.samples()):
            assert decoder.decode(run.slice(0, 0), table).schema.equals(changes_schema(table))

    @pytest.mark.parametrize("size", [1, 2, 7])
    def test_frame_in_slices_decodes_the_same(self, size: int) -> None:
        """Decoding a frame slice by slice gives the same rows as decoding it at once."""
        decoder = self.new_decoder()
        for table, run in self.list_slices(decoder, self.samples()):
            pieces = [decoder.decode(run.slice(i, size), table) for i in range(0, run.num_rows, size)]
            assert repr(pa.concat_tables(pieces).to_pylist()) == repr(decoder.decode(run, table).to_pylist())


def split_in_two(frame: pa.Table) -> list[pa.Table]:
    """The two halves of a frame."""
    middle = frame.num_rows // 2
    return [frame.slice(0, middle), frame.slice(middle)]


def make_bad_records() -> pa.Table:
    """Records that are not changes."""
    rows = [{"topic": "bad", "partition": 0, "offset": i, "value": value} for i, value in enumerate(BAD_VALUES)]
    return pa.Table.from_pylist(rows, RAW)
