"""Checks the transforms of rows and columns against declared columns, keys and policies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from replicator.domain.change import is_frame_column
from replicator.domain.errors import ConfigProblem, suggest_name
from replicator.domain.expr import Cast, Expr, Lit
from replicator.domain.policy import CHANGE_POLICIES, CURRENT_ROW_POLICIES, VERSION_POLICIES
from replicator.domain.table import Column, TableSpec, is_reserved
from replicator.domain.transform.columns import METADATA, AddedColumn, ColumnRule, find_duplicates, refuse_change
from replicator.domain.transform.expressions import list_columns, refuse_condition, resolve_computed_column
from replicator.ports.options import NO_RETENTION

from .adapter_models import EVENT_COLUMNS, get_format
from .config_view import PRIVATE, ConfigView, EntryView, Rule, TableView, get_text
from .document import Path, PathProblem, describe_path, quote_name
from .expressions import InvalidExpressionText, find_type, parse_condition, parse_expression
from .tables import EXCLUSIVE_KEYS, FIELD, IGNORE_NULL_KEYS

# Checks rules for single columns, as far as the config alone shows problems.

ADDING_KEYS = frozenset({"metadata", "constant", "expression"})
HASHING_MASKS = ("hmac", "truncate")
LIST = "list<"
FLOATING_TYPES = ("double", "float", "float32", "float64")


def check_columns(config: ConfigView) -> Iterator[PathProblem]:
    """Everything wrong with `columns`."""
    if "columns" in config.levels[0].raw:  # The defaults.
        sentence = "columns in defaults would apply to every table"
        yield PathProblem(("defaults", "columns"), "inapplicable", sentence, "write them in the tables that have them")
    for table in config.tables:
        yield from _check_privacy(config, table)
        if table.of_events:
            yield from check_event_columns(table)
        yield from _check_unknown(
            table, (*table.path, "columns"), table.columns, reported=PRIVATE if table.of_events else frozenset()
        )
        yield from _check_lists(table, (*table.path, "columns"), table.columns)
        yield from check_expressions(table)
        yield from check_column_transforms(config, table)
        for entry in table.to or ():
            if config.is_mirror(entry.sink):
                yield from _check_unknown(table, (*entry.path, "columns"), entry.columns)
                yield from _check_lists(table, (*entry.path, "columns"), entry.columns)
                yield from _check_entry(table, entry)


def _is_private(rule: Rule) -> bool:
    return bool(PRIVATE & rule.keys())


def _check_privacy(config: ConfigView, table: TableView) -> Iterator[PathProblem]:
    """Masks of a table whose records could not be stored or read without the values."""
    private = [name for name, rule in table.columns.items() if _is_private(rule)]
    source = config.get_source(table)
    form = get_text(source, "format")
    if not private or form is None:
        return
    if not get_format(form).masks_values:
        path = (*table.path, "columns", private[0])
        why = f"records of the format {quote_name(form)} cannot be written without them"
        sentence = f"{describe_path(path)} keeps values out of all that is stored of the table, and {why}"
        yield PathProblem(path, "inapplicable", sentence, "write it in the 'to' entries: there it holds for their targets")
    order = source.get("sequence_columns")
    needed = [source.get("operation_column"), *(order if isinstance(order, list) else [])]
    for name in private:
        path = (*table.path, "columns", name)
        for other in sorted(table.list_names(name)):
            if other in needed:
                use = "a column with the operations or the order of the records"
                step = "use other columns for these"
            elif other == source.get("cursor_column"):
                use, step = "the 'cursor_column'", "name another one: it shows which rows are new"
            else:
                continue
            called = "" if other == name else f", called {quote_name(other)} by 'renamed_columns',"
            sentence = f"{describe_path(path)}{called} masks {use} of source {table.source!r}"
            yield PathProblem(path, "contradiction", sentence, f"write it in the 'to' entries, or {step}")


def _check_unknown(
    table: TableView, path: Path, rules: dict[str, Rule], *, reported: Collection[str] = frozenset()
) -> Iterator[PathProblem]:
    """`reported`: keys of rules that another check reports. Fields of an event's payload are no columns."""
    for name, rule in rules.items():
        if (ADDING_KEYS | set(reported)) & rule.keys() or (table.of_events and name.startswith(FIELD)):
            continue
        if table.types and name not in table.types:
            yield table.make_unknown_column((*path, name), describe_path((*path, name)), name)


def _check_lists(table: TableView, path: Path, rules: dict[str, Rule]) -> Iterator[PathProblem]:
    """See `domain.transform.typed_expressions.is_hashable`: lists are what can be declared and is not."""
    for name, rule in rules.items():
        if rule.get("mask") in HASHING_MASKS and str(table.types.get(name, "")).strip().lower().startswith(LIST):
            at = (*path, name, "mask")
            sentence = f"{describe_path(at)} masks a list, which can be written in several ways"
            yield PathProblem(at, "inapplicable", sentence, "use 'nothing' or 'fixed', or drop the column")


def _check_entry(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    """Columns that the table keeps private may only be renamed or cast, and not be asked for. Keys stay different."""
    for name, rule in entry.columns.items():
        above = table.columns.get(name, {})
        if _is_private(above) and ("drop" in above or _is_private(rule) or is_added(rule)):
            path = (*entry.path, "columns", name)
            sentence = f"{describe_path(path)} contradicts its table, which keeps the column's values private"
            yield PathProblem(path, "contradiction", sentence, "remove it here, or write it in the entries alone")
    levels = (((*table.path, "columns"), table.columns), ((*entry.path, "columns"), entry.columns))
    for key in _to_names(entry.get_value("keys")):
        names = sorted(table.list_names(key))
        for path, rule in (((*path, name), columns[name]) for path, columns in levels for name in names if name in columns):
            if "drop" in rule or rule.get("mask", "hmac") != "hmac":
                sentence = f"{describe_path(path)} removes what identifies rows: {quote_name(key)} is a key column"
                yield PathProblem(path, "contradiction", sentence, "use 'mask: hmac', which keeps keys different")
    for path, named in _list_named_columns(entry, ("sequence_by",)):
        for name in sorted(table.private.intersection(named)):
            sentence = f"{describe_path(path)} asks for {quote_name(name)}, whose values its table keeps private"
            step = "ask for another column, or write the mask in the 'to' entries"
            yield PathProblem(path, "contradiction", sentence, step)


def _list_named_columns(entry: EntryView, list_keys: Collection[str]) -> Iterator[tuple[Path, list[str]]]:
    """The columns that each of the keys `list_keys` names, and each condition."""
    for key, (path, setting) in entry.nearest.items():
        if key in list_keys:
            yield path, _to_names(setting)
        elif key in CONDITIONS:
            condition = _parse(setting, parse_condition)
            yield path, [] if condition is None else sorted(list_columns(condition))


# Checks the results of `columns` that no target can have: names that exist already, and impossible casts.

LISTS = EXCLUSIVE_KEYS[0]


def check_column_transforms(config: ConfigView, table: TableView) -> Iterator[PathProblem]:
    """Find the problems that would stop lanes at their first record."""
    reported: set[tuple[Path, str]] = set()
    for entry in table.to or ():
        if not config.is_mirror(entry.sink):
            continue
        for problem in (*_check_names(table, entry), *_check_casts(table, entry)):
            if (problem.path, problem.message) not in reported:
                reported.add((problem.path, problem.message))
                yield problem


def list_rules(table: TableView, entry: EntryView) -> dict[str, tuple[Path, Rule]]:
    """The rule of each column, with its path. The rule of the entry wins over the rule of its table."""
    levels = ((table.path, table.columns), (entry.path, entry.columns))
    return {name: ((*path, "columns", name), rule) for path, rules in levels for name, rule in rules.items()}


def _check_names(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    """Find two columns with one name, and names of columns that targets have in addition to the source's."""
    rules = list_rules(table, entry)
    now = {name: get_new_name(name, rule) for name, (_, rule) in rules.items()}
    others = [name for name in table.types if name not in rules and is_selected(entry, name)]
    own = [*others, *(name for name, (_, rule) in rules.items() if not is_added(rule))]
    twice = {name.casefold() for name in find_duplicates([*filter(None, now.values()), *others], own)}
    for name, (path, rule) in rules.items():
        new_name = now[name]
        if new_name and (is_added(rule) or new_name != name):
            at = (*path, "rename") if new_name != name else path
            if is_reserved(new_name) or is_frame_column(new_name):
                sentence = (
                    f"{describe_path(at)} gives a column the name {quote_name(new_name)}, which replicator keeps for itself"
                )
                yield PathProblem(at, "reserved_name", sentence, "choose another name")
            elif new_name.casefold() in twice:
                sentence = f"{describe_path(at)} makes another column of the name {quote_name(new_name)}"
                yield PathProblem(at, "contradiction", sentence, "choose another name")


def get_new_name(name: str, rule: Rule) -> str:
    """The name that the target has; empty for none."""
    renamed = rule.get("rename")
    return "" if "drop" in rule else renamed if isinstance(renamed, str) else name


def is_added(rule: Rule) -> bool:
    """True if the rule adds a column to the source's own."""
    return bool(ADDING_KEYS & rule.keys())


def is_selected(entry: EntryView, name: str) -> bool:
    """The lists of columns of the entry have the column."""
    for key in LISTS:
        names = entry.get_value(key)
        if isinstance(names, list):
            return (name in names) == (key == "column_list")
    return True


def _check_casts(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    """Casts that no value of a known type survives."""
    types = get_declared_table(table)
    for name, (path, rule) in list_rules(table, entry).items():
        into = find_type(rule["cast"]) if isinstance(rule.get("cast"), str) else None
        if into is None:
            continue
        try:
            if is_added(rule):
                _refuse_added(name, rule, into, types or TableSpec(table.match or "", ()))
            elif types is not None and name in types.column_names:
                is_masked = rule.get("mask", "nothing") != "nothing"
                column = Column(name, pa.string()) if is_masked else types.column(name)
                refuse_change(ColumnRule(cast=into), column, types)
        except ConfigProblem as why:
            at = (*path, "cast")
            yield PathProblem(at, "cast", f"{describe_path(at)}: {why.sentence}", why.next_step)


def _refuse_added(name: str, rule: Rule, into: pa.DataType, table: TableSpec) -> None:
    if rule.get("metadata") in METADATA:
        AddedColumn(metadata=rule["metadata"], cast=into).get_type(name, table)
    elif isinstance(rule.get("constant"), str | int | float):
        AddedColumn(constant=rule["constant"], cast=into).get_type(name, table)
    expression = _parse(rule.get("expression"), parse_expression)
    if expression is not None and not list_columns(expression) <= set(table.column_names):
        # Its type is only known if it ends in a cast. Any value of that type stands for it.
        expression = Cast(Lit(None), expression.type) if isinstance(expression, Cast) else None
    if expression is not None:
        AddedColumn(expression=expression, cast=into).get_type(name, table)


# Checks rules for the columns of an outbox's events, which are fixed, and for the fields of their payloads.

ROUTING_COLUMNS = ("aggregatetype", "event_offset")
MASK_KEYS = frozenset({*PRIVATE, "key", "length", "text"})


def check_event_columns(table: TableView) -> Iterator[PathProblem]:
    """Everything wrong with `columns` of a table of events, as far as it is about what is private."""
    for name, rule in table.columns.items():
        path, is_field = (*table.path, "columns", name), name.startswith(FIELD)
        if is_field and not rule.keys() <= MASK_KEYS:
            sentence = (
                f"{describe_path(path)} names a field of the payload, which can be masked or dropped, and nothing else"
            )
            yield PathProblem(path, "inapplicable", sentence, "say 'drop', or a mask alone")
        if is_field or not _is_private(rule):
            continue
        if name not in EVENT_COLUMNS:
            sentence = f"{describe_path(path)} is no column of an outbox's events"
            hint = suggest_name(name, EVENT_COLUMNS) or f"a field of the payload is called {quote_name(FIELD + name)}"
            yield PathProblem(path, "unknown_column", sentence, hint)
        if table.list_names(name).intersection(ROUTING_COLUMNS):
            sentence = f"{describe_path(path)} masks a column that decides the table or the order of an event"
            yield PathProblem(path, "contradiction", sentence, "write it in the 'to' entries")
        elif "payload" in table.list_names(name) and rule.get("mask", "nothing") != "nothing":
            sentence = f"{describe_path(path)} makes something else of the payload than JSON, so that no event could be read"
            yield PathProblem(path, "contradiction", sentence, f"use 'drop', or mask its fields: {FIELD}NAME")
    for entry in table.to or ():
        for path in ((*entry.path, "columns", name) for name in entry.columns if name.startswith(FIELD)):
            sentence = f"{describe_path(path)} names a field of the payload, which targets have as a whole"
            step = "write it in 'columns' of the table: it holds for all that is stored"
            yield PathProblem(path, "inapplicable", sentence, step)


# Checks row transforms of lanes, as far as the config alone shows problems.

LIST_KEYS = ("sequence_by", *LISTS, *IGNORE_NULL_KEYS[1:])
CONDITIONS = ("apply_as_deletes", "apply_as_truncates", "where")


def check_row_transforms(config: ConfigView) -> Iterator[PathProblem]:
    """Everything wrong with what becomes of changes before their policy sees them."""
    for table, entry in config.list_entries():
        if not config.is_mirror(entry.sink):
            continue
        yield from _check_deletes(entry)
        yield from _check_column_versions(entry)
        yield from _check_keys(table, entry)
        for path, names in _list_named_columns(entry, LIST_KEYS) if table.types else ():
            for name in (name for name in names if name not in table.types):
                yield table.make_unknown_column(path, f"{describe_path(path)} names {quote_name(name)}, which", name)
        yield from check_conditions(table, entry)


def _check_deletes(entry: EntryView) -> Iterator[PathProblem]:
    """Find truncates and soft deletes that the policy does not have, and keys that exclude soft deletes."""
    path, setting = entry.find("apply_as_truncates")
    if setting is not None and entry.policy not in CURRENT_ROW_POLICIES:
        sentence = (
            f"{describe_path(path)} means nothing for {describe_path(entry.path)}, whose policy is "
            f"{quote_name(entry.policy)}"
        )
        yield PathProblem(path, "inapplicable", sentence, "write it in the entries with policy 'scd1' only")
    path, setting = entry.find("deletes")
    if setting != "soft":
        return
    if entry.policy in VERSION_POLICIES or (entry.policy in CHANGE_POLICIES and "deletes" not in entry.raw):
        sentence = (
            f"{describe_path(path)} says 'soft', but {describe_path(entry.path)} has the policy {quote_name(entry.policy)}"
        )
        hint = "this policy always keeps deleted rows: write 'deletes: soft' only in entries with policy 'scd1'"
        yield PathProblem(path, "contradiction", sentence, hint)
    keeps = {key: entry.nearest[key] for key in IGNORE_NULL_KEYS if key in entry.nearest}
    if entry.policy in CURRENT_ROW_POLICIES and keeps and keeps.get("ignore_null_updates", ((), True))[1] is not False:
        key, (other, _) = next(iter(keeps.items()))
        sentence = (
            f"{describe_path(path)} says 'soft', and {describe_path(other)} says {quote_name(key)}: they do not go together"
        )
        yield PathProblem(path, "contradiction", sentence, "keep one")


def _check_column_versions(entry: EntryView) -> Iterator[PathProblem]:
    """Find sequences per column with keys that exclude them."""
    path, setting = entry.find("partial_updates")
    if setting != "by_column" or entry.policy not in CURRENT_ROW_POLICIES:
        return
    unfit: dict[str, tuple[object, ...]] = {
        "deletes": ("hard", "ignore"),
        "ignore_null_updates": (False,),
        "ignore_null_updates_column_list": (),
        "ignore_null_updates_except_column_list": (),
        "tombstone_retention": (NO_RETENTION,),
    }
    for key, fitting in unfit.items():
        other, value = entry.find(key)
        if value is not None and value not in fitting:
            sentence = (
                f"{describe_path(path)} says 'by_column', and {describe_path(other)} says "
                f"{quote_name(key)}: they do not go together"
            )
            yield PathProblem(path, "contradiction", sentence, "keep one")


def _check_keys(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    keys = _to_names(entry.get_value("keys"))
    for key in ("column_list", "except_column_list"):
        path, setting = entry.find(key)
        names = _to_names(setting)
        lost = [k for k in keys if (k in names) == (key == "except_column_list")] if names else []
        if lost:
            sentence = f"{describe_path(path)} leaves out {quote_name(lost[0])}, a key column of {describe_path(entry.path)}"
            yield PathProblem(path, "contradiction", sentence, "keep the key columns")
    # See `domain.policy.policies.refuse_floating_keys`.
    path, setting = entry.find("keys")
    bad = [name for name in _to_names(setting) if str(table.types.get(name)).strip().lower() in FLOATING_TYPES]
    if bad and entry.policy in CURRENT_ROW_POLICIES | VERSION_POLICIES:
        sentence = (
            f"{describe_path(path)} names {quote_name(bad[0])}, a column of floating-point numbers, which "
            f"cannot identify rows"
        )
        yield PathProblem(path, "contradiction", sentence, "name another key, or write `policy: append`")


def _to_names(setting: Any) -> list[str]:
    names = [setting] if isinstance(setting, str) else setting if isinstance(setting, list) else []
    return [name for name in names if isinstance(name, str)]


# Checks expressions and conditions, as far as the config alone shows problems. With declared columns, also types.


def check_expressions(table: TableView) -> Iterator[PathProblem]:
    """Everything wrong with the expressions of a table."""
    for path, expression in _list_expressions((*table.path, "columns"), table.columns):
        yield from _check_expression(table, path, expression)
    for entry in table.to or ():
        own = list(_list_expressions((*entry.path, "columns"), entry.columns))
        for path, expression in own:
            yield from _check_expression(table, path, expression)
        for path, expression in (*own, *_list_expressions((*table.path, "columns"), table.columns)):
            yield from _check_lane_expression(table, entry, path, expression)


def check_conditions(table: TableView, entry: EntryView) -> Iterator[PathProblem]:
    """Conditions that make no sense for the columns that the config declares, all of which they name."""
    for key in CONDITIONS:
        path, setting = entry.find(key)
        condition = _parse(setting, parse_condition)
        types = get_declared_table(table)
        if condition is not None and types is not None and list_columns(condition) <= set(types.column_names):
            yield from _check_types(path, partial(refuse_condition, condition, types, key))


def _list_expressions(path: Path, rules: dict[str, Rule]) -> Iterator[tuple[Path, Expr]]:
    for name, rule in rules.items():
        expression = _parse(rule.get("expression"), parse_expression)
        if expression is not None:
            yield (*path, name), expression


def _parse(text: object, reader: Callable[[str], Expr]) -> Expr | None:
    try:
        return reader(text) if isinstance(text, str) else None
    except InvalidExpressionText:
        return None  # Which is said of the value itself.


def _check_expression(table: TableView, path: Path, expression: Expr) -> Iterator[PathProblem]:
    for name in sorted(list_columns(expression) & table.private):
        sentence = f"{describe_path(path)} is computed from {quote_name(name)}, whose values its table keeps private"
        yield PathProblem(
            path,
            "contradiction",
            sentence,
            "write the mask or the drop in the 'to' entries, or compute it from other columns",
        )
    unknown = sorted(list_columns(expression) - table.types.keys()) if table.types else []
    for name in unknown:
        yield table.make_unknown_column(path, f"{describe_path(path)} names {quote_name(name)}, which", name)
    types = get_declared_table(table)
    if types is not None and not unknown:
        yield from _check_types(path, partial(resolve_computed_column, str(path[-1]), expression, types))


def get_declared_table(table: TableView) -> TableSpec | None:
    """The table as the config declares it; None where it does not, or by types of its format alone."""
    types = [(name, find_type(str(kind))) for name, kind in table.types.items()]
    columns = [Column(name, kind) for name, kind in types if kind is not None]
    return TableSpec(table.match or "", tuple(columns)) if len(columns) == len(types) > 0 else None


def _check_types(path: Path, ask: Callable[[], object]) -> Iterator[PathProblem]:
    try:
        ask()
    except ConfigProblem as why:
        yield PathProblem(path, "expression", f"{describe_path(path)}: {why.sentence}", why.next_step)


def _check_lane_expression(table: TableView, entry: EntryView, path: Path, expression: Expr) -> Iterator[PathProblem]:
    """Refuse a column that shows the values of a column that the target masks, or that needs several columns of a partial
    change: see `domain.transform.columns.ColumnTransforms`."""
    for name in sorted(list_columns(expression)):
        rule = {**table.columns, **entry.columns}.get(name, {})
        if "mask" in rule and "mask" not in table.columns.get(name, {}):
            sentence = (
                f"{describe_path(path)} is computed from {quote_name(name)}, but this column is masked by "
                f"{describe_path((*entry.path, 'columns', name))}"
            )
            yield PathProblem(path, "contradiction", sentence, "compute it from other columns, or leave one of the two out")
    keys = _to_names(entry.get_value("keys"))
    if entry.get_value("partial_updates") == "by_column" and keys and len(list_columns(expression).difference(keys)) > 1:
        sentence = (
            f"{describe_path(path)} is computed from several columns, but with 'by_column' one change may lack some of them"
        )
        yield PathProblem(path, "contradiction", sentence, "compute it from one column, or remove 'partial_updates'")
