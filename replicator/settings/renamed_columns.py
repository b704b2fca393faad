"""Columns that the source gives another name: what is private of one stays so under its other name, before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from replicator.domain.transform.columns import Mask

from .columns import ColumnSettings
from .tables import PolicyKeys, TableSettings

ColumnNames = Mapping[str, frozenset[str]]
"""By column the other names that it has, or had."""
ColumnSettingsByName = Mapping[str, ColumnSettings]


def merge_names(levels: Iterable[PolicyKeys]) -> ColumnNames:
    """The renamed columns of all levels. A column is the same for every target."""
    found: dict[str, frozenset[str]] = {}
    for old, new in (pair for level in levels for pair in (level.renamed_columns or {}).items()):
        same = found.get(old, frozenset({old})) | found.get(new, frozenset({new}))
        found |= dict.fromkeys(same, same)
    return {name: same - {name} for name, same in found.items()}


def find_names(table: TableSettings, defaults: PolicyKeys) -> ColumnNames:
    """The names of the columns of a table."""
    return merge_names((defaults, table, *table.to))


def inherit_rules(rules: ColumnSettingsByName, names: ColumnNames) -> dict[str, ColumnSettings]:
    """The rules of columns. The rules of private columns are repeated for their other names. A rule for such a name counts,
    but does not make it public."""
    out = dict(rules)
    for name, rule in rules.items():
        for other in names.get(name, ()) if rule.is_private else ():
            own = rules.get(other)
            if own is None or (rule.drop and not own.is_private and own.to_added_column() is None):
                out[other] = rule
            elif not own.is_private and own.to_added_column() is None:
                out[other] = rule.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})
    return out


def find_private_columns(table: TableSettings, defaults: PolicyKeys) -> dict[str, Mask]:
    """The columns of a table whose values nothing that is stored of it holds; one that is dropped holds none."""
    names = find_names(table, defaults)
    rules = inherit_rules(table.columns or {}, names)
    return {
        name: (rule.to_mask() or Mask("nothing")).with_aliases(names.get(name, ()))
        for name, rule in rules.items()
        if rule.is_private
    }
