"""Row and column transforms for random histories: as the program has them (`domain.transform`), and as the model."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from replicator.domain.expr import AnyOf, Call, Case, Compare, Expr, IsNull, Lit, Not, source
from replicator.domain.patterns import ColumnSelection
from replicator.domain.policy import POLICY_NAMES
from replicator.domain.policy.plan import ApplyPlan
from replicator.domain.policy.policies import plan_for
from replicator.domain.table import TableSpec
from replicator.domain.transform.columns import AddedColumn, ColumnRule, ColumnTransforms, Mask
from replicator.domain.transform.rows import RowTransforms

from .histories import History, any_histories
from .model import Change
from .model_transforms import ModelColumnTransforms, ModelComputedColumn, ModelRowTransforms, UnrepresentableValue
from .source import EPOCH, to_micros

# Column transforms: `domain.transform.columns`, and the model

SECRET = b"of these histories"
DIGEST, CUT = Mask("hmac", SECRET), Mask("truncate", SECRET, 2)
FIXED_MASK, NOTHING_MASK = Mask("fixed", text="***"), Mask("nothing")


@dataclass(frozen=True)
class TransformPair:
    """The same transforms for the program and the model. `first`: the types of `v1` that they fit."""

    column_transforms: ColumnTransforms
    model: ModelColumnTransforms
    first: tuple[str, ...] = ("text",)


def to_text(value: Any) -> str:
    """The text of a value that is cast or concatenated."""
    return (
        {True: "true", False: "false"}[value]
        if isinstance(value, bool)
        else value.hex()
        if isinstance(value, bytes)
        else str(value)
    )


def to_masked_text(value: Any) -> str:
    """The text of a value before it is masked. Equal numbers with different decimals have the same text."""
    match value:
        case Decimal():
            digits = f"{value:f}"
            return (digits.rstrip("0").rstrip(".") if "." in digits else digits) if value else "0"
        case float():
            return str(int(value)) if value.is_integer() else repr(value)
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S.%f")
        case _:
            return to_text(value)


def hash_text(value: Any) -> str:
    """The HMAC of a value's text."""
    return hmac.new(SECRET, to_masked_text(value).encode(), hashlib.sha256).hexdigest()


def to_small(value: int) -> int:
    """The value as a 32-bit integer."""
    if not -(2**31) <= value < 2**31:
        raise UnrepresentableValue
    return value


def to_whole(value: Decimal) -> int:
    """The value as an integer."""
    if value % 1:
        raise UnrepresentableValue
    return int(value)


def make_computed_pair(
    of: str, expression: Expr, value: Callable[[Mapping[str, Any]], Any], *, drop: str = ""
) -> TransformPair:
    """A column that is computed from others, one of which may be dropped."""
    left_out = ((drop, ColumnRule(drop=True)),) if drop else ()
    return TransformPair(
        ColumnTransforms(left_out, (("made", AddedColumn(expression=expression)),)),
        ModelColumnTransforms(
            dropped=frozenset(filter(None, [drop])), computed={"made": ModelComputedColumn(frozenset(of.split()), value)}
        ),
    )


def compute_louder(image: Mapping[str, Any]) -> str | None:
    """`v1` in capitals if `v2` has a value, else `none`."""
    text = image.get("v1")
    return "none" if image.get("v2") is None else text and text.upper()


def compute_thrice(image: Mapping[str, Any]) -> int | None:
    """Three times `v1`."""
    number = image.get("v1")
    if number is None or -(2**63) <= number * 3 < 2**63:
        return None if number is None else number * 3
    raise UnrepresentableValue


def _get_position_part(change: Change, part: int) -> int:
    return int(change.event_id.rsplit("-", 2)[part])


def make_changed_pair(name: str, rule: ColumnRule, **model: Any) -> tuple[ColumnTransforms, ModelColumnTransforms]:
    """A rule for one column."""
    return ColumnTransforms(rules=((name, rule),)), ModelColumnTransforms(**model)


CAPITALS = Call("upper", (source("v1"),))
LOUDER = Case(((IsNull(source("v2")), Lit("none")),), CAPITALS)
LABEL = Call("concat", (source("k1"), Lit("-"), source("v1")))
COMPUTED = {
    "that is computed": make_computed_pair("v1", CAPITALS, lambda image: image.get("v1") and image["v1"].upper()),
    "that is computed of two": make_computed_pair("v1 v2", LOUDER, compute_louder, drop="v1"),
    "that is computed, as far as it goes": replace(
        make_computed_pair("v1", Call("*", (source("v1"), Lit(3))), compute_thrice, drop="v1"), first=("int",)
    ),
}
LABELLED = make_computed_pair("k1 v1", LABEL, lambda image: f"{to_text(image['k1'])}-{image.get('v1') or ''}")

COLUMNS = {
    **COMPUTED,
    "without it": TransformPair(
        *make_changed_pair("v1", ColumnRule(drop=True), dropped=frozenset({"v1"})), ("text", "int", "bytes")
    ),
    "of another name": TransformPair(
        *make_changed_pair("v1", ColumnRule(rename="other"), names={"v1": "other"}), ("text", "int", "bytes")
    ),
    "of fewer bits": TransformPair(*make_changed_pair("v1", ColumnRule(cast=pa.int32()), values={"v1": to_small}), ("int",)),
    "in whole numbers": TransformPair(
        *make_changed_pair("v1", ColumnRule(cast=pa.int64()), values={"v1": to_whole}), ("money",)
    ),
    "as text, of another name": TransformPair(
        *make_changed_pair(
            "v1", ColumnRule(cast=pa.string(), rename="other"), values={"v1": to_text}, names={"v1": "other"}
        ),
        ("int", "truth", "day"),
    ),
    "of nothing": TransformPair(
        *make_changed_pair("v1", ColumnRule(mask=NOTHING_MASK), values={"v1": lambda _: None}), ("text", "day")
    ),
    "hidden": TransformPair(
        *make_changed_pair("v1", ColumnRule(mask=FIXED_MASK), values={"v1": lambda _: "***"}), ("text", "instant")
    ),
    "as its HMAC": TransformPair(
        *make_changed_pair("v1", ColumnRule(mask=DIGEST), values={"v1": hash_text}),
        ("text", "int", "money", "truth", "bytes", "day", "double", "instant"),
    ),
    "cut short": TransformPair(
        *make_changed_pair(
            "v1", ColumnRule(mask=CUT), values={"v1": lambda v: f"{to_masked_text(v)[:2]}-{hash_text(v)[:16]}"}
        ),
        ("text", "int", "money", "instant"),
    ),
    "with added metadata": TransformPair(
        ColumnTransforms(
            (("v1", ColumnRule(rename="where")),),
            (
                ("at", AddedColumn("offset", cast=pa.string())),
                ("in", AddedColumn("partition")),
                ("when", AddedColumn("source_time")),
                ("region", AddedColumn(constant="EU")),
                ("what", AddedColumn("operation")),
            ),
        ),
        ModelColumnTransforms(
            names={"v1": "where"},
            added={
                "at": lambda change: str(_get_position_part(change, -1)),
                "in": lambda change: _get_position_part(change, -2),
                "when": lambda change: change.ts,
                "region": lambda _: "EU",
                "what": lambda change: change.op,
            },
        ),
        ("text", "int"),
    ),
}
"""Transforms of `v1`."""

KEYS = {
    "as its HMAC, of another name": TransformPair(
        ColumnTransforms((("k1", ColumnRule(mask=DIGEST, rename="who")), ("v1", ColumnRule(mask=DIGEST)))),
        ModelColumnTransforms(values={"k1": hash_text, "v1": hash_text}, names={"k1": "who"}),
    ),
    "as text": TransformPair(
        ColumnTransforms((("k1", ColumnRule(cast=pa.string())),)), ModelColumnTransforms(values={"k1": to_text})
    ),
    "that another column is computed of": LABELLED,
    "as text, that another column is computed of": TransformPair(
        ColumnTransforms((("k1", ColumnRule(cast=pa.string(), rename="who")),), LABELLED.column_transforms.additions),
        ModelColumnTransforms(values={"k1": to_text}, names={"k1": "who"}, computed=LABELLED.model.computed),
    ),
}
"""Transforms of `k1`, a key column."""


# Row transforms: `domain.transform.rows`, and the model

KEYED_TYPES = ("int", "text", "composite")
ORDERED_TYPES = ("text", "int", "money", "day", "instant", "truth", "bytes", "small")
"""Types whose values have an order."""


def to_element(value: Any) -> int | str:
    """The stored form of a value that orders changes. Decimals have the type `money`."""
    match value:
        case datetime():
            return to_micros(value)
        case date():
            return (value - EPOCH.date()).days
        case Decimal():
            return int(value.scaleb(2))
        case bytes():
            return value.hex()
        case str():
            return value
    return int(value)


def make_text_condition(*texts: str) -> Any:
    """Model condition: `v1` is one of these."""
    return lambda image, unchanged: image.get("v1") in texts if "v1" not in unchanged else None


def make_other_text_condition(text: str) -> Any:
    """Model condition: `v1` is not NULL, and not this."""
    return lambda image, unchanged: image.get("v1") not in (None, text) if "v1" not in unchanged else None


def is_null(image: Mapping[str, Any], unchanged: frozenset[str]) -> bool | None:
    """Model condition: `v1` is NULL."""
    return None if "v1" in unchanged else image.get("v1") is None


def make_among_condition(*texts: str) -> Expr:
    """The condition that `v1` is one of these."""
    return AnyOf(tuple(Compare("=", source("v1"), Lit(text)) for text in texts))


@dataclass(frozen=True)
class TransformCase:
    """Row transforms that read `v1`.

    `first_types`: the allowed types of `v1`. `keys`: the allowed types of keys. `in_order`: only for one partition.
    """

    row_transforms: RowTransforms
    wanted: ModelRowTransforms
    first_types: tuple[str, ...] = ("text",)
    keys: tuple[str, ...] = (*KEYED_TYPES, "none")
    policies: frozenset[str] = field(default=frozenset(POLICY_NAMES))
    in_order: bool = False

    def plan(self, policy: str, table: TableSpec) -> ApplyPlan:
        """The plan of `policy` for `table` with these row transforms."""
        return plan_for(policy, table, None, self.row_transforms)


CLEARED = frozenset({"scd1", "scd2"})
"""Policies in which a truncate is not a row."""

WITHOUT_V1 = ColumnSelection(("v1",), excluded=True)


class AllButV1:
    """All columns but `v1`."""

    def __contains__(self, name: object) -> bool:
        return name != "v1"


class EveryColumn:
    """Every column."""

    def __contains__(self, name: object) -> bool:
        return True


EVERY_NULL_IGNORED = ColumnSelection((), excluded=True)
SCD1 = frozenset({"scd1"})
NOT_A = Not(Compare("=", source("v1"), Lit("a")))

Setting = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Fields of `RowTransforms`, and the fields of `ModelRowTransforms` with the same meaning."""


def order_by(*names: str) -> Setting:
    """Changes are in the order of these columns."""
    return {"sequence_by": names}, {"sequence_by": names, "stored": dict.fromkeys(names, to_element)}


def delete_texts(*texts: str) -> Setting:
    """An upsert with one of these texts is a delete."""
    return {"deletes": make_among_condition(*texts)}, {"deletes": make_text_condition(*texts)}


def truncate_texts(*texts: str) -> Setting:
    """An upsert with one of these texts is a truncate."""
    return {"truncates": make_among_condition(*texts)}, {"truncates": make_text_condition(*texts)}


def transform_columns(both: TransformPair) -> Setting:
    """Single columns are transformed."""
    return {"column_transforms": both.column_transforms}, {"column_transforms": both.model}


def set_alike(**fields: bool) -> Setting:
    """Fields that both classes have."""
    return fields, fields


def make_case(*settings: Setting, **limits: Any) -> TransformCase:
    """The row transforms of all settings together. `limits`: the other fields of the case."""
    transforms, wanted = ({name: value for pair in settings for name, value in pair[side].items()} for side in (0, 1))
    return TransformCase(RowTransforms(**transforms), ModelRowTransforms(**wanted), **limits)


WITHOUT_COLUMN: Setting = ({"columns": WITHOUT_V1}, {"columns": AllButV1()})
WITHOUT_DELETES, SOFT_DELETES = set_alike(without_deletes=True), set_alike(soft_deletes=True)
DELETE_ALL_BUT_A: Setting = ({"deletes": NOT_A}, {"deletes": make_other_text_condition("a")})
IGNORE_EVERY_NULL: Setting = ({"ignore_null": EVERY_NULL_IGNORED}, {"ignore_null": EveryColumn()})
WHERE_NOT_A: Setting = ({"where": NOT_A}, {"where": make_other_text_condition("a"), "condition_columns": frozenset({"v1"})})
WHERE_VALUE: Setting = (
    {"where": Not(IsNull(source("v1")))},
    {"where": lambda image, missing: not is_null(image, missing), "condition_columns": frozenset({"v1"})},
)
ONLY_MATCHING_CHANGES = set_alike(rows_leave=False)
ORDERED: Mapping[str, Any] = {"first_types": ORDERED_TYPES}
KEYED: Mapping[str, Any] = {"keys": KEYED_TYPES}
KEYED_SCD1: Mapping[str, Any] = {**KEYED, "policies": SCD1}

CASES = {
    "in the order of a column": make_case(order_by("v1"), **ORDERED, **KEYED),
    "in the order of two": make_case(order_by("v1", "k1"), **ORDERED, **KEYED),
    "in the order of a column that is left out": make_case(order_by("v1"), WITHOUT_COLUMN, **ORDERED, **KEYED),
    "without a column": make_case(WITHOUT_COLUMN, **ORDERED),
    "without deletes": make_case(WITHOUT_DELETES),
    "with deletes by text": make_case(delete_texts("a", "it's")),
    "with deletes by what is not there": make_case(({"deletes": IsNull(source("v1"))}, {"deletes": is_null}), **ORDERED),
    "with deletes but for one text": make_case(DELETE_ALL_BUT_A),
    "with truncates and deletes": make_case(delete_texts("a", "NULL"), truncate_texts("NULL"), policies=CLEARED),
    "where NULL changes nothing": make_case(IGNORE_EVERY_NULL, **ORDERED, **KEYED_SCD1),
    "where NULL changes nothing in some columns": make_case(
        ({"ignore_null": WITHOUT_V1}, {"ignore_null": AllButV1()}), delete_texts("a", "it's"), WITHOUT_DELETES, **KEYED_SCD1
    ),
    "where NULL changes nothing in one": make_case(
        ({"ignore_null": ColumnSelection(("v1",))}, {"ignore_null": ("v1",)}), truncate_texts("NULL"), **KEYED_SCD1
    ),
    "where NULL changes nothing, in the order of a column": make_case(
        order_by("v1"), IGNORE_EVERY_NULL, **ORDERED, **KEYED_SCD1
    ),
    "with soft deletes": make_case(SOFT_DELETES, **ORDERED, **KEYED_SCD1, in_order=True),
    "with soft deletes by text": make_case(SOFT_DELETES, delete_texts("a", "it's"), **KEYED_SCD1, in_order=True),
    "with soft deletes, in the order of a column": make_case(SOFT_DELETES, order_by("v1"), DELETE_ALL_BUT_A, **KEYED_SCD1),
    "where there is no such text": make_case(WHERE_NOT_A, policies=CLEARED),
    "where there is a value": make_case(WHERE_VALUE, **ORDERED, policies=CLEARED),
    "where there is no such text, without deletes": make_case(WHERE_NOT_A, WITHOUT_DELETES, policies=CLEARED),
    "where there is no such text, with soft deletes": make_case(WHERE_NOT_A, SOFT_DELETES, **KEYED_SCD1, in_order=True),
    "where there is no such text, with deletes by text, in the order of a column": make_case(
        WHERE_NOT_A, delete_texts("it's"), order_by("v1"), WITHOUT_COLUMN, **KEYED, policies=CLEARED
    ),
    "only changes with no such text": make_case(WHERE_NOT_A, ONLY_MATCHING_CHANGES, policies=frozenset({"append"})),
    "only changes with no such text, without a column": make_case(
        WHERE_NOT_A, ONLY_MATCHING_CHANGES, WITHOUT_COLUMN, delete_texts("it's"), policies=frozenset({"append"})
    ),
    **{
        f"with a column {name}": make_case(transform_columns(both), first_types=both.first) for name, both in COLUMNS.items()
    },
    **{
        f"with a key {name}": make_case(transform_columns(both), first_types=both.first, **KEYED)
        for name, both in KEYS.items()
    },
    "with a column as its HMAC, where there is no such text, in its order": make_case(
        order_by("v1"), WHERE_NOT_A, transform_columns(COLUMNS["as its HMAC"]), **KEYED, policies=CLEARED
    ),
    "with a column that is computed of two, left out with another, where there is no such text": make_case(
        WITHOUT_COLUMN,
        WHERE_NOT_A,
        (
            {
                "column_transforms": ColumnTransforms(
                    additions=COMPUTED["that is computed of two"].column_transforms.additions
                )
            },
            {"column_transforms": ModelColumnTransforms(computed=COMPUTED["that is computed of two"].model.computed)},
        ),
        policies=CLEARED,
    ),
    "with a column that is computed, with soft deletes": make_case(
        SOFT_DELETES, transform_columns(COLUMNS["that is computed"]), **KEYED_SCD1, in_order=True
    ),
    "with a column of fewer bits, with soft deletes": make_case(
        SOFT_DELETES, transform_columns(COLUMNS["of fewer bits"]), first_types=("int",), **KEYED_SCD1, in_order=True
    ),
    "with a column of another name, where NULL changes nothing": make_case(
        IGNORE_EVERY_NULL, transform_columns(COLUMNS["of another name"]), **ORDERED, **KEYED_SCD1
    ),
    "with a key as its HMAC, with soft deletes": make_case(
        SOFT_DELETES, transform_columns(KEYS["as its HMAC, of another name"]), **KEYED_SCD1, in_order=True
    ),
    "with everything": make_case(
        order_by("v1"), delete_texts("a", ""), truncate_texts("NULL"), WITHOUT_COLUMN, **KEYED_SCD1
    ),
    "with deletes by text that are left out": make_case(
        order_by("v1"), delete_texts("a", ""), WITHOUT_COLUMN, WITHOUT_DELETES, **KEYED
    ),
}


@st.composite
def transform_histories(draw: st.DrawFn, policy: str) -> tuple[str, History]:
    """The name of a case of this policy, and a history for it."""
    name = draw(st.sampled_from([name for name, case in CASES.items() if policy in case.policies]))
    case = CASES[name]
    keys = tuple(key for key in case.keys if policy == "append" or key != "none")
    history = draw(any_histories(keys, first=case.first_types))
    return name, replace(history, shape=replace(history.shape, partitions=1)) if case.in_order else history


def check_transform_histories(suite: Any, policy: str) -> None:
    """`check_history` of a suite, for random histories of the cases of this policy."""

    def check(drawn: tuple[str, History]) -> None:
        case = CASES[drawn[0]]
        suite.check_history(drawn[1], policy, case.plan, case.wanted)

    suite.for_all(drawn=transform_histories(policy))(check)
