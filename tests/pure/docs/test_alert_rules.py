"""The alert rules of docs/how-to/monitor-and-alert.md: their form, and that they name metrics that the program has."""

from __future__ import annotations

import re

from paths import PROJECT
from ruamel.yaml import YAML

from adapters.observability.prometheus import PrometheusTelemetry

PAGE = (PROJECT / "docs" / "how-to" / "monitor-and-alert.md").read_text()
[RULES] = re.findall(r'```yaml title="replicator.rules.yml"\n(.*?)```', PAGE, re.DOTALL)
[SCRAPE] = re.findall(r'```yaml title="prometheus.yml"\n(.*?)```', PAGE, re.DOTALL)


def test_alert_rules_have_the_form_of_prometheus():
    [group] = YAML(typ="safe").load(RULES)["groups"]
    assert set(group) == {"name", "rules"}
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert re.fullmatch(r"[A-Za-z]+", rule["alert"]) and re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_the_page_names_metrics_that_exist():
    metrics = set(re.findall(r"^# TYPE (\w+)", PrometheusTelemetry().text().decode(), re.MULTILINE))
    named = set(re.findall(r"\breplicator_[a-z_]+", PAGE))
    assert len(named) >= 5
    assert named - metrics == set()


def test_rules_and_scrape_config_agree():
    scrape = YAML(typ="safe").load(SCRAPE)
    assert scrape["rule_files"] == ["replicator.rules.yml"]
    [job] = scrape["scrape_configs"]
    assert f'up{{job="{job["job_name"]}"}}' in RULES
