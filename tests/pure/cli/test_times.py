"""Times as arguments of commands."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import click
import pytest
from click.testing import CliRunner

from replicator.cli import main
from replicator.cli.parameters import IN_UTC, TIME, TIME_OR_POSITION
from replicator.domain.position import Position, TopicPartition

BERLIN = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
        ("2026-11-20T17:46:50", datetime(2026, 11, 20, 17, 46, 50, tzinfo=UTC)),
        ("2026-11-20T17:46:50.25", datetime(2026, 11, 20, 17, 46, 50, 250_000, tzinfo=UTC)),
        ("2026-11-20T17:46:50+0100", datetime(2026, 11, 20, 17, 46, 50, tzinfo=BERLIN)),
        ("2026-11-20 17:46:50", datetime(2026, 11, 20, 17, 46, 50, tzinfo=UTC)),
        ("2026-11-20 17:46:50.25+0100", datetime(2026, 11, 20, 17, 46, 50, 250_000, tzinfo=BERLIN)),
        ("2026-11-20T17:46:50Z", datetime(2026, 11, 20, 17, 46, 50, tzinfo=UTC)),
    ],
)
def test_time_without_zone_is_utc(text, found):
    made = TIME.convert(text, None, None)
    assert (made, made.utcoffset()) == (found, found.utcoffset())


def test_invalid_time_is_refused():
    with pytest.raises(click.BadParameter, match="'yesterday' is not a time such as"):
        TIME.convert("yesterday", None, None)


@pytest.mark.parametrize(
    ("command", "options"),
    [("audit", 2), ("replay", 2), ("query", 1), ("events", 1)],
)
def test_every_command_has_the_same_time_options(command, options):
    asked = main.get_command(click.Context(main), command)
    assert len([p for p in asked.params if p.type in (TIME, TIME_OR_POSITION)]) == options
    assert " ".join(CliRunner().invoke(main, [command, "--help"]).stdout.split()).count(IN_UTC) == options


PLACES = Position({TopicPartition("cdc.a:b", 0): 7, TopicPartition("c", 1): 1})


def test_position_is_parsed():
    assert TIME_OR_POSITION.convert("cdc.a:b:0:6, c:1:0", None, None) == PLACES
    assert TIME_OR_POSITION.convert("2026-11-20", None, None) == datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "c", "c:1", "c:x:1", "c:1:-1", ":1:1", "c:1:1,c:1:2", "c:1:1,"])
def test_invalid_time_or_position_is_refused(text):
    with pytest.raises(click.BadParameter, match="and not TOPIC:PARTITION:OFFSET"):
        TIME_OR_POSITION.convert(text, None, None)
