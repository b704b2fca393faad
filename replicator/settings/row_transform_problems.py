"""Checks row transforms of lanes, as far as the config alone shows problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from replicator.domain.policy.policy_names import CHANGE_POLICIES, CURRENT_ROW_POLICIES, VERSION_POLICIES
from replicator.domain.suggestions import suggest_name
from replicator.domain.transform.expressions import list_columns

from .conditions import parse_condition
from .config_view import NON_MIRROR_KINDS, ConfigView, EntryView, TableView
from .expression_problems import check_conditions
from .expressions import InvalidExpressionText
from .findings import Path, PathProblem, describe_path, quote_name
from .tables import NO_RETENTION

LIST_KEYS = (
    *("sequence_by", "column_list", "except_column_list"),
    *("ignore_null_updates_column_list", "ignore_null_updates_except_column_list"),
)
IGNORE_NULL_KEYS = ("ignore_null_updates", "ignore_null_updates_column_list", "ignore_null_updates_except_column_list")
CONDITIONS = ("apply_as_deletes", "apply_as_truncates", "where")


def check_row_transforms(config: ConfigView) -> Iterator[PathProblem]:
    """Everything wrong with what becomes of changes before their policy sees them."""
    for table, entry in config.list_entries():
        if config.get_kind(entry.sink) in NON_MIRROR_KINDS:
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
