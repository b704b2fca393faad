"""The names of the policies, by what their targets keep. Code that has no plan branches on these sets. `policies` has the
plans."""

from __future__ import annotations

from typing import Literal, get_args

Policy = Literal["scd1", "scd2", "append"]
POLICY_NAMES: tuple[Policy, ...] = get_args(Policy)
CURRENT_ROW_POLICIES: frozenset[str] = frozenset({"scd1"})
"""Targets keep the current row of each key."""
VERSION_POLICIES: frozenset[str] = frozenset({"scd2"})
"""Targets keep every version of each key, with its start and end."""
CHANGE_POLICIES: frozenset[str] = frozenset({"append"})
"""Targets keep every change as a row of its own. They need no key."""
EVENT_LOG_POLICY = "event_log"
"""The plan of event logs (`domain.event_log`). No table can be configured with it."""
