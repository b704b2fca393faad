"""The promises of an engine for row transforms; part of `engine_contract.EngineContract`."""

from __future__ import annotations

from replicator.domain.change import ERROR, OFFSET, changes_schema
from replicator.domain.errors import Reject, RejectCode
from replicator.domain.policy.expr import Expr
from replicator.domain.transform.expressions import list_columns
from replicator.domain.transform.rows import RowTransforms

from .delivery import DeliveryRun, assert_equals_model
from .engine_base import EngineBase, PlainFrames
from .fakes import FakeTarget
from .histories import History, changes_frame
from .model import Change, Row
from .row_transform_cases import CASES, transform_histories
from .sink_base import make_history, make_writes
from .source import FIRST_OFFSET, SourceEvent, Statement

KEY_CHANGE = (Statement("write", 0, salt=4), Statement("move", 0, 1, salt=9, mask=1))


def list_expressions(shape: RowTransforms) -> list[Expr]:
    """The expressions of the computed columns."""
    return [added.expression for _, added in shape.column_transforms.additions if added.expression is not None]


class EngineRowTransforms(EngineBase):
    """Row transforms."""

    def test_row_transforms_equal_model(self) -> None:
        """Random histories with row transforms end like the model, under every policy: order by columns, rows as
        deletes or truncates, excluded columns and deletes."""
        for policy in ("scd1", "append"):
            self._check_transformed_model(policy)

    def test_row_transforms_account_for_every_change(self) -> None:
        """The result has the order of arrival and the columns of the plan's table. Other changes are filtered, or
        rejected with a reason."""
        engine = self.new_engine()
        history = make_history(
            *make_writes(0, 1), Statement("write", 0, salt=6), Statement("delete", 1), *KEY_CHANGE, Statement("truncate")
        )
        for name, case in self.sample_cases((name, case) for name, case in CASES.items() if "text" in case.first_types):
            plan = case.plan("scd1", history.table())
            shaped = engine.transform_rows(self.read_changes(history), plan)
            frame, rejects = self.to_arrow(shaped.frame), self.to_arrow(shaped.rejects)
            assert frame.schema.names == rejects.schema.names == changes_schema(plan.table).names, name
            assert frame.schema.types == changes_schema(plan.table).types, name
            assert frame[OFFSET].to_pylist() == sorted(frame[OFFSET].to_pylist()), name
            assert frame[ERROR].null_count == frame.num_rows == engine.count(shaped.frame), name
            assert rejects.num_rows == shaped.counts.rejected == engine.count(shaped.rejects), name
            assert frame.num_rows + shaped.counts.total == len(history.changes()), name
            told = {Reject.parse(error).code for error in rejects[ERROR].to_pylist()}
            expected = {RejectCode.SEQUENCE} if case.row_transforms.sequence_by else set()
            asks = case.row_transforms.where is not None or any(
                len(list_columns(made)) > 1 for made in list_expressions(case.row_transforms)
            )
            expected |= {RejectCode.INCOMPLETE} if asks and not expected else set()
            assert told == expected, name
            empty = engine.transform_rows(self.read_changes(history, 0, 0), plan)
            assert (engine.count(empty.frame), empty.counts.total) == (0, 0)

    def _check_transformed_model(self, policy: str) -> None:
        @self.for_all(drawn=transform_histories(policy))
        def check(drawn: tuple[str, History]) -> None:
            case, history = CASES[drawn[0]], drawn[1]
            delivering = DeliveryRun(PlainFrames(self), FakeTarget(), history, policy, case.plan, case.wanted)
            delivering.run()
            assert_equals_model(delivering)

    def test_segments_of_changes_in_any_order(self) -> None:
        """A partial change starts a segment unless it is the first of its key there. A lower change after it does
        so, too."""
        engine, case = self.new_engine(), CASES["in the order of a column"]
        half: Row = {"k1": 1, "v2": 1}
        images = [
            *({"k1": 1, "v1": text, "v2": 1} for text in "bc"),
            half | {"v1": "d"},
            half | {"v1": "a"},
            half | {"v1": "e"},
        ]
        unsent = [frozenset[str]()] * 2 + [frozenset({"v2"})] + [frozenset[str]()] * 2
        changes = [
            Change("u", (at, 0, 0), image, lacks) for at, (image, lacks) in enumerate(zip(images, unsent, strict=True))
        ]
        events = [(SourceEvent(0, FIRST_OFFSET + at, 0, (1,), change), change) for at, change in enumerate(changes)]
        table = make_history().table()
        frame = self.to_frame(changes_frame(events, table, "cdc.public.items"))
        plan = case.plan("scd1", table)
        pieces = engine.segments(engine.transform_rows(frame, plan).frame, plan.table)
        assert [self.to_arrow(piece)["v1"].to_pylist() for piece in pieces] == [["b", "c"], ["d"], ["a", "e"]]
        assert len(engine.segments(frame, table)) == 1
