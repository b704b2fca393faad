"""The example sink, from its folder, and its targets for contract suites."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import duckdb
from paths import PROJECT

EXAMPLE = PROJECT / "examples" / "duckdb-sink"
sys.path.append(str(EXAMPLE))

from duckdb_sink import DuckDbSink  # noqa: E402


@dataclass
class DuckDbTarget:
    folder: Path

    def open(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        return DuckDbSink({"path": str(self.folder / "targets.duckdb")})

    def rows(self, lane):
        with duckdb.connect(str(self.folder / "targets.duckdb")) as db:
            db.execute("SET TimeZone = 'UTC'")
            return db.table(f'main."{lane.into.replace(chr(34), chr(34) * 2)}"').to_arrow_table().to_pylist()

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)
