"""Subclasses with changed members, for tests."""

from typing import Any


def override(base: type[Any], **members: Any) -> type[Any]:
    """A subclass with other members. Fails for a member that `base` does not have, for example after a rename."""
    assert not (missing := [name for name in members if not hasattr(base, name)]), f"{base.__name__} has no {missing}"
    return type(f"Changed{base.__name__}", (base,), members)
