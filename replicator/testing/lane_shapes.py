"""Shapes of lanes to try histories with: each as the program takes it (`domain.shape`) and as the model says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from replicator.domain.chosen import Chosen
from replicator.domain.columns import Remade
from replicator.domain.expr import AnyOf, Compare, Expr, IsNull, Lit, Not, source
from replicator.domain.plan import ApplyPlan
from replicator.domain.policies import plan_for
from replicator.domain.shape import Shape
from replicator.domain.table import TableSpec

from .histories import History, any_history
from .kinds import EPOCH, micros
from .model_remade import Remaking
from .model_shapes import Wanted
from .remade_shapes import COLUMNS, KEYS

KEYED = ("int", "text", "composite")
ORDERLY = ("text", "int", "money", "day", "instant", "truth", "bytes", "small")
"""Kinds whose values have an order."""


def element(value: Any) -> int | str:
    """How a target keeps a value that orders changes; of decimals those of the kind `money`."""
    match value:
        case datetime():
            return micros(value)
        case date():
            return (value - EPOCH.date()).days
        case Decimal():
            return int(value.scaleb(2))
        case bytes():
            return value.hex()
        case str():
            return value
    return int(value)


def is_text(*texts: str) -> Any:
    """A condition of the model: `v1` is one of these."""
    return lambda image, unsent: image.get("v1") in texts if "v1" not in unsent else None


def is_no_text(text: str) -> Any:
    """A condition of the model: `v1` is not NULL, and not this."""
    return lambda image, unsent: image.get("v1") not in (None, text) if "v1" not in unsent else None


def is_null(image: Mapping[str, Any], unsent: frozenset[str]) -> bool | None:
    """A condition of the model: `v1` is NULL."""
    return None if "v1" in unsent else image.get("v1") is None


def among(*texts: str) -> Expr:
    """The condition that `v1` is one of these."""
    return AnyOf(tuple(Compare("=", source("v1"), Lit(text)) for text in texts))


@dataclass(frozen=True)
class Case:
    """A shape that looks at `v1`, which is of one of the kinds `first`. `keys`: the kinds of keys that it suits. `in_order`:
    for what is read from one partition."""

    shape: Shape
    wanted: Wanted
    first: tuple[str, ...] = ("text",)
    keys: tuple[str, ...] = (*KEYED, "none")
    policies: frozenset[str] = field(default=frozenset({"scd1", "append", "scd2"}))
    in_order: bool = False

    def plan(self, policy: str, table: TableSpec) -> ApplyPlan:
        """The plan of `policy` for what the shape makes of `table`."""
        return plan_for(policy, table, None, self.shape)


def _ordered(*names: str) -> dict[str, Any]:
    return {"sequence_by": names, "stored": dict.fromkeys(names, element)}


CLEARED = frozenset({"scd1", "scd2"})
"""Policies for which a truncate is no row."""

WITHOUT_V1 = Chosen(("v1",), excluded=True)


class Others:
    """All columns but `v1`."""

    def __contains__(self, name: object) -> bool:
        return name != "v1"


class All:
    """Every column."""

    def __contains__(self, name: object) -> bool:
        return True


KEEPING = Chosen((), excluded=True)
SCD1 = frozenset({"scd1"})
NOT_A = Not(Compare("=", source("v1"), Lit("a")))
NO_A: dict[str, Any] = {"where": is_no_text("a"), "asked": frozenset({"v1"})}

CASES = {
    "in the order of a column": Case(Shape(sequence_by=("v1",)), Wanted(**_ordered("v1")), ORDERLY, KEYED),
    "in the order of two": Case(Shape(sequence_by=("v1", "k1")), Wanted(**_ordered("v1", "k1")), ORDERLY, KEYED),
    "in the order of a column that is left out": Case(
        Shape(sequence_by=("v1",), columns=WITHOUT_V1), Wanted(**_ordered("v1"), columns=Others()), ORDERLY, KEYED
    ),
    "without a column": Case(Shape(columns=WITHOUT_V1), Wanted(columns=Others()), ORDERLY),
    "without deletes": Case(Shape(without_deletes=True), Wanted(without_deletes=True)),
    "with deletes by text": Case(Shape(deletes=among("a", "it's")), Wanted(deletes=is_text("a", "it's"))),
    "with deletes by what is not there": Case(Shape(deletes=IsNull(source("v1"))), Wanted(deletes=is_null), ORDERLY),
    "with deletes but for one text": Case(
        Shape(deletes=Not(Compare("=", source("v1"), Lit("a")))), Wanted(deletes=is_no_text("a"))
    ),
    "with truncates and deletes": Case(
        Shape(deletes=among("a", "NULL"), truncates=among("NULL")),
        Wanted(deletes=is_text("a", "NULL"), truncates=is_text("NULL")),
        policies=CLEARED,
    ),
    "where NULL changes nothing": Case(Shape(keeping=KEEPING), Wanted(keeping=All()), ORDERLY, KEYED, SCD1),
    "where NULL changes nothing in some columns": Case(
        Shape(keeping=WITHOUT_V1, deletes=among("a", "it's"), without_deletes=True),
        Wanted(keeping=Others(), deletes=is_text("a", "it's"), without_deletes=True),
        keys=KEYED,
        policies=SCD1,
    ),
    "where NULL changes nothing in one": Case(
        Shape(keeping=Chosen(("v1",)), truncates=among("NULL")),
        Wanted(keeping=("v1",), truncates=is_text("NULL")),
        keys=KEYED,
        policies=SCD1,
    ),
    "where NULL changes nothing, in the order of a column": Case(
        Shape(("v1",), keeping=KEEPING), Wanted(**_ordered("v1"), keeping=All()), ORDERLY, KEYED, SCD1
    ),
    "with soft deletes": Case(Shape(soft_deletes=True), Wanted(soft_deletes=True), ORDERLY, KEYED, SCD1, in_order=True),
    "with soft deletes by text": Case(
        Shape(deletes=among("a", "it's"), soft_deletes=True),
        Wanted(deletes=is_text("a", "it's"), soft_deletes=True),
        keys=KEYED,
        policies=SCD1,
        in_order=True,
    ),
    "with soft deletes, in the order of a column": Case(
        Shape(("v1",), Not(Compare("=", source("v1"), Lit("a"))), soft_deletes=True),
        Wanted(None, is_no_text("a"), **_ordered("v1"), soft_deletes=True),
        keys=KEYED,
        policies=SCD1,
    ),
    "where there is no such text": Case(Shape(where=NOT_A), Wanted(**NO_A), policies=CLEARED),
    "where there is a value": Case(
        Shape(where=Not(IsNull(source("v1")))),
        Wanted(where=lambda image, unsent: not is_null(image, unsent), asked=frozenset({"v1"})),
        ORDERLY,
        policies=CLEARED,
    ),
    "where there is no such text, without deletes": Case(
        Shape(where=NOT_A, without_deletes=True), Wanted(**NO_A, without_deletes=True), policies=CLEARED
    ),
    "where there is no such text, with soft deletes": Case(
        Shape(where=NOT_A, soft_deletes=True), Wanted(**NO_A, soft_deletes=True), keys=KEYED, policies=SCD1, in_order=True
    ),
    "where there is no such text, with deletes by text, in the order of a column": Case(
        Shape(("v1",), among("it's"), columns=WITHOUT_V1, where=NOT_A),
        Wanted(None, is_text("it's"), **_ordered("v1"), columns=Others(), **NO_A),
        keys=KEYED,
        policies=CLEARED,
    ),
    "only changes with no such text": Case(
        Shape(where=NOT_A, rows_leave=False), Wanted(**NO_A, rows_leave=False), policies=frozenset({"append"})
    ),
    "only changes with no such text, without a column": Case(
        Shape(where=NOT_A, rows_leave=False, columns=WITHOUT_V1, deletes=among("it's")),
        Wanted(None, is_text("it's"), columns=Others(), **NO_A, rows_leave=False),
        policies=frozenset({"append"}),
    ),
    **{
        f"with a column {name}": Case(Shape(remade=both.remade), Wanted(remade=both.model), both.first)
        for name, both in COLUMNS.items()
    },
    **{
        f"with a key {name}": Case(Shape(remade=both.remade), Wanted(remade=both.model), both.first, KEYED)
        for name, both in KEYS.items()
    },
    "with a column as its HMAC, where there is no such text, in its order": Case(
        Shape(("v1",), where=NOT_A, remade=COLUMNS["as its HMAC"].remade),
        Wanted(**_ordered("v1"), **NO_A, remade=COLUMNS["as its HMAC"].model),
        keys=KEYED,
        policies=CLEARED,
    ),
    "with a column that is computed of two, left out with another, where there is no such text": Case(
        Shape(columns=WITHOUT_V1, where=NOT_A, remade=Remade(added=COLUMNS["that is computed of two"].remade.added)),
        Wanted(columns=Others(), **NO_A, remade=Remaking(computed=COLUMNS["that is computed of two"].model.computed)),
        policies=CLEARED,
    ),
    "with a column that is computed, with soft deletes": Case(
        Shape(soft_deletes=True, remade=COLUMNS["that is computed"].remade),
        Wanted(soft_deletes=True, remade=COLUMNS["that is computed"].model),
        keys=KEYED,
        policies=SCD1,
        in_order=True,
    ),
    "with a column of fewer bits, with soft deletes": Case(
        Shape(soft_deletes=True, remade=COLUMNS["of fewer bits"].remade),
        Wanted(soft_deletes=True, remade=COLUMNS["of fewer bits"].model),
        ("int",),
        KEYED,
        SCD1,
        in_order=True,
    ),
    "with a column of another name, where NULL changes nothing": Case(
        Shape(keeping=KEEPING, remade=COLUMNS["of another name"].remade),
        Wanted(keeping=All(), remade=COLUMNS["of another name"].model),
        ORDERLY,
        KEYED,
        SCD1,
    ),
    "with a key as its HMAC, with soft deletes": Case(
        Shape(soft_deletes=True, remade=KEYS["as its HMAC, of another name"].remade),
        Wanted(soft_deletes=True, remade=KEYS["as its HMAC, of another name"].model),
        keys=KEYED,
        policies=SCD1,
        in_order=True,
    ),
    "with everything": Case(
        Shape(("v1",), among("a", ""), among("NULL"), WITHOUT_V1),
        Wanted(is_text("NULL"), is_text("a", ""), **_ordered("v1"), columns=Others()),
        keys=KEYED,
        policies=SCD1,
    ),
    "with deletes by text that are left out": Case(
        Shape(("v1",), among("a", ""), columns=WITHOUT_V1, without_deletes=True),
        Wanted(None, is_text("a", ""), **_ordered("v1"), columns=Others(), without_deletes=True),
        keys=KEYED,
    ),
}


@st.composite
def shaped_histories(draw: st.DrawFn, policy: str) -> tuple[str, History]:
    """The name of a case of this policy, and a history for it."""
    name = draw(st.sampled_from([name for name, case in CASES.items() if policy in case.policies]))
    case = CASES[name]
    keys = tuple(key for key in case.keys if policy == "append" or key != "none")
    history = draw(any_history(keys, first=case.first))
    return name, replace(history, shape=replace(history.shape, partitions=1)) if case.in_order else history
