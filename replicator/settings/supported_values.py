"""The parts of the public contract that do not work yet. Later work flips entries here, and nowhere else in the settings.

A key or value named here is known. It is left out of the JSON Schema, and refused as "not yet supported" instead of as a
typo.
"""

from __future__ import annotations

from collections.abc import Mapping

LATER_KEYS: Mapping[str, frozenset[str]] = {}
"""By the class that declares the key."""

LATER_VALUES: Mapping[str, frozenset[str | int]] = {
    "transport": frozenset(),
}
"""By the name of the key."""

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "adl", "abfs", "abfss"})
"""Schemes of URLs that are known as paths."""

LAKE_STORES = frozenset({"s3", "s3a"})
"""The object stores that can hold the tables of a sink. Others, and any for another path, are not yet supported."""


def list_later_keys(model: type) -> frozenset[str]:
    """The keys of a settings model that are known but not yet supported, inherited ones included."""
    return frozenset().union(*(LATER_KEYS.get(base.__name__, frozenset()) for base in model.__mro__))


def is_later(key: str, value: object) -> bool:
    """The value is known for this key, and not yet supported."""
    return isinstance(value, str | int) and value in LATER_VALUES.get(key, frozenset())
