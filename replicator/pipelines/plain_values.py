"""Values of a program as the plain data of a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from replicator.settings import Origin

from .caller_origin import make_config_error

MAX_DEPTH = 32
PLAIN_HINT = "import col, expr and struct from replicator.pipelines, or write text: 'id', \"operation = 'DELETE'\""


def to_plain(value: Any, what: str, at: Origin, depth: int = 0) -> Any:
    """A copy of `value` with mappings as dicts, sequences as lists and paths as text.

    Raises ConfigError for values that a config cannot contain, such as Columns of Spark. The error names the line `at`
    and the value `what`.
    """
    if depth > MAX_DEPTH:
        raise make_config_error(at, "too_large", f"{what} is nested more than {MAX_DEPTH} levels deep")
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str | PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {
            _require_key(key, what, at): to_plain(item, f"{what}[{key!r}]", at, depth + 1) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [to_plain(item, f"{what}[{index}]", at, depth + 1) for index, item in enumerate(value)]
    kind = type(value).__name__
    step = PLAIN_HINT if kind == "Column" else "write it as text, a number, true or false, a list or a dict"
    raise make_config_error(at, "type", f"{what} is a {kind}, which a config cannot contain", step)


def _require_key(key: Any, what: str, at: Origin) -> str:
    if not isinstance(key, str):
        raise make_config_error(at, "key", f"a key in {what} is not text")
    return str(key)
