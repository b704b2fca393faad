"""Any input gives settings or findings, never another exception, and no secret is shown."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from support.settings_fixtures import WHOLE

from replicator.settings import ConfigError, load_settings
from replicator.settings.document import _split_path
from replicator.testing.contract import EXAMPLES

SECRET = "hunter2hunter2"
SCALARS = st.sampled_from(
    [None, True, 0, -1, 1.5, "", "x", SECRET, "${A}", "${A:-b}", "..", "*", "lake", "scd1", "delta", 10**30]
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["kind", "path", "x", "to"]), inner, max_size=2)
    ),
)


def paths(value: Any, path: str = "") -> list[str]:
    """Every place of the config, as `--set` spells it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [
        (f"{path}.{key}" if isinstance(key, str) and "." not in key else f'{path}."{key}"', item) for key, item in items
    ]
    return [path.lstrip("."), *(found for inner, item in below for found in paths(item, inner))][bool(not path) :]


PLACES = [place for place in paths(YAML(typ="safe", pure=True).load(WHOLE)) if _split_path(place)]


def outcome(text: str, **said: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "c.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            return repr(load_settings(file, environ={}, **said))
        except ConfigError as error:
            assert error.findings
            return str(error)


@settings(max_examples=min(60, 5 * EXAMPLES))
@given(st.lists(st.tuples(st.sampled_from(PLACES), ANYTHING), min_size=1, max_size=4))
def test_any_value_for_any_key(changes):
    shown = outcome(WHOLE, overrides=[f"{place}={json.dumps(value)}" for place, value in changes])
    in_clear = any(place.rpartition(".")[2] in ("dsn", "token") or "security" in place for place, _ in changes)
    assert not in_clear or len(changes) > 1 or SECRET not in shown


@settings(max_examples=min(60, 5 * EXAMPLES))
@given(st.integers(0, len(WHOLE)), st.integers(0, 12), st.text("{}[]:-*&!|>'\"#%@\n\t ${a", max_size=6))
def test_any_damage_to_the_text(at, length, inserted):
    outcome(WHOLE[:at] + inserted + WHOLE[at + length :])


@settings(max_examples=min(40, 5 * EXAMPLES))
@given(st.text('ab."[]01=', max_size=12))
def test_any_assignment(assignment):
    outcome(WHOLE, overrides=[assignment])
