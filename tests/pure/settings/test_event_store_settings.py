"""`event_store` and `serve`."""

from __future__ import annotations

import pytest

from replicator.settings import ConfigError
from replicator.settings.schema import to_plain_options


def test_locations_of_the_event_store(folder):
    assert folder.load().settings.event_store is None
    lake = folder.load(overrides=["event_store={path: ./events, compact_every: 0}"]).settings.event_store
    assert to_plain_options(lake) == {"path": str(folder.root / "events"), "compact_every": 0}
    said = "event_store={dsn: 'postgresql://u:s3cr3t@h/d', schema: s, table: t}"
    settings = folder.load(overrides=[said]).settings
    assert to_plain_options(settings.event_store) == {"dsn": "postgresql://u:s3cr3t@h/d", "schema": "s", "table": "t"}
    assert "s3cr3t" not in repr(settings) + settings.model_dump_json()


def test_serve(folder):
    assert folder.load().settings.serve.address == "127.0.0.1:8091"
    settings = folder.load(overrides=["serve={address: '0.0.0.0:80', token: s3cr3t}"]).settings
    asked = {"address": "0.0.0.0:80", "token": "s3cr3t"}
    assert to_plain_options(settings.serve) == {**asked, "max_rows": 10_000, "query_timeout": "30 seconds"}
    assert "s3cr3t" not in repr(settings) + settings.model_dump_json()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("event_store={}", "place"),
        ("event_store={path: ./e, dsn: 'postgresql://u@h/d'}", "place"),
        ("event_store={path: ./e, schema: s}", "inapplicable"),
        ("event_store={path: ./e, table: s}", "inapplicable"),
        ("event_store={dsn: 'postgresql://u@h/d', compact_every: 1}", "inapplicable"),
        ("event_store={path: ../e}", "path_escapes"),
        ("event_store={pat: ./e}", "unknown_key"),
        ("event_store={path: ./lake}", "same_place"),
        ("event_store={path: ./e, storage: {region: x}}", "inapplicable"),
        ("serve={address: nowhere}", "server"),
        ("serve={tokens: x}", "unknown_key"),
    ],
)
def test_invalid_options_are_refused(folder, said, code):
    with pytest.raises(ConfigError) as refused:
        folder.load(overrides=[said])
    assert code in {finding.code for finding in refused.value.findings}, refused.value
