"""Stages of a plan that run in this process. All sinks share them.

Published for sinks in packages of their own (`docs/how-to/write-a-sink.md`): they change only as the ports do.

- `apply.stages`: `TargetSession`, `TransactionSession`, `apply_write`, `reconcile_write`, `side_columns`.
- `apply.conform`: `REJECTED`, `conform_to_schema`. `apply.column_versions`: `COLUMN_VERSIONS`. `apply.explain`: `explain`.
- `adapters.duckdb.session`: `to_duckdb_types`.
- `adapters.sql.dialect`: `Dialect`, and the dialects. `adapters.sql.render`: `render_merge`.
- `adapters.sql.reconcile`: `not_above_condition`, `render_truncate`; its parts `cleared_condition`,
  `truncate_assignments`, and `adapters.sql.scd2_events.truncate_condition`.
- `apply.projections`: names and errors of the tables of projections.
- `adapters.engines.local`: `LocalEngine`, for tests. `adapters.gold`: `LocalProjector`, for tests.
"""
