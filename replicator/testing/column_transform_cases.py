"""Column transforms for random histories: as the program has them (`domain.transform.columns`), and as the model
(`model_column_transforms`)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from replicator.domain.policy.expr import Call, Case, Expr, IsNull, Lit, source
from replicator.domain.transform.columns import AddedColumn, ColumnRule, ColumnTransforms, Mask

from .model import Change
from .model_column_transforms import ModelColumnTransforms, ModelComputedColumn, UnrepresentableValue

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
    found = image.get("v1")
    if found is None or -(2**63) <= found * 3 < 2**63:
        return None if found is None else found * 3
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
