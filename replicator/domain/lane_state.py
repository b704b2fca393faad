"""A lane's state as JSON, as the stores of targets keep it with the rows."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from .policy.plan import DeleteHorizon, LaneState, Truncate
from .position import Position
from .sequence import Sequence, SequenceValue


def state_to_json(state: LaneState) -> dict[str, object]:
    """Every field of `state`; bytes in a sequence become {"base64": ...}.

    Some keys are optional:

    - `reached`: only with a watermark.
    - `cuts`: only if an scd2 target was truncated.
    - `beside`: only with a side table version.
    - `took`: only while side tables must still be copied.
    - `forgotten` and `deletes`: only after a purge of tombstones, or before one. `owed`: a purge may not be finished.
    """
    return {
        "position": state.position.to_json(),
        "high": _sequence_to_json(state.max_sequence),
        "floor": _sequence_to_json(state.truncated_at),
        "ledger_high": _sequence_to_json(state.max_side_table_sequence),
        "identity": dict(state.identity),
        "rule": state.rule,
        **({"reached": Position(state.max_event_time).to_json()} if state.max_event_time else {}),
        **({"cuts": [[_sequence_to_json(cut.sequence), cut.at] for cut in state.truncates]} if state.truncates else {}),
        **({} if state.side_table_version is None else {"beside": state.side_table_version}),
        **({"took": state.copied_from} if state.copied_from else {}),
        **({"forgotten": _horizon_to_json(state.purged_up_to)} if state.purged_up_to is not None else {}),
        **({"deletes": [_horizon_to_json(deleted) for deleted in state.delete_horizons]} if state.delete_horizons else {}),
        **({"owed": True} if state.purge_pending else {}),
    }


def state_from_json(data: Mapping[str, Any]) -> LaneState:
    """Parses the result of `state_to_json`. `identity` may also be a list of pairs, as PostgreSQL stores it.

    Raises KeyError, TypeError, ValueError or AttributeError for anything else."""
    identity, purged = data["identity"], data.get("forgotten")
    return LaneState(
        position=Position.from_json(data["position"]),
        max_sequence=_sequence_from_json(data["high"]),
        truncated_at=_sequence_from_json(data["floor"]),
        max_side_table_sequence=_sequence_from_json(data["ledger_high"]),
        identity=tuple((str(topic), str(known)) for topic, known in identity)
        if isinstance(identity, list)
        else tuple(sorted(identity.items())),
        rule=_check_text(data["rule"]),
        max_event_time=Position.from_json(data.get("reached", {})).offsets,
        truncates=tuple(Truncate(_sequence_from_json(sequence) or (), at) for sequence, at in data.get("cuts", [])),
        side_table_version=_check_version(data.get("beside")),
        copied_from=_check_text(data.get("took", "")),
        purged_up_to=None if purged is None else _horizon_from_json(purged),
        delete_horizons=tuple(map(_horizon_from_json, data.get("deletes", ()))),
        purge_pending=bool(data.get("owed", False)),
    )


def _check_version(value: Any) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError("a version is a number")
    return value


def _check_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a rule is text")
    return value


def _horizon_to_json(deleted: DeleteHorizon) -> list[object]:
    truncated = [] if deleted.truncated is None else [_sequence_to_json(deleted.truncated)]
    return [deleted.until, _sequence_to_json(deleted.max_sequence), *truncated]


def _horizon_from_json(entry: Any) -> DeleteHorizon:
    until, high, *more = entry
    sequence, truncated = _sequence_from_json(high), _sequence_from_json(*more) if more else None
    if not isinstance(until, int) or sequence is None or (more and truncated is None):
        raise TypeError("a time and one or two sequences")
    return DeleteHorizon(until, sequence, truncated)


def _sequence_to_json(sequence: Sequence | None) -> list[object] | None:
    if sequence is None:
        return None
    return [{"base64": b64encode(e).decode()} if isinstance(e, bytes) else e for e in sequence]


def _sequence_from_json(data: Any) -> Sequence | None:
    if data is None:
        return None
    if not isinstance(data, list):
        raise TypeError("a sequence is a list")
    return tuple(_element_from_json(e) for e in data)


def _element_from_json(element: Any) -> SequenceValue:
    if isinstance(element, dict):
        return b64decode(element["base64"])
    if isinstance(element, int | str):
        return element
    raise TypeError("an element of a sequence is a number, text or bytes")
