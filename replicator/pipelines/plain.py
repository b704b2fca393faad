"""What a program says, as the plain data that YAML would say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from replicator.settings import Origin

from .places import refused

MAX_DEPTH = 32
AS_TEXT = "import col, expr and struct from replicator.pipelines, or write text: 'id', \"operation = 'DELETE'\""


def plain(value: Any, what: str, at: Origin, depth: int = 0) -> Any:
    """`value` with mappings as dicts, sequences as lists and paths as text, each of them a new one.

    Raises ConfigError, saying where (`at`) and of `what`, for values that a config cannot hold: Columns of Spark among
    them, whose text is never guessed.
    """
    if depth > MAX_DEPTH:
        raise refused(at, "too_large", f"{what} is nested more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {_key(key, what, at): plain(item, f"{what}[{key!r}]", at, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{what}[{index}]", at, depth + 1) for index, item in enumerate(value)]
    kind = type(value).__name__
    step = AS_TEXT if kind == "Column" else "write it as text, a number, true or false, a list or a dict"
    raise refused(at, "type", f"{what} is a {kind}, which a config cannot hold", step)


def _key(key: Any, what: str, at: Origin) -> str:
    if not isinstance(key, str):
        raise refused(at, "key", f"a key in {what} is not text")
    return str(key)
