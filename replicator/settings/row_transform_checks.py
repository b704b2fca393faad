"""Checks row transforms of lanes, as far as the config alone shows problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from replicator.domain.errors import ConfigProblem, suggest_name
from replicator.domain.policy import CHANGE_POLICIES, CURRENT_ROW_POLICIES, VERSION_POLICIES
from replicator.domain.policy.expr import Expr
from replicator.domain.table import Column, TableSpec
from replicator.domain.transform.expressions import list_columns, refuse_condition, resolve_computed_column
from replicator.ports.options import NO_RETENTION

from .config_view import ConfigView, EntryView, Rule, TableView
from .expressions import InvalidExpressionText, find_type, parse_condition, parse_expression
from .findings import Path, PathProblem, describe_path, quote_name

LIST_KEYS = (
    *("sequence_by", "column_list", "except_column_list"),
    *("ignore_null_updates_column_list", "ignore_null_updates_except_column_list"),
)
IGNORE_NULL_KEYS = ("ignore_null_updates", "ignore_null_updates_column_list", "ignore_null_updates_except_column_list")
CONDITIONS = ("apply_as_deletes", "apply_as_truncates", "where")


def check_row_transforms(config: ConfigView) -> Iterator[PathProblem]:
    """Everything wrong with what becomes of changes before their policy sees them."""
    for table, entry in config.list_entries():
        if not config.is_mirror(entry.sink):
            continue
        yield from _check_truncates(entry)
        yield from _check_soft_deletes(entry)
        yield from _check_column_versions(entry)
        yield from _check_key_columns(entry)
        yield from _check_floating_keys(table, entry)
        if table.declared is not None:
            yield from _check_unknown_columns(table, entry)
            yield from check_conditions(table, entry)


def _check_truncates(entry: EntryView) -> Iterator[PathProblem]:
    path, said = entry.row_transforms.get("apply_as_truncates", ((), None))
    if said is not None and entry.policy not in CURRENT_ROW_POLICIES:
        sentence = (
            f"{describe_path(path)} means nothing for {describe_path(entry.path)}, whose policy is "
            f"{quote_name(entry.policy)}"
        )
        yield PathProblem(path, "inapplicable", sentence, "write it in the entries with policy 'scd1' only")


def _check_soft_deletes(entry: EntryView) -> Iterator[PathProblem]:
    """Find soft deletes for a policy without deletes, or with keys that exclude them."""
    path, said = entry.row_transforms.get("deletes", ((), None))
    if said != "soft":
        return
    if entry.policy in VERSION_POLICIES or (entry.policy in CHANGE_POLICIES and "deletes" not in entry.keys):
        sentence = (
            f"{describe_path(path)} says 'soft', but {describe_path(entry.path)} has the policy {quote_name(entry.policy)}"
        )
        hint = "this policy always keeps deleted rows: write 'deletes: soft' only in entries with policy 'scd1'"
        yield PathProblem(path, "contradiction", sentence, hint)
    keeps = {key: entry.row_transforms[key] for key in IGNORE_NULL_KEYS if key in entry.row_transforms}
    if entry.policy in CURRENT_ROW_POLICIES and keeps and keeps.get("ignore_null_updates", ((), True))[1] is not False:
        key, (other, _) = next(iter(keeps.items()))
        sentence = (
            f"{describe_path(path)} says 'soft', and {describe_path(other)} says {quote_name(key)}: they do not go together"
        )
        yield PathProblem(path, "contradiction", sentence, "keep one")


def _check_column_versions(entry: EntryView) -> Iterator[PathProblem]:
    """Find sequences per column with keys that exclude them."""
    path, said = entry.row_transforms.get("partial_updates", ((), None))
    if said != "by_column" or entry.policy not in CURRENT_ROW_POLICIES:
        return
    unfit: dict[str, tuple[object, ...]] = {
        "deletes": ("hard", "ignore"),
        "ignore_null_updates": (False,),
        "ignore_null_updates_column_list": (),
        "ignore_null_updates_except_column_list": (),
        "tombstone_retention": (NO_RETENTION,),
    }
    for key, fitting in unfit.items():
        other, value = entry.row_transforms.get(key, ((), None))
        if value is not None and value not in fitting:
            sentence = (
                f"{describe_path(path)} says 'by_column', and {describe_path(other)} says "
                f"{quote_name(key)}: they do not go together"
            )
            yield PathProblem(path, "contradiction", sentence, "keep one")


def _check_key_columns(entry: EntryView) -> Iterator[PathProblem]:
    keys = _to_names(entry.row_transforms.get("keys", ((), None))[1])
    for key in ("column_list", "except_column_list"):
        path, said = entry.row_transforms.get(key, ((), None))
        names = _to_names(said)
        lost = [k for k in keys if (k in names) == (key == "except_column_list")] if names else []
        if lost:
            sentence = f"{describe_path(path)} leaves out {quote_name(lost[0])}, a key column of {describe_path(entry.path)}"
            yield PathProblem(path, "contradiction", sentence, "keep the key columns")


def _check_floating_keys(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    """See `domain.policy.policies.refuse_floating_keys`."""
    path, said = entry.row_transforms.get("keys", ((), None))
    bad = [name for name in _to_names(said) if name in table.floating]
    if bad and entry.policy in CURRENT_ROW_POLICIES | VERSION_POLICIES:
        sentence = (
            f"{describe_path(path)} names {quote_name(bad[0])}, a column of floating-point numbers, which "
            f"cannot identify rows"
        )
        yield PathProblem(path, "contradiction", sentence, "name another key, or write `policy: append`")


def _check_unknown_columns(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    known = table.declared or ()
    for path, name in _list_named_columns(entry):
        if name not in known:
            sentence = f"{describe_path(path)} names {quote_name(name)}, which is {table.unknown}"
            hint = suggest_name(name, known) or table.known
            yield PathProblem(path, "unknown_column", sentence, hint)


def _list_named_columns(entry: EntryView) -> Iterable[tuple[Path, str]]:
    for key, (path, said) in entry.row_transforms.items():
        if key in LIST_KEYS:
            yield from ((path, name) for name in _to_names(said))
        elif key in CONDITIONS and isinstance(said, str):
            yield from ((path, name) for name in _list_condition_columns(said))


def _list_condition_columns(text: str) -> Iterable[str]:
    try:
        return sorted(list_columns(parse_condition(text)))
    except InvalidExpressionText:
        return ()  # Which is said of the value itself.


def _to_names(said: Any) -> list[str]:
    names = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    return [name for name in names if isinstance(name, str)]


# Checks expressions and conditions, as far as the config alone shows problems. With declared columns, also types.


def check_expressions(table: TableView) -> Iterator[PathProblem]:
    """Everything wrong with the expressions of a table."""
    for path, made in _list_expressions((*table.path, "columns"), table.columns):
        yield from _check_expression(table, path, made)
    for entry in table.to or ():
        own = list(_list_expressions((*entry.path, "columns"), entry.columns))
        for path, made in own:
            yield from _check_expression(table, path, made)
        for path, made in (*own, *_list_expressions((*table.path, "columns"), table.columns)):
            yield from _check_masked(table, entry, path, made)
            yield from _check_partly_sent(entry, path, made)


def check_conditions(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    """Conditions that make no sense for the columns that the config declares, all of which they name."""
    for key in CONDITIONS:
        path, said = entry.row_transforms.get(key, ((), None))
        made = _parse(said, parse_condition)
        types = get_declared_table(table)
        if made is not None and types is not None and list_columns(made) <= set(types.column_names):
            yield from _check_types(path, partial(refuse_condition, made, types, key))


def _list_expressions(path: Path, rules: dict[str, Rule]) -> Iterator[tuple[Path, Expr]]:
    for name, rule in rules.items():
        made = _parse(rule.get("expression"), parse_expression)
        if made is not None:
            yield (*path, name), made


def _parse(said: object, reader: Callable[[str], Expr]) -> Expr | None:
    try:
        return reader(said) if isinstance(said, str) else None
    except InvalidExpressionText:
        return None  # Which is said of the value itself.


def _check_expression(table: TableView, path: Path, made: Expr) -> Iterator[PathProblem]:
    for name in sorted(list_columns(made) & table.private):
        sentence = f"{describe_path(path)} is computed from {quote_name(name)}, whose values its table keeps private"
        yield PathProblem(
            path,
            "contradiction",
            sentence,
            "write the mask or the drop in the 'to' entries, or compute it from other columns",
        )
    if table.declared is None:
        return
    unknown = sorted(list_columns(made) - set(table.declared))
    for name in unknown:
        sentence = f"{describe_path(path)} names {quote_name(name)}, which is {table.unknown}"
        hint = suggest_name(name, table.declared) or table.known
        yield PathProblem(path, "unknown_column", sentence, hint)
    types = get_declared_table(table)
    if types is not None and not unknown:
        yield from _check_types(path, partial(resolve_computed_column, str(path[-1]), made, types))


def get_declared_table(table: TableView) -> TableSpec | None:
    """The table as the config declares it; None where it does not, or by types of its format alone."""
    found = [(name, find_type(str(kind))) for name, kind in table.types.items()]
    columns = [Column(name, kind) for name, kind in found if kind is not None]
    return TableSpec(table.match or "", tuple(columns)) if len(columns) == len(found) > 0 else None


def _check_types(path: Path, ask: Callable[[], object]) -> Iterator[PathProblem]:
    try:
        ask()
    except ConfigProblem as why:
        yield PathProblem(path, "expression", f"{describe_path(path)}: {why.sentence}", why.next_step)


def _check_masked(table: TableView, entry: EntryView, path: Path, made: Expr) -> Iterator[PathProblem]:
    """Refuse a column that would show the values of a column that the target masks."""
    for name in sorted(list_columns(made)):
        rule = {**table.columns, **entry.columns}.get(name, {})
        if "mask" in rule and "mask" not in table.columns.get(name, {}):
            sentence = (
                f"{describe_path(path)} is computed from {quote_name(name)}, but this column is masked by "
                f"{describe_path((*entry.path, 'columns', name))}"
            )
            yield PathProblem(path, "contradiction", sentence, "compute it from other columns, or leave one of the two out")


def _check_partly_sent(entry: EntryView, path: Path, made: Expr) -> Iterator[PathProblem]:
    """See `domain.transform.columns.ColumnTransforms`."""
    said, keys = (entry.row_transforms.get(key, ((), None)) for key in ("partial_updates", "keys"))
    of = list_columns(made) - set(keys[1] if isinstance(keys[1], list) else ())
    if said[1] == "by_column" and isinstance(keys[1], list) and len(of) > 1:
        sentence = (
            f"{describe_path(path)} is computed from several columns, but with 'by_column' one change may lack some of them"
        )
        yield PathProblem(path, "contradiction", sentence, "compute it from one column, or remove 'partial_updates'")
