"""What lanes are to make of changes and cannot, as far as the config alone tells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from replicator.domain.conditions import columns_of

from .conditions import condition
from .expression_problems import condition_problems
from .expressions import NoExpression
from .findings import Path, Problem, place, quoted
from .nearest import did_you_mean
from .tables import FOR_EVER, POLICIES_THAT_TRUNCATE
from .views import NO_MIRRORS, EntryView, TableView, View

LISTS = (
    *("sequence_by", "column_list", "except_column_list"),
    *("ignore_null_updates_column_list", "ignore_null_updates_except_column_list"),
)
KEEPING = ("ignore_null_updates", "ignore_null_updates_column_list", "ignore_null_updates_except_column_list")
KEEP_EVERYTHING = frozenset({"append", "scd2"})
CONDITIONS = ("apply_as_deletes", "apply_as_truncates", "where")


def shape_problems(config: View) -> Iterator[Problem]:
    """Everything wrong with what becomes of changes before their policy sees them."""
    for table, entry in config.entries():
        if config.kind(entry.sink) in NO_MIRRORS:
            continue
        yield from _without_truncates(entry)
        yield from _soft(entry)
        yield from _by_column(entry)
        yield from _without_keys(entry)
        yield from _floating_keys(table, entry)
        if table.declared is not None:
            yield from _unknown_columns(table, entry)
            yield from condition_problems(table, entry)


def _without_truncates(entry: EntryView) -> Iterator[Problem]:
    path, said = entry.shape.get("apply_as_truncates", ((), None))
    if said is not None and entry.policy is not None and entry.policy not in POLICIES_THAT_TRUNCATE:
        sentence = f"{place(path)} means nothing for {place(entry.path)}, whose policy is {quoted(entry.policy)}"
        yield Problem(path, "inapplicable", sentence, "write it in the entries with policy 'scd1' only")


def _soft(entry: EntryView) -> Iterator[Problem]:
    """Soft deletes where nothing is deleted, or beside what they do not go with."""
    path, said = entry.shape.get("deletes", ((), None))
    if said != "soft":
        return
    if entry.policy in KEEP_EVERYTHING and not (entry.policy == "append" and "deletes" in entry.said):
        sentence = f"{place(path)} says 'soft', but {place(entry.path)} has the policy {quoted(entry.policy)}"
        hint = "which keeps what was deleted anyway: write it in the entries with policy 'scd1' only"
        yield Problem(path, "contradiction", sentence, hint)
    keeps = {key: entry.shape[key] for key in KEEPING if key in entry.shape}
    if entry.policy in (None, "scd1") and keeps and keeps.get("ignore_null_updates", ((), True))[1] is not False:
        key, (other, _) = next(iter(keeps.items()))
        sentence = f"{place(path)} says 'soft', and {place(other)} says {quoted(key)}: they do not go together"
        yield Problem(path, "contradiction", sentence, "keep one")


def _by_column(entry: EntryView) -> Iterator[Problem]:
    """Sequences per column beside what they do not go with."""
    path, said = entry.shape.get("partial_updates", ((), None))
    if said != "by_column" or entry.policy not in (None, "scd1"):
        return
    unfit: dict[str, tuple[object, ...]] = {
        "deletes": ("hard", "ignore"),
        "ignore_null_updates": (False,),
        "ignore_null_updates_column_list": (),
        "ignore_null_updates_except_column_list": (),
        "tombstone_retention": (FOR_EVER,),
    }
    for key, fitting in unfit.items():
        other, value = entry.shape.get(key, ((), None))
        if value is not None and value not in fitting:
            sentence = f"{place(path)} says 'by_column', and {place(other)} says {quoted(key)}: they do not go together"
            yield Problem(path, "contradiction", sentence, "keep one")


def _without_keys(entry: EntryView) -> Iterator[Problem]:
    keys = _names(entry.shape.get("keys", ((), None))[1])
    for key in ("column_list", "except_column_list"):
        path, said = entry.shape.get(key, ((), None))
        names = _names(said)
        lost = [k for k in keys if (k in names) == (key == "except_column_list")] if names else []
        if lost:
            sentence = f"{place(path)} leaves out {quoted(lost[0])}, a key column of {place(entry.path)}"
            yield Problem(path, "contradiction", sentence, "keep the key columns")


def _floating_keys(table: TableView, entry: EntryView) -> Iterator[Problem]:
    """See `domain.policies.refuse_floating_keys`."""
    path, said = entry.shape.get("keys", ((), None))
    bad = [name for name in _names(said) if name in table.floating]
    if bad and entry.policy in (None, "scd1", "scd2"):
        sentence = f"{place(path)} names {quoted(bad[0])}, a column of floating-point numbers, by which rows cannot be told"
        yield Problem(path, "contradiction", sentence, "name another key, or write `policy: append`")


def _unknown_columns(table: TableView, entry: EntryView) -> Iterator[Problem]:
    known = table.declared or ()
    for path, name in _named(entry):
        if name not in known:
            sentence = f"{place(path)} names {quoted(name)}, which is {table.unknown}"
            hint = did_you_mean(name, known) or table.known
            yield Problem(path, "unknown_column", sentence, hint)


def _named(entry: EntryView) -> Iterable[tuple[Path, str]]:
    for key, (path, said) in entry.shape.items():
        if key in LISTS:
            yield from ((path, name) for name in _names(said))
        elif key in CONDITIONS and isinstance(said, str):
            yield from ((path, name) for name in _asked(said))


def _asked(text: str) -> Iterable[str]:
    try:
        return sorted(columns_of(condition(text)))
    except NoExpression:
        return ()  # Which is said of the value itself.


def _names(said: Any) -> list[str]:
    names = [said] if isinstance(said, str) else said if isinstance(said, list) else []
    return [name for name in names if isinstance(name, str)]
