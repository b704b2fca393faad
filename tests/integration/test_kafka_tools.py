"""Kafka's own command-line tools against the embedded broker, through `scripts/kafka.sh`."""

import os
import subprocess
import sys

from paths import PROJECT


def tool(broker, *arguments):
    """What the tool prints; it must end well."""
    port = broker.address.rpartition(":")[2]
    environment = {**os.environ, "REPLICATOR_STACK_PORTS": f"kafka={port}", "REPLICATOR_VENV": sys.prefix}
    command = ["bash", "scripts/kafka.sh", *arguments]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_topics_records_and_groups_are_listed(broker):
    broker.create("tools.public.rows")
    broker.produce("tools.public.rows", [b"first", b"second"])
    assert "tools.public.rows" in tool(broker, "kafka-topics", "--list").split()
    options = ("--topic", "tools.public.rows", "--from-beginning", "--max-messages", "2", "--group", "tools")
    assert tool(broker, "kafka-console-consumer", *options).split() == ["first", "second"]
    assert "tools" in tool(broker, "kafka-consumer-groups", "--list").split()
