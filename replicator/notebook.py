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

from replicator.application.operations.read_side import read_target
from replicator.domain.errors import EnvironmentProblem
from replicator.domain.timeline import to_json
from replicator.settings.plugins import list_names, load_adapter
from replicator.wiring import adapters
from replicator.wiring.configuration import find_config_file, read_config

from .application.operations.change_history import read_audit, read_history
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
    """The rows of a target.

    - `name`: `SINK.TABLE`, or `TABLE` in the first sink of the config that has it. `TABLE` is the name in the sink or in the
      source.
    - `version`: the rows at this version of the table. `as_of`: the rows at this time of the source. If the table has no
      event log, it is a time of its commits.
    - `where`: a SQL condition on the columns. `limit`: the maximum number of rows.
    - `config`: by default the file that REPLICATOR_CONFIG names, or else config/replicator.yaml in this folder or one above
      it.

    Raises `ConfigProblem` for an invalid config, and `Fatal` for an unknown table or version.
    """
    loaded = read_config(Path(config or find_config_file()), env, ())
    return read_target(ConfiguredComponents(loaded), name, version=version, as_of=as_of, where=where, limit=limit)


def load_audit(table: str, *, config: str | Path | None = None, env: str | None = None) -> pa.Table:
    """Every change of a table (its name in the source) in its event log, as in `replicator audit`. The columns are those of
    `replicator.domain.timeline.AUDIT`, the order is the time at the source. Errors as in `load_table`, and `ConfigProblem`
    if the table has no event log."""
    with open_reader(read_config(Path(config or find_config_file()), env, ()), table) as log:
        audit, _ = read_audit(log, table, lambda _: None)
    return audit


def load_history(table: str, *key: object, config: str | Path | None = None, env: str | None = None) -> list[dict[str, Any]]:
    """Every change of the row of a table (its name in the source) with this key, which has a value for each key column. The
    result is as in `replicator history --json`, with Python values. Errors as in `load_audit`."""
    loaded = read_config(Path(config or find_config_file()), env, ())
    with open_reader(loaded, table) as log:
        texts = [value.hex() if isinstance(value, bytes) else str(value) for value in key]
        entries, _ = read_history(log, table, texts, lambda _: None)
    return [to_json(entry) for entry in entries]


def spark_session(*, config: str | Path | None = None, env: str | None = None) -> Any:
    """The Spark session of `engine: spark` with the config's `spark` options, Delta and our functions. It needs
    `pip install 'replicator[spark]'` and Java.

    >>> spark_session().read.format("delta").load("deltalake/customers").show()
    """
    loaded = read_config(Path(config or find_config_file()), env, ("engine=spark",))
    engine: Any = adapters.build_engine(loaded)
    register_functions(engine.spark)
    return engine.spark


def register_functions(spark: Any) -> list[str]:
    """Register our functions in a Spark session. Returns their names. They are entry points of `replicator.functions`. A
    function is left out if the packages of its extra are not installed (here `dts`).

    `dts_binlog_parser(value)`: the content of a record of Alibaba DTS as a struct; NULL for other bytes. Its fields are
    recordID, source, dbTable, recordType, recordTimestamp, extraTags, fields, beforeImages and afterImages.

    >>> register_functions(spark)
    >>> spark.sql("SELECT inline(array(dts_binlog_parser(value))) FROM records").show()
    """
    names = []
    for name in list_names(FUNCTIONS):
        with suppress(EnvironmentProblem):
            names.append(load_adapter(FUNCTIONS, name)(spark))
    return names
