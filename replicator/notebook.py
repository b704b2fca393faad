"""For notebooks and scripts: targets as Arrow tables, found through the config.

>>> from replicator.notebook import load_table
>>> load_table("customers", version=1).to_pylist()
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from replicator.domain.errors import EnvironmentProblem
from replicator.domain.timeline import to_json
from replicator.wiring import adapters
from replicator.wiring.configuration import find_config_file, read_config
from replicator.wiring.plugins import list_names, load_adapter

from .application.operations.change_history import read_audit, read_history
from .application.operations.target_reader import read_target
from .wiring.components import ConfiguredComponents
from .wiring.event_logs import open_reader

FUNCTIONS = "replicator.functions"


def load_table(
    name: str,
    *,
    version: int | None = None,
    as_of: datetime | None = None,
    where: str | None = None,
    limit: int | None = None,
    config: str | Path | None = None,
    env: str | None = None,
) -> pa.Table:
    """The rows of a target, now, at a version of its table, or as they were at a time of the source (without an event log of
    the table: of its commits).

    `name` is `SINK.TABLE`, or `TABLE` in the first sink of the config that has it, by its name there or in the source;
    `where` is a SQL condition on its columns.
    Without `config`, the file that REPLICATOR_CONFIG names, or else config/replicator.yaml in this folder or one above it.
    Raises `ConfigProblem` for a config that cannot be used, `Fatal` for a table or version that there is not.
    """
    loaded = read_config(Path(config or find_config_file()), env, ())
    return read_target(ConfiguredComponents(loaded), name, version=version, as_of=as_of, where=where, limit=limit)


def load_audit(table: str, *, config: str | Path | None = None, env: str | None = None) -> pa.Table:
    """Every change of a table (its name in the source) that its event log has, as `replicator audit` tells them: the columns
    of `replicator.domain.audit.AUDIT`, in the order of their times at the source. Errors as of `load_table`, and
    `ConfigProblem` where no event log has the table."""
    with open_reader(read_config(Path(config or find_config_file()), env, ()), table) as log:
        found, _ = read_audit(log, table, lambda _: None)
    return found


def load_history(table: str, *key: object, config: str | Path | None = None, env: str | None = None) -> list[dict[str, Any]]:
    """Every change of the row of a table (its name in the source) with that key, a value for each key column: what
    `replicator history --json` tells, its values as Python has them. Errors as of `load_audit`."""
    loaded = read_config(Path(config or find_config_file()), env, ())
    with open_reader(loaded, table) as log:
        entries, _ = read_history(log, table, [str(value) for value in key], lambda _: None)
    return [to_json(entry) for entry in entries]


def spark_session(*, config: str | Path | None = None, env: str | None = None) -> Any:
    """The Spark session of `engine: spark` under the config's `spark` options, with Delta and our functions. It needs
    `pip install 'replicator[spark]'` and a Java.

    >>> spark_session().read.format("delta").load("deltalake/customers").show()
    """
    loaded = read_config(Path(config or find_config_file()), env, ("engine=spark",))
    engine: Any = adapters.build_engine(loaded)
    register_functions(engine.spark)
    return engine.spark


def register_functions(spark: Any) -> list[str]:
    """Make our functions known to a Spark session; their names. They are what entry points of `replicator.functions` give.
    A function is left out if the packages of its extra are not installed (here `dts`).

    `dts_binlog_parser(value)`: what a record of Alibaba DTS says, as a struct of recordID, source, dbTable, recordType,
    recordTimestamp, extraTags, fields, beforeImages and afterImages; NULL where the bytes are no such record.

    >>> register_functions(spark)
    >>> spark.sql("SELECT inline(array(dts_binlog_parser(value))) FROM records").show()
    """
    found = []
    for name in list_names(FUNCTIONS):
        with suppress(EnvironmentProblem):
            found.append(load_adapter(FUNCTIONS, name)(spark))
    return found
