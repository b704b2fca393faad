"""Columns that the source gives another name: what is private of one stays so under its other name, before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from replicator.domain.columns import Mask

from .columns import ColumnSettings
from .tables import PolicyKeys, TableSettings

Names = Mapping[str, frozenset[str]]
"""By column the other names that it has, or had."""
Rules = Mapping[str, ColumnSettings]


def names_of(levels: Iterable[PolicyKeys]) -> Names:
    """What all of the levels declare to be renamed: a column is the same one for every target."""
    found: dict[str, frozenset[str]] = {}
    for old, new in (pair for level in levels for pair in (level.renamed_columns or {}).items()):
        same = found.get(old, frozenset({old})) | found.get(new, frozenset({new}))
        found |= dict.fromkeys(same, same)
    return {name: same - {name} for name, same in found.items()}


def names_in(table: TableSettings, defaults: PolicyKeys) -> Names:
    """Those of the columns of a table."""
    return names_of((defaults, table, *table.to))


def inherited(rules: Rules, names: Names) -> dict[str, ColumnSettings]:
    """The rules of columns, with those of private ones for their other names too. What is said of such a name itself counts,
    but does not make it public."""
    out = dict(rules)
    for name, rule in rules.items():
        for other in names.get(name, ()) if rule.is_private else ():
            own = rules.get(other)
            if own is None or (rule.drop and not own.is_private and own.added() is None):
                out[other] = rule
            elif not own.is_private and own.added() is None:
                out[other] = rule.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})
    return out


def private_columns(table: TableSettings, defaults: PolicyKeys) -> dict[str, Mask]:
    """The columns of a table whose values nothing that is stored of it holds; one that is dropped holds none."""
    names = names_in(table, defaults)
    rules = inherited(table.columns or {}, names)
    return {
        name: (rule.masking() or Mask("nothing")).of_names(names.get(name, ()))
        for name, rule in rules.items()
        if rule.is_private
    }
