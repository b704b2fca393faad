"""`transactions` of a source: options, and what is passed to the pipeline."""

from __future__ import annotations

import pytest

from replicator.ports.components import TransactionRules
from replicator.wiring import adapters, build

TOPICS = 'topics: ["cdc.public.*"]'


def with_transactions(folder, said, topics='["cdc.public.*", cdc.transaction]'):
    text = folder.file.read_text()
    assert TOPICS in text
    folder.write(text.replace(TOPICS, f"topics: {topics}\n    transactions: {said}", 1))


def test_settings_are_passed_to_the_pipeline_only(folder):
    with_transactions(folder, '{topic: cdc.transaction, max_transaction_bytes: 1MiB, patience: "2 minutes"}')
    loaded = folder.load()
    (name,) = [name for name, source in loaded.settings.sources.items() if source.transactions]
    assert build.build_transaction_rules(loaded, name) == TransactionRules("cdc.transaction", 1 << 20, 120.0)
    assert "transactions" not in adapters.list_options(loaded.settings.sources[name])


def test_sources_without_the_option_have_no_transaction_rules(folder):
    loaded = folder.load()
    assert {build.build_transaction_rules(loaded, name) for name in loaded.settings.sources} == {None}


def test_transaction_topic_must_be_among_the_topics(folder):
    with_transactions(folder, "{topic: cdc.transaction}", '["cdc.public.*"]')
    finding = folder.only()
    assert "does not read topic 'cdc.transaction'" in finding.message and "topics" in str(finding)


def test_spark_publishes_the_watermark_only(folder):
    with_transactions(folder, "{topic: cdc.transaction}")
    loaded = folder.load(overrides=["engine=spark"])
    (name,) = [name for name, source in loaded.settings.sources.items() if source.transactions]
    assert build.build_transaction_rules(loaded, name) == TransactionRules("cdc.transaction", 64 << 20, 60.0, together=False)


def test_spark_refuses_limits_of_held_transactions(folder):
    with_transactions(folder, "{topic: cdc.transaction, max_transaction_bytes: 1MiB}")
    found = folder.findings(overrides=["engine=spark"])
    assert any("nothing of a transaction is held back" in f.message for f in found)


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("{}", "topic"),
        ("{topic: ''}", "topic"),
        ("{topic: t, patience: soon}", "patience"),
        ("{topic: t, max_bytes: 1}", "max_bytes"),
        ("cdc.transaction", "must be a mapping"),
    ],
)
def test_invalid_options_are_refused(folder, said, key):
    with_transactions(folder, said, '["cdc.public.*", t]')
    assert any(key in finding.message for finding in folder.findings())
