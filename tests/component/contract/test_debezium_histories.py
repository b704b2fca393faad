"""Random histories written as Debezium JSON and decoded equal the original changes."""

from hypothesis import assume

from adapters.decoders.debezium_json import DebeziumJsonDecoder
from adapters.engines.local import LocalEngine
from replicator.testing.contract import for_all
from replicator.testing.debezium import make_raw_frame
from replicator.testing.histories import History, histories
from replicator.testing.source import Statement, StreamShape


def test_decoded_changes_equal_the_history():
    engine, decoder = LocalEngine(), DebeziumJsonDecoder({})

    @for_all(history=histories(toast=True))
    def check(history):
        assume(keys_are_known(history))
        raw = make_raw_frame(history)
        routed = engine.route(raw, decoder)
        table = history.table()
        decoded = []
        for run in routed.slices:
            sample = engine.frames.concat([r.frame for r in routed.slices if r.fingerprint == run.fingerprint])
            good, bad = engine.decode(run, decoder, decoder.learn(sample, run.table, run.fingerprint))
            assert bad.num_rows == 0, bad["_error"].to_pylist()
            decoded.append(good)
        assert routed.reject_count == 0
        expected = history.frame(history.events, table)
        assert sum(routed.ignored.values()) + expected.num_rows == raw.num_rows
        if decoded:
            found = engine.frames.concat(decoded, table)
            assert rows(found) == rows(expected)


def test_truncate_has_the_key_of_its_table():
    engine, decoder = LocalEngine(), DebeziumJsonDecoder({})
    history = History(StreamShape(toast=True), (Statement("write"), Statement("truncate")))
    for end in (1, 2):
        (run,) = engine.route(make_raw_frame(history, end - 1, end), decoder).slices
        assert decoder.learn(run.frame, run.table, run.fingerprint).keys == ("k1",)


def keys_are_known(history):
    """A truncate has no key. A schema with only a truncate does not contain the key of the table."""
    spoken = {e.version for e in history.events if e.key is not None}
    return not history.table().keys or spoken == {e.version for e in history.events}


def rows(frame):
    ordered = frame.sort_by([("_partition", "ascending"), ("_offset", "ascending")])
    names = [name for name in ordered.column_names if name != "_tx"]
    return [repr({name: row[name] for name in sorted(names)}) for row in ordered.to_pylist()]
