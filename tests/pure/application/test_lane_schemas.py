"""The schema of a lane's table: late records, schema changes, and the versions that are stored."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from replicator.application.lane_schema import AlteredColumn, LaneSchema, describe_stop, find_altered_columns
from replicator.domain.event_log import LogCut
from replicator.domain.position import Position, TopicPartition
from replicator.domain.schema_evolution import (
    ColumnTypeChange,
    SchemaChangeKind,
    SchemaChangeMode,
    SchemaRules,
    TargetReshape,
    decide_schema,
    from_json,
    list_changes,
    to_json,
    widen_column,
)
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.columns import ColumnRule, ColumnTransforms
from replicator.domain.transform.rows import RowTransforms
from replicator.ports.frames import Lane

ID, NAME, NOTE = Column("id", pa.int64(), nullable=False), Column("name", pa.string()), Column("note", pa.string())
N = Column("n", pa.int32())
LONG = replace(N, type=pa.int64())
UUID, JSON = "io.debezium.data.Uuid", "io.debezium.data.Json"
DECIMAL, VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
START = Position({TopicPartition("t", 0): 7})
NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)


def table(*columns, keys=("id",), sequence=1):
    return TableSpec("public.t", (ID, *columns), keys, sequence)


def lane(rules=None, **more):
    return Lane(
        "lake.t",
        "p",
        "s",
        "public.t",
        "lake",
        "t",
        "scd1",
        config_line="c.yaml:3",
        schema_rules=rules or SchemaRules(),
        **more,
    )


def find_transitions(schema, *tables):
    """The turns of a lane that meets these."""
    turns = []
    for each in tables:
        turn = schema.find_transition(each, START, NOW)
        turns.append(turn)
        if turn is not None and not turn.decision.stops:
            schema.apply_transition(turn)
    return turns


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        (table(NAME), table(NAME), []),
        (table(NAME, N), table(N, replace(NAME, nullable=False)), []),
        (table(NAME), table(NAME, N), [SchemaChangeKind.ADDED]),
        (table(NAME, N), table(N), [SchemaChangeKind.DROPPED]),
        (table(NAME), table(NOTE), [SchemaChangeKind.DROPPED, SchemaChangeKind.ADDED]),
        (table(N), table(LONG), [SchemaChangeKind.WIDENED]),
        (table(LONG), table(N), [SchemaChangeKind.NARROWED]),
        (table(N), table(replace(N, type=pa.binary())), [SchemaChangeKind.TYPE_CHANGED]),
        (table(replace(NOTE, source_type=UUID)), table(NOTE), [SchemaChangeKind.WIDENED]),
        (table(NOTE), table(replace(NOTE, source_type=UUID)), [SchemaChangeKind.NARROWED]),
        (table(replace(NOTE, source_type="varchar(10)")), table(replace(NOTE, source_type="VARCHAR(20)")), []),
        (table(replace(NOTE, source_type="enum('a')")), table(NOTE), []),
        (table(replace(NOTE, source_type=DECIMAL)), table(replace(NOTE, source_type=VARIABLE)), []),
        (table(NAME), table(NAME, keys=("id", "name")), [SchemaChangeKind.KEY_CHANGED]),
        (table(NAME, keys=()), table(NAME), []),
        (table(NAME), table(NAME, sequence=2), [SchemaChangeKind.KEY_CHANGED]),
        (table(), replace(table(), columns=(replace(ID, type=pa.string()),)), [SchemaChangeKind.KEY_CHANGED]),
    ],
    ids=str,
)
def test_kinds_of_schema_changes(old, new, kinds):
    assert [change.kind for change in list_changes(old, new)] == kinds


def test_rename_needs_a_declaration_and_a_missing_old_name():
    renames = (("name", "note"),)
    assert [c.kind for c in list_changes(table(NAME), table(NOTE), renames)] == [SchemaChangeKind.RENAMED]
    assert [c.kind for c in list_changes(table(NAME), table(NAME, NOTE), renames)] == [SchemaChangeKind.ADDED]
    both = list_changes(table(N), table(replace(LONG, name="m")), (("n", "m"),))
    assert [c.kind for c in both] == [SchemaChangeKind.RENAMED, SchemaChangeKind.WIDENED]
    done = decide_schema(table(N).columns, table(N), table(replace(LONG, name="m")), SchemaRules(renames=(("n", "m"),)))
    assert done.columns == (ID, replace(LONG, name="m"))
    renamed = replace(N, name="m")
    assert done.reshaping == TargetReshape(
        renames=(("n", "m"),), types=(ColumnTypeChange("m", renamed, replace(LONG, name="m")),)
    )


@pytest.mark.parametrize(
    ("known", "newer", "result"),
    [
        ((pa.int32(), ""), (pa.string(), ""), (pa.string(), "")),
        ((pa.string(), ""), (pa.decimal128(9, 2), ""), (pa.string(), "")),
        ((pa.date32(), ""), (pa.string(), ""), (pa.string(), "")),
        ((pa.float64(), ""), (pa.string(), ""), None),
        ((pa.timestamp("us"), ""), (pa.string(), ""), None),
        ((pa.int32(), ""), (pa.float64(), ""), (pa.float64(), "")),
        ((pa.int64(), ""), (pa.float64(), ""), None),
        ((pa.decimal128(10, 2), ""), (pa.string(), VARIABLE), (pa.string(), VARIABLE)),
        ((pa.string(), VARIABLE), (pa.decimal128(10, 2), ""), (pa.string(), VARIABLE)),
        ((pa.date32(), ""), (pa.string(), VARIABLE), None),
        ((pa.int32(), ""), (pa.string(), JSON), None),
        ((pa.string(), UUID), (pa.string(), JSON), (pa.string(), "")),
    ],
    ids=str,
)
def test_type_that_holds_both_types(known, newer, result):
    found = widen_column(*(Column("c", kind, source_type=name) for kind, name in (known, newer)))
    assert (found and (found.type, found.source_type)) == result


def test_late_partition_and_returning_column_change_nothing():
    schema = LaneSchema(lane())
    first, second, third = find_transitions(schema, table(NAME, N), table(NAME, LONG, NOTE), table(NAME, N))
    assert (first.version.number, second.version.number, third) == (1, 2, None)
    assert schema.current.columns == (ID, NAME, LONG, NOTE)
    (again,) = find_transitions(schema, table(NAME))
    assert again.version.changes == ("column 'n' was dropped", "column 'note' was dropped")
    assert schema.current.columns == (ID, NAME, LONG, NOTE)


def test_table_that_is_changed_back_is_decided_again():
    """In one partition. In several partitions, each reaches a change at its own time. Records that are read again need
    no decision."""
    rules = SchemaRules({SchemaChangeKind.ADDED: SchemaChangeMode.EVOLVE}, others=SchemaChangeMode.QUARANTINE)
    at = [Position({TopicPartition("t", 0): offset}) for offset in (7, 20, 30, 25)]
    schema = LaneSchema(lane(rules))
    find_transitions(schema, table(NAME))
    schema.apply_transition(schema.find_transition(table(NAME, NOTE), at[1], NOW))
    assert schema.find_transition(table(NAME), at[0], NOW) is None
    back = schema.find_transition(table(NAME), at[2], NOW)
    assert back.version.number == 3 and [c.kind for c in back.decision.stops] == [SchemaChangeKind.DROPPED]
    schema.apply_transition(replace(back, decision=replace(back.decision, stops=())))
    assert schema.find_transition(table(NAME, NOTE), at[3], NOW) is None
    other = Position({TopicPartition("t", 1): 99})
    assert schema.find_transition(table(NAME, NOTE), other, NOW) is None


def test_column_that_returns_narrower_keeps_the_wider_type():
    schema = LaneSchema(lane())
    find_transitions(schema, table(NAME, LONG), table(NAME), table(NAME, N, NOTE))
    assert schema.current.columns == (ID, NAME, LONG, NOTE)
    (turn,) = find_transitions(schema, table(NAME, replace(NOTE, type=pa.binary())))
    assert [c.kind for c in turn.decision.stops] == [SchemaChangeKind.TYPE_CHANGED]


@pytest.mark.parametrize(
    ("schemas", "emptied"),
    [
        # A restarted connector sends records from before `ADD COLUMN` again.
        ((table(NAME), table(NAME, NOTE), table(NAME), table(NAME, NOTE)), ()),
        ((table(NAME, NOTE), table(NAME), table(NAME, NOTE)), ("note",)),
        ((table(NAME), table(NAME, NOTE), table(NAME), table(NAME, N, NOTE)), ("note",)),
    ],
)
def test_column_added_again_is_emptied_except_for_repeated_records(schemas, emptied):
    schema = LaneSchema(lane())
    for offset, sent in enumerate(schemas):
        turn = schema.find_transition(sent, Position({TopicPartition("t", 0): offset}), NOW)
        schema.apply_transition(turn)
    assert (turn.version.emptied, turn.decision.reshaping.emptied) == (emptied, emptied)


def test_columns_that_partial_records_lack_are_not_dropped():
    schema = LaneSchema(lane(SchemaRules(removes=True)))
    find_transitions(schema, table(NAME, N))
    first, second, added, wider, again = find_transitions(
        schema,
        replace(table(), partial=True),
        table(NAME, N),
        replace(table(NOTE), partial=True),
        replace(table(LONG), partial=True),
        replace(table(NAME), partial=True),
    )
    assert (first, second, again) == (None, None, None)
    assert [[c.kind for c in one.decision.changes] for one in (added, wider)] == [
        [SchemaChangeKind.ADDED],
        [SchemaChangeKind.WIDENED],
    ]
    assert schema.current.columns == (ID, NAME, LONG, NOTE)
    (rekeyed,) = find_transitions(schema, replace(table(NAME, keys=("id", "name")), partial=True))
    assert [c.kind for c in rekeyed.decision.stops] == [SchemaChangeKind.KEY_CHANGED]


def test_values_from_before_a_drop_do_not_get_a_later_name():
    """The column is dropped, added again and then renamed. Records from before the drop are read again."""
    text, other = replace(NOTE, name="text"), replace(NOTE, name="other")
    schema = LaneSchema(lane(SchemaRules(renames=(("note", "text"), ("name", "other")))))
    for offset, sent in enumerate((table(NAME, NOTE), table(NAME), table(NAME, NOTE), table(other, text))):
        schema.apply_transition(schema.find_transition(sent, make_position(offset), NOW))
    ((at, names),) = schema.find_emptied_columns(make_position(0))
    assert at == make_position(2)
    selected = schema.select_columns_without(table(NAME, NOTE), names)
    assert (selected.columns, selected.renamed) == ((ID, other), (("name", "other"),))


def test_known_schema_is_not_decided_again_after_a_restart():
    strict = lane(SchemaRules(others=SchemaChangeMode.QUARANTINE))
    schema = LaneSchema(strict)
    _, waits = find_transitions(schema, table(NAME), table(NAME, N))
    assert waits.decision.waits and waits.version.state == "pending"
    told = LaneSchema(strict, [from_json(to_json(v)) for v in (*schema.versions.values(), waits.version)])
    (still,) = find_transitions(told, table(NAME, N))
    assert still.decision.stops and still.version.number == 2
    accepted = LaneSchema(strict, [*schema.versions.values(), replace(waits.version, state="accepted")])
    (goes, *after) = find_transitions(accepted, table(NAME, N), table(NAME), table(NAME, N))
    assert goes.is_known and not goes.decision.stops and after == [None, None]
    assert accepted.current.columns == (ID, NAME, N)


def test_ignored_column_is_added_after_the_rule_changes():
    ignoring = LaneSchema(lane(SchemaRules(others=SchemaChangeMode.IGNORE)))
    find_transitions(ignoring, table(NAME), table(NAME, N))
    assert ignoring.current.columns == (ID, NAME)
    evolving = LaneSchema(lane(), tuple(ignoring.versions.values()))
    (turn,) = find_transitions(evolving, table(NAME, N))
    assert turn is not None and evolving.current.columns == (ID, NAME, N)


@pytest.mark.parametrize(
    ("mode", "new", "words"),
    [
        (
            SchemaChangeMode.QUARANTINE,
            table(NAME, N),
            "`replicator lanes resume lake.t --accept-schema 2` continues the lane",
        ),
        (SchemaChangeMode.FAIL, table(NAME, N), "Allow it with `schema_changes: {added: evolve}` (c.yaml:3)"),
        (SchemaChangeMode.QUARANTINE, table(NAME, keys=("id", "name")), "`replicator drop lake.t`"),
        (SchemaChangeMode.EVOLVE, table(replace(NAME, type=pa.binary())), "type_changed: try_evolve"),
    ],
)
def test_message_of_a_stopped_lane(mode, new, words):
    schema = LaneSchema(lane(SchemaRules(others=mode)))
    _, turn = find_transitions(schema, table(NAME), new)
    sentence, step = describe_stop(lane(SchemaRules(others=mode)), turn)
    assert sentence.startswith("The schema of table public.t changed: ") and words in step


def test_versions_are_read_back_unchanged():
    types = [pa.decimal128(20, 4), pa.timestamp("us", "UTC"), pa.list_(pa.struct([("a", pa.int8())])), pa.duration("us")]
    spec = table(*(Column(f"c{i}", kind, source_type="x") for i, kind in enumerate(types)))
    schema = LaneSchema(lane())
    (turn,) = find_transitions(schema, spec)
    assert from_json(to_json(turn.version)) == turn.version


def test_reloaded_lane_may_have_another_key():
    """It stores the key for its next start. A lane with rows in its target does not accept another key."""
    schema = LaneSchema(lane())
    find_transitions(schema, table(NAME))
    kept = tuple(schema.versions.values())
    other = table(NAME, keys=("id", "name"))
    (refused,) = find_transitions(LaneSchema(lane(), kept), other)
    assert [change.kind for change in refused.decision.stops] == [SchemaChangeKind.KEY_CHANGED]
    anew = LaneSchema(lane(), kept, is_target_empty=True)
    (turn,) = find_transitions(anew, other)
    assert not turn.decision.stops and anew.select_columns(other).versions == (anew.current,)
    again = LaneSchema(lane(), tuple(anew.versions.values()))
    assert find_transitions(again, other) == [None]
    assert LaneSchema(lane(), kept, is_target_empty=True).find_transition(table(NAME), START, NOW) is None


def make_position(offset, partition=0):
    return Position({TopicPartition("t", partition): offset})


@pytest.mark.parametrize("mode", SchemaChangeMode)
def test_table_drop_is_skipped_or_stops_the_lane(mode):
    schema = LaneSchema(lane(SchemaRules({SchemaChangeKind.TABLE_DROPPED: mode})))
    assert schema.find_drop_transition(make_position(1), NOW) is None, "there is nothing of the table"
    find_transitions(schema, table(NAME))
    turn = schema.find_drop_transition(make_position(8), NOW)
    assert bool(turn.decision.stops) == (mode in (SchemaChangeMode.FAIL, SchemaChangeMode.QUARANTINE))
    assert turn.decision.waits == (mode is SchemaChangeMode.QUARANTINE) and not turn.has_cut
    version = turn.version
    assert (version.number, version.dropped, version.changes) == (2, True, ("the table was dropped",))
    assert (version.source, version.columns) == (schema.current.source, schema.current.columns)
    assert from_json(to_json(version)) == version
    if not turn.decision.stops:
        schema.apply_transition(turn)
        assert (
            schema.find_drop_transition(make_position(8), NOW) is None
            and schema.find_transition(table(NAME), START, NOW) is None
        )
        assert schema.find_drop_transition(make_position(9), NOW).version.number == 3
        assert schema.select_columns(table(NAME)).versions == tuple(schema.versions.values())


def test_accepted_drop_is_not_decided_again():
    strict = lane(SchemaRules(others=SchemaChangeMode.QUARANTINE))
    schema = LaneSchema(strict)
    find_transitions(schema, table(NAME))
    waits = schema.find_drop_transition(make_position(8), NOW)
    still = LaneSchema(strict, (*schema.versions.values(), waits.version)).find_drop_transition(make_position(8), NOW)
    assert still.decision.waits and still.version.number == 2
    accepted = LaneSchema(strict, (*schema.versions.values(), replace(waits.version, state="accepted")))
    goes = accepted.find_drop_transition(make_position(8), NOW)
    assert goes.is_known and not goes.decision.stops and accepted.has_stored_versions
    accepted.apply_transition(goes)
    assert accepted.versions[2].state == "applied" and accepted.has_stored_versions
    assert (
        accepted.find_drop_transition(make_position(8), NOW) is None
        and accepted.find_drop_transition(make_position(9), NOW).decision.waits
    )
    assert not schema.has_stored_versions, "its first schema is still to be written"


BORDER = LogCut(below=Position({TopicPartition("t", 0): 20}), end=Position({TopicPartition("t", 0): 20}))


@pytest.mark.parametrize(
    ("first", "second", "rules", "altered"),
    [
        (table(NAME), table(NAME, NOTE), SchemaRules(), {"note": (None, pa.string())}),
        (table(N), table(LONG), SchemaRules(), {"n": (pa.int32(), pa.int64())}),
        (table(NAME, N), table(NAME), SchemaRules(removes=True), {"n": (pa.int32(), None)}),
        (table(NAME, N), table(NAME), SchemaRules(), {}),
        (
            table(N),
            table(replace(N, name="m")),
            SchemaRules(renames=(("n", "m"),)),
            {"n": (pa.int32(), None), "m": (None, pa.int32())},
        ),
        (table(NAME), table(NAME, NOTE), SchemaRules(others=SchemaChangeMode.IGNORE), {}),
        (table(NAME), table(NAME, NOTE), SchemaRules(others=SchemaChangeMode.QUARANTINE), {}),
    ],
    ids=str,
)
def test_columns_of_schemas_after_a_position(first, second, rules, altered):
    """The cut is the record at offset 20: it excludes a schema that starts there, and includes one that starts at 19."""
    for begins, found in ((20, altered), (19, {})):
        schema = LaneSchema(lane(rules))
        schema.apply_transition(schema.find_transition(first, START, NOW))
        turn = schema.find_transition(second, Position({TopicPartition("t", 0): begins}), NOW)
        pending = [] if turn is None or not turn.decision.stops else [turn.version]
        if turn is not None and not pending:
            schema.apply_transition(turn)
        told = find_altered_columns(BORDER, schema._lane, [*schema.versions.values(), *pending])
        assert {name: (one.old_type, *one.later_types) for name, one in told.items()} == found


def test_altered_columns_have_target_names():
    remade = ColumnTransforms((("note", ColumnRule(rename="remark")),))
    of = lane(row_transforms=RowTransforms(column_transforms=remade))
    schema = LaneSchema(of)
    for at, met in ((30, table(NAME)), (40, table(NAME, NOTE))):
        schema.apply_transition(schema.find_transition(met, Position({TopicPartition("t", 0): at}), NOW))
    assert find_altered_columns(BORDER, of, list(schema.versions.values())) == {
        "remark": AlteredColumn(None, (pa.string(),))
    }
    assert find_altered_columns(BORDER, of, []) == {}


@pytest.mark.parametrize(
    ("altered", "there", "done"),
    [
        (AlteredColumn(None, (pa.string(),)), pa.string(), True),
        (AlteredColumn(None, (pa.string(),)), None, False),
        (AlteredColumn(pa.string(), (None,)), None, True),
        (AlteredColumn(pa.time64("us"), (None,)), pa.string(), False),  # A lake keeps it so.
        (AlteredColumn(pa.int32(), (pa.int64(),)), pa.int32(), False),
        (AlteredColumn(pa.int32(), (pa.int64(), pa.string())), pa.int64(), True),
    ],
    ids=str,
)
def test_altered_column_before_and_after_the_change(altered, there, done):
    assert altered.is_done(there) is done
