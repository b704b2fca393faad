"""Rules of tables and their entries for single columns."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from replicator.domain.transform.columns import NO_COLUMN_RULE, AddedColumn, ColumnRule, ColumnTransforms, Mask, MaskKind
from replicator.ports.options import FromZero, Strict, make_value_error

from .expressions import TYPES, InvalidExpressionText, find_type, parse_expression

DROP = "drop"
FIELD = "payload."
"""The beginning of names of fields of an event's payload."""
MIN_KEY_BYTES = 16
"""Characters of a key: values that are guessed can be tried with short ones."""

Metadata = Literal["topic", "partition", "offset", "source_time", "transaction", "operation"]


def _check_type(text: str) -> str:
    if find_type(text) is None:
        known = ", ".join(("decimal(12,2)", *TYPES))
        raise make_value_error("value", f"is not a type for 'cast'; known: {known}")
    return text


def _check_name(text: str) -> str:
    if text != text.strip() or not text or any(ord(character) < 32 for character in text):
        raise make_value_error("value", "must be a column's name: not empty, no spaces around it, no control characters")
    return text


def _check_expression(text: str) -> str:
    try:
        parse_expression(text)
    except InvalidExpressionText as why:
        raise make_value_error("expression", str(why)) from None
    return text


def _check_key(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < MIN_KEY_BYTES:
        raise make_value_error(
            "value", f"must be a secret of at least {MIN_KEY_BYTES} characters, for example from `openssl rand -hex 32`"
        )
    return secret


class ColumnSettings(Strict):
    """The rule for one column of the source, or a column to add. `drop` alone can be written as `COLUMN: drop`."""

    drop: Literal[True] | None = None
    """The target does not have the column."""
    mask: MaskKind | None = None
    """Replaces the values. `nothing`: NULL. `fixed`: the `text`. `hmac`: HMAC-SHA-256 under `key`, also for key
    columns. `truncate`: the first `length` characters and a part of that HMAC."""
    key: Annotated[SecretStr, AfterValidator(_check_key)] | None = None
    """`hmac` and `truncate`: the secret key, with at least 16 characters."""
    length: FromZero | None = None
    """`truncate`: how many characters stay as they are."""
    text: str | None = None
    """`fixed`: the text that replaces all values."""
    cast: Annotated[str, AfterValidator(_check_type)] | None = None
    """The Arrow type of the column in the target, such as `int64` or `decimal(12,2)`. A change with a value that does
    not fit is rejected."""
    rename: Annotated[str, AfterValidator(_check_name)] | None = None
    """The name of the column in the target."""
    metadata: Metadata | None = None
    """Adds a column with metadata of the record."""
    constant: str | int | float | bool | None = None
    """Adds a column with the same value in every row."""
    expression: Annotated[str, AfterValidator(_check_expression)] | None = None
    """Adds a column that is computed from columns of the source, such as `concat(first, ' ', last)`."""

    @model_validator(mode="after")
    def _check_whole(self) -> ColumnSettings:
        said = self.model_fields_set
        adds, changes = said & {"metadata", "constant", "expression"}, said & {"drop", "mask", "cast", "rename"}
        if not adds and not changes:
            raise make_value_error(
                "place", "has no key for the column; write one of drop, mask, cast, rename, metadata, constant or expression"
            )
        if len(adds) > 1 or (adds and changes - {"cast"}):
            raise make_value_error(
                "contradiction", "adds a column, by one of metadata, constant and expression, and perhaps a cast"
            )
        if isinstance(self.constant, int) and not -(2**63) <= self.constant < 2**63:
            raise make_value_error("place", "has a 'constant' of more than 64 bits; write it as text, with a 'cast'")
        if "drop" in said and len(said) > 1:
            raise make_value_error("contradiction", "drops its column, so it can have no other key")
        self._refuse_mask(said)
        return self

    def _refuse_mask(self, said: set[str]) -> None:
        needed = {"hmac": {"key"}, "truncate": {"key", "length"}, "fixed": {"text"}}.get(self.mask or "", set())
        given = said & {"key", "length", "text"}
        for name in sorted(needed - given):
            raise make_value_error("place", f"needs '{name}' for 'mask: {self.mask}'")
        for name in sorted(given - needed):
            raise make_value_error("place", f"has '{name}', but only another mask uses this key")

    @property
    def is_private(self) -> bool:
        """It keeps values from being stored."""
        return self.mask is not None or self.drop is not None

    def to_mask(self) -> Mask | None:
        """Its mask."""
        if self.mask is None:
            return None
        key = self.key.get_secret_value().encode() if self.key else b""
        return Mask(self.mask, key, self.length or 0, self.text or "")

    def to_rule(self) -> ColumnRule:
        """The rule for the source's column."""
        cast = find_type(self.cast) if self.cast else None
        return ColumnRule(self.drop is not None, self.to_mask(), cast, self.rename or "")

    def to_added_column(self) -> AddedColumn | None:
        """The column to add, or None for a rule of a source column."""
        if self.metadata is None and self.constant is None and self.expression is None:
            return None
        made = parse_expression(self.expression) if self.expression is not None else None
        return AddedColumn(self.metadata or "", self.constant, find_type(self.cast) if self.cast else None, made)


def _expand_short(value: Any) -> Any:
    return {"drop": True} if value == DROP else value


ColumnRules = Annotated[
    dict[
        str,
        Annotated[ColumnSettings, BeforeValidator(_expand_short, json_schema_input_type=ColumnSettings | Literal["drop"])],
    ],
    Field(min_length=1),
]
"""By column."""


def build_column_transforms(
    rules: Mapping[str, ColumnSettings], private: Container[str], declared: Container[str] = ()
) -> ColumnTransforms:
    """The rules as a lane follows them; the columns that are `private` reach it masked. Records need not have those that are
    `declared`."""
    added = {name: found for name, rule in rules.items() if (found := rule.to_added_column()) is not None}
    changed = {name: rule.to_rule() for name, rule in rules.items() if name not in added}
    left = {n: replace(rule, mask=None) if n in private else rule for n, rule in changed.items()}
    said = ((n, replace(rule, can_be_missing=n in declared)) for n, rule in left.items() if rule != NO_COLUMN_RULE)
    return ColumnTransforms(tuple(said), tuple(added.items()))
