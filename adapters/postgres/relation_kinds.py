"""Checks the kind of a target's relation: only some kinds can store a lane's rows."""

from __future__ import annotations

import sqlalchemy as sa

from replicator.domain.errors import ConfigProblem
from replicator.domain.policy.plan import ApplyPlan

KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
}
"""Values of pg_class.relkind, except those of tables."""

MERGES_INTO_VIEWS = 170_000
"""The first server version with MERGE into views."""

FOUND = sa.text(
    "SELECT c.relkind::text, current_setting('server_version_num')::int, "
    "EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type <> '1') "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND c.relname = :table"
)


def refuse_kind(connection: sa.Connection, schema: str, table: str, plan: ApplyPlan) -> None:
    """Raises ConfigProblem when the relation with that name cannot store the rows of `plan`."""
    found = connection.execute(FOUND, {"schema": schema, "table": table}).first()
    fault = _describe_fault(*found, merges=bool(plan.merge_keys)) if found else ""
    if fault:
        raise ConfigProblem(
            f"{schema}.{table} {fault}",
            next_step="Write to an ordinary table: give the target another name with `into`, or remove what is in the way.",
        )


def _describe_fault(kind: str, version: int, has_rules: bool, *, merges: bool) -> str:
    """Append lanes insert, so a view or a rule may accept their rows. All other lanes merge."""
    takes = {"r", "p"} | ({"v"} if not merges or version >= MERGES_INTO_VIEWS else set()) | (set() if merges else {"f"})
    if kind not in takes:
        return f"is {KINDS.get(kind, 'no table')}, into which rows cannot be {'merged' if merges else 'inserted'}"
    return "has a rewrite rule, and PostgreSQL merges no rows into such a table" if merges and has_rules else ""
