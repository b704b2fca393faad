"""The suites notice planted bugs of row and column transforms."""

from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from adapters.arrow import key_change, masks
from adapters.engines.local import LocalEngine
from adapters.transforms import column_transforms, expressions, row_transforms
from replicator.domain.expr import Coalesce
from replicator.domain.transform.columns import Mask
from replicator.testing.delivery import DeliveryRun, assert_equals_model
from replicator.testing.fakes import FakeTarget
from replicator.testing.histories import make_random_history
from replicator.testing.transform_cases import CASES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unshrunk")]


def caught(name, policy="scd1", plan=None, keys=("int", "composite")):
    """One of some random histories ends otherwise than the model says, or does not end; fails when all of them agree."""
    case = CASES[name]
    for seed in range(120):
        history = make_random_history(seed, 40, keys=keys, first=case.first_types)
        delivering = DeliveryRun(LocalEngine(), FakeTarget(), history, policy, plan or case.plan, case.wanted)
        try:
            delivering.run()
            assert_equals_model(delivering)
        except (AssertionError, KeyError):
            return
    pytest.fail("no history caught it")


def test_order_by_log_position_first_is_noticed(monkeypatch):
    def by_log(changes, shape, table):
        done = right(changes, shape, table)
        number = pc.utf8_rpad(done["_seq_2"].cast(pa.string()), 30)
        return done.set_column(done.column_names.index("_seq_1"), "_seq_1", number)

    right = row_transforms.transform_rows
    monkeypatch.setattr("adapters.engines.local.transform_rows", by_log)
    caught("with everything")


def test_default_for_a_missing_sequence_value_is_noticed(monkeypatch):
    def lowest(changes, name):
        found = right(changes, name)
        return pc.fill_null(found, "" if pa.types.is_string(found.type) else 0)

    right = row_transforms._to_element
    monkeypatch.setattr(row_transforms, "_to_element", lowest)
    caught("in the order of a column")


def test_case_insensitive_order_is_noticed(monkeypatch):
    right = row_transforms.to_elements

    def capitals(column):
        found = right(column)
        return pc.utf8_upper(pc.utf8_reverse(found)) if pa.types.is_string(found.type) else found

    monkeypatch.setattr(row_transforms, "to_elements", capitals)
    caught("with everything")


def test_ties_counted_as_duplicates_are_noticed(monkeypatch):
    def without_log(changes, shape, table):
        done = right(changes, shape, table)
        for name in ("_seq_2", "_seq_3", "_seq_4"):
            zero = pc.if_else(pc.is_valid(done[name]), pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64()))
            done = done.set_column(done.column_names.index(name), name, zero)
        return done

    right = row_transforms.transform_rows
    monkeypatch.setattr("adapters.engines.local.transform_rows", without_log)
    caught("in the order of a column")


def test_partial_changes_folded_into_older_ones_are_noticed(monkeypatch):
    monkeypatch.setattr(key_change, "_ordering_columns", lambda table: ())
    caught("in the order of a column")


def test_missing_value_as_null_in_a_condition_is_noticed(monkeypatch):
    monkeypatch.setattr(expressions, "mask_missing", lambda changes, name: None)
    caught("with deletes by what is not there")


def test_condition_evaluated_for_deletes_is_noticed(monkeypatch):
    """A condition for truncates must not see the before image."""
    monkeypatch.setattr(
        row_transforms, "find_upserts", lambda operations: pc.is_in(operations, pa.array(["c", "u", "r", "d"]))
    )
    caught("with truncates and deletes")


def test_null_result_that_holds_is_noticed(monkeypatch):
    monkeypatch.setattr(expressions, "pc", replace_functions(pc, fill_null=lambda values, _: pc.fill_null(values, True)))
    caught("with deletes by what is not there")


@pytest.mark.long
def test_truncate_with_values_is_noticed(monkeypatch):
    monkeypatch.setattr(row_transforms, "_list_value_columns", lambda changes: [])
    caught("with truncates and deletes")


def test_dropped_column_listed_as_missing_is_noticed(monkeypatch):
    monkeypatch.setattr(row_transforms, "_list_still_missing", lambda lists, columns: lists)
    caught("without a column")


def test_old_row_that_stays_after_a_key_change_is_noticed(monkeypatch):
    monkeypatch.setattr(
        row_transforms, "_mask_rows", lambda changes: pc.is_in(changes["_op"], value_set=pa.array(["c", "u", "r"]))
    )
    caught("without deletes")


KEEPING = "where NULL changes nothing"


def test_ignored_null_that_overwrites_a_value_is_noticed():
    def overwriting(policy, table):
        plan = CASES[KEEPING].plan(policy, table)
        _, update, _ = plan.clauses
        plain = tuple((name, value.first if isinstance(value, Coalesce) else value) for name, value in update.assign)
        return replace(plan, clauses=(plan.clauses[0], replace(update, assign=plain), plan.clauses[2]))

    caught(KEEPING, plan=overwriting)


def test_ignored_null_that_hides_a_value_of_its_batch_is_noticed(monkeypatch):
    monkeypatch.setattr(row_transforms, "_add_ignored_nulls", lambda changes, lacking, names: lacking)
    caught(KEEPING)


def test_ignored_null_kept_across_a_delete_is_noticed(monkeypatch):
    monkeypatch.setattr(key_change, "_can_need_cuts", lambda changes, table: False)
    caught(KEEPING)


def test_partial_change_folded_with_a_whole_one_is_noticed(monkeypatch):
    right = key_change._to_key_change
    monkeypatch.setattr(key_change, "_to_key_change", lambda *told, **more: right(*told, **more)._replace(needs=True))
    caught(KEEPING)


def test_change_wrongly_counted_as_incomplete_is_noticed(monkeypatch):
    monkeypatch.setattr("replicator.testing.plain_plan.KEEP_EXISTING", "no such mark")
    caught(KEEPING)


def test_rows_that_stay_outside_of_the_condition_are_noticed(monkeypatch):
    def changed_nothing(changes, where, errors):
        out, errors = right(changes, where, errors)
        return pc.and_(out, pc.equal(changes["_op"], "c")), errors

    right = row_transforms._mask_filtered
    monkeypatch.setattr(row_transforms, "_mask_filtered", changed_nothing)
    caught("where there is no such text")


def test_missing_value_as_null_in_where_is_noticed(monkeypatch):
    monkeypatch.setattr(
        row_transforms,
        "_missing_input_errors",
        lambda changes, where: pa.chunked_array([pa.nulls(len(changes), pa.string())]),
    )
    caught("where there is no such text")


def test_filtered_deletes_by_condition_are_noticed(monkeypatch):
    def before(changes, where, errors):
        out, errors = right(changes, where, errors)
        return pc.and_(out, False), errors

    right = row_transforms._mask_filtered
    monkeypatch.setattr(row_transforms, "_mask_filtered", before)
    caught("where there is no such text, without deletes")


def test_lossy_cast_is_noticed(monkeypatch):
    def silently(values, into):
        done, lost = right(values, into)
        return done, pc.and_(lost, False)

    right = column_transforms.cast_values
    monkeypatch.setattr(column_transforms, "cast_values", silently)
    caught("with a column of fewer bits")


def is_missing(monkeypatch, planted):
    right = column_transforms._find_missing
    monkeypatch.setattr(column_transforms, "_find_missing", lambda *told: planted(*right(*told)))


def test_value_computed_from_missing_values_is_noticed(monkeypatch):
    is_missing(monkeypatch, lambda partly, wholly: (pc.and_(partly, False), pc.and_(wholly, False)))
    caught("with a column that is computed")


def test_computed_value_that_is_not_updated_is_noticed(monkeypatch):
    is_missing(monkeypatch, lambda partly, _: (partly, partly))
    caught("with a column that is computed of two")


def test_overflowing_number_is_noticed(monkeypatch):
    monkeypatch.setattr(expressions, "pc", replace_functions(pc, multiply_checked=pc.multiply))
    caught("with a column that is computed, as far as it goes")


def replace_functions(module, **functions):
    """The module with other functions."""
    return SimpleNamespace(**{**vars(module), **functions})


def test_mask_without_its_key_is_noticed(monkeypatch):
    right = masks.make_text_mask
    monkeypatch.setattr(masks, "make_text_mask", lambda mask: right(Mask(mask.kind, b"", mask.length)))
    caught("with a column as its HMAC")


def test_missing_column_under_its_old_name_is_noticed(monkeypatch):
    monkeypatch.setattr(column_transforms, "_rename_names", lambda names, now: names)
    caught("with a column of another name")
