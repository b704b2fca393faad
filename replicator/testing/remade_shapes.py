"""What lanes make of single columns, to try histories with: as the program takes it (`domain.columns`) and as the model says
it (`model_remade`)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from replicator.domain.columns import Added, Changed, Mask, Remade
from replicator.domain.expr import Call, Case, Expr, IsNull, Lit, source

from .model import Change
from .model_remade import Computing, Remaking, Unfit

SECRET = b"of these histories"
DIGEST, CUT = Mask("hmac", SECRET), Mask("truncate", SECRET, 2)
HIDDEN, GONE = Mask("fixed", text="***"), Mask("nothing")


@dataclass(frozen=True)
class Both:
    """The same, said twice. `first`: the kinds of `v1` that it suits."""

    remade: Remade
    model: Remaking
    first: tuple[str, ...] = ("text",)


def text(value: Any) -> str:
    """The text of a value that is cast, or joined with others."""
    return (
        {True: "true", False: "false"}[value]
        if isinstance(value, bool)
        else value.hex()
        if isinstance(value, bytes)
        else str(value)
    )


def clear(value: Any) -> str:
    """The text of a value that is masked: one for equal numbers, however many decimals they are written with."""
    match value:
        case Decimal():
            digits = f"{value:f}"
            return (digits.rstrip("0").rstrip(".") if "." in digits else digits) if value else "0"
        case float():
            return str(int(value)) if value.is_integer() else repr(value)
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S.%f")
        case _:
            return text(value)


def digest(value: Any) -> str:
    """The HMAC of a value's text."""
    return hmac.new(SECRET, clear(value).encode(), hashlib.sha256).hexdigest()


def small(value: int) -> int:
    """A whole number of 32 bits."""
    if not -(2**31) <= value < 2**31:
        raise Unfit
    return value


def whole(value: Decimal) -> int:
    """A whole number."""
    if value % 1:
        raise Unfit
    return int(value)


def computing(of: str, expression: Expr, value: Callable[[Mapping[str, Any]], Any], *, drop: str = "") -> Both:
    """A column that is computed of others, one of which may be left out."""
    left_out = ((drop, Changed(drop=True)),) if drop else ()
    return Both(
        Remade(left_out, (("made", Added(expression=expression)),)),
        Remaking(dropped=frozenset(filter(None, [drop])), computed={"made": Computing(frozenset(of.split()), value)}),
    )


def louder(image: Mapping[str, Any]) -> str | None:
    """`v1` in capitals, where there is a `v2`."""
    text = image.get("v1")
    return "none" if image.get("v2") is None else text and text.upper()


def thrice(image: Mapping[str, Any]) -> int | None:
    """Three times `v1`."""
    found = image.get("v1")
    if found is None or -(2**63) <= found * 3 < 2**63:
        return None if found is None else found * 3
    raise Unfit


def _place(change: Change, part: int) -> int:
    return int(change.event_id.rsplit("-", 2)[part])


def changed(name: str, rule: Changed, **model: Any) -> tuple[Remade, Remaking]:
    """One column that becomes another."""
    return Remade(changed=((name, rule),)), Remaking(**model)


CAPITALS = Call("upper", (source("v1"),))
LOUDER = Case(((IsNull(source("v2")), Lit("none")),), CAPITALS)
LABEL = Call("concat", (source("k1"), Lit("-"), source("v1")))
COMPUTED = {
    "that is computed": computing("v1", CAPITALS, lambda image: image.get("v1") and image["v1"].upper()),
    "that is computed of two": computing("v1 v2", LOUDER, louder, drop="v1"),
    "that is computed, as far as it goes": replace(
        computing("v1", Call("*", (source("v1"), Lit(3))), thrice, drop="v1"), first=("int",)
    ),
}
LABELLED = computing("k1 v1", LABEL, lambda image: f"{text(image['k1'])}-{image.get('v1') or ''}")

COLUMNS = {
    **COMPUTED,
    "without it": Both(*changed("v1", Changed(drop=True), dropped=frozenset({"v1"})), ("text", "int", "bytes")),
    "of another name": Both(*changed("v1", Changed(rename="other"), names={"v1": "other"}), ("text", "int", "bytes")),
    "of fewer bits": Both(*changed("v1", Changed(cast=pa.int32()), values={"v1": small}), ("int",)),
    "in whole numbers": Both(*changed("v1", Changed(cast=pa.int64()), values={"v1": whole}), ("money",)),
    "as text, of another name": Both(
        *changed("v1", Changed(cast=pa.string(), rename="other"), values={"v1": text}, names={"v1": "other"}),
        ("int", "truth", "day"),
    ),
    "of nothing": Both(*changed("v1", Changed(mask=GONE), values={"v1": lambda _: None}), ("text", "day")),
    "hidden": Both(*changed("v1", Changed(mask=HIDDEN), values={"v1": lambda _: "***"}), ("text", "instant")),
    "as its HMAC": Both(
        *changed("v1", Changed(mask=DIGEST), values={"v1": digest}),
        ("text", "int", "money", "truth", "bytes", "day", "double", "instant"),
    ),
    "cut short": Both(
        *changed("v1", Changed(mask=CUT), values={"v1": lambda v: f"{clear(v)[:2]}-{digest(v)[:16]}"}),
        ("text", "int", "money", "instant"),
    ),
    "beside what records say": Both(
        Remade(
            (("v1", Changed(rename="where")),),
            (
                ("at", Added("offset", cast=pa.string())),
                ("in", Added("partition")),
                ("when", Added("source_time")),
                ("region", Added(constant="EU")),
                ("what", Added("operation")),
            ),
        ),
        Remaking(
            names={"v1": "where"},
            added={
                "at": lambda change: str(_place(change, -1)),
                "in": lambda change: _place(change, -2),
                "when": lambda change: change.ts,
                "region": lambda _: "EU",
                "what": lambda change: change.op,
            },
        ),
        ("text", "int"),
    ),
}
"""Of `v1`."""

KEYS = {
    "as its HMAC, of another name": Both(
        Remade((("k1", Changed(mask=DIGEST, rename="who")), ("v1", Changed(mask=DIGEST)))),
        Remaking(values={"k1": digest, "v1": digest}, names={"k1": "who"}),
    ),
    "as text": Both(Remade((("k1", Changed(cast=pa.string())),)), Remaking(values={"k1": text})),
    "that another column is computed of": LABELLED,
    "as text, that another column is computed of": Both(
        Remade((("k1", Changed(cast=pa.string(), rename="who")),), LABELLED.remade.added),
        Remaking(values={"k1": text}, names={"k1": "who"}, computed=LABELLED.model.computed),
    ),
}
"""Of `k1`, a column of the key."""
