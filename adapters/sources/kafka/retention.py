"""Check that the broker keeps records until every lane has read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from replicator.domain.plain_values import format_count
from replicator.domain.position import Position, TopicPartition
from replicator.domain.remedies import describe_reload_or_skip
from replicator.ports.diagnosis import Diagnosis

OffsetsAt = Callable[[Iterable[TopicPartition], float], Mapping[TopicPartition, int]]
"""For each partition the offset of the first record not older than a time in seconds; the end if there is none."""
Settings = Mapping[str, Mapping[str, str]]

HALF, MOST = 0.5, 0.1
"""Remaining shares of the retention time for a warning, and for an error."""


@dataclass(frozen=True)
class LaneBacklog:
    """A lane with its position. `name`: the subject of diagnoses. `firsts`, `ends`: the offsets on the broker."""

    name: str
    lane: str
    position: Position
    firsts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]

    def find_unread(self) -> list[TopicPartition]:
        """Partitions with unread records."""
        return [p for p, offset in self.position.items() if offset < self.ends.get(p, 0)]


def check_retention(behind: LaneBacklog, settings: Settings, offsets_at: OffsetsAt, now: float) -> Iterator[Diagnosis]:
    """Diagnoses for unread records that are lost or will be soon. Empty if everything was read."""
    unread = behind.find_unread()
    lost = [p for p in unread if behind.position[p] < behind.firsts[p]]
    if lost:
        sentence = f"Lane {behind.lane} has not read records of {lost[0]} that the broker no longer has."
        yield Diagnosis("error", behind.name, sentence, describe_reload_or_skip(behind.lane))
    left = [p for p in unread if p not in lost]
    late = _check_time(behind, left, settings, offsets_at, now) or _check_size(behind, left, settings)
    if late:
        yield late
    elif left and not lost:
        count = sum(behind.ends[p] - behind.position[p] for p in left)
        sentence = f"Lane {behind.lane} is {format_count(count, 'record')} behind. The broker keeps them long enough."
        yield Diagnosis("ok", behind.name, sentence)


def _check_time(
    behind: LaneBacklog, unread: list[TopicPartition], settings: Settings, offsets_at: OffsetsAt, now: float
) -> Diagnosis | None:
    limits = {p: int(settings[p.topic].get("retention.ms", -1)) / 1000 for p in unread if _is_deleting(settings[p.topic])}
    for share, severity in ((MOST, "error"), (HALF, "warning")):
        for seconds in sorted({limit for limit in limits.values() if limit >= 0}):
            mine = [p for p, limit in limits.items() if limit == seconds]
            old = offsets_at(mine, now - seconds * (1 - share))
            late = [p for p in mine if behind.position[p] < old[p]]
            if late:
                kept_for = f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds:.0f} s"
                sentence = (
                    f"Lane {behind.lane} has not read records of {late[0]} that are older than {1 - share:.0%} of the "
                    f"topic's retention time ({kept_for})."
                )
                return Diagnosis("error" if severity == "error" else "warning", behind.name, sentence, _next_step(late[0]))
    return None


def _check_size(behind: LaneBacklog, unread: list[TopicPartition], settings: Settings) -> Diagnosis | None:
    """Sizes are not known in records, so the remaining records of a topic that already drops old ones are used."""
    for p in unread:
        bounded = _is_deleting(settings[p.topic]) and int(settings[p.topic].get("retention.bytes", -1)) >= 0
        share = (behind.ends[p] - behind.position[p]) / max(1, behind.ends[p] - behind.firsts[p])
        if bounded and behind.firsts[p] > 0 and share > HALF:
            sentence = f"Lane {behind.lane} has not read {share:.0%} of {p}, and retention.bytes drops the oldest records."
            return Diagnosis("error" if share > 1 - MOST else "warning", behind.name, sentence, _next_step(p, "bytes"))
    return None


def _is_deleting(settings: Mapping[str, str]) -> bool:
    return "delete" in settings.get("cleanup.policy", "delete")


def _next_step(partition: TopicPartition, what: str = "ms") -> str:
    return (
        f"Start the daemon or repair the lane. Raise retention.{what} of topic {partition.topic} until the lane has "
        "caught up."
    )
