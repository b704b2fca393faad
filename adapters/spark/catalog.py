"""Tables of a lake under their names in the catalog of the Spark session, and views of their current rows.

A name only points to the table's folder, and the table's log does not contain it. So names can be created after
the table, removed after it, and created again where a catalog has lost them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from replicator.domain.errors import ConfigProblem
from replicator.ports.frames import Lane
from replicator.ports.sink import LaneArtifact

from ..apply.projections import is_owned, ownership_remark
from ..delta.folders import Folder
from ..delta.options import config_location
from ..delta.tables import has_table, open_table, read_schema
from ..sql.render import COLUMNS, NONE, VIEWS
from .catalog_names import ALL, CATALOG, CatalogTable
from .errors import translate_errors
from .session import LazySession, to_spark_path

VIEW, DELTA = "VIEW", "delta"
EXISTED_BEFORE = "it existed before the lane: the table stays, and so does its name"


@dataclass(frozen=True)
class CatalogEntry:
    """The entry of a name in a catalog. `kind`: VIEW, EXTERNAL or MANAGED."""

    kind: str
    provider: str | None
    location: str | None
    remark: str | None
    query: str | None
    columns: str


class CatalogNames:
    """The names of one lake's tables in one schema, for one session. Safe for use from several threads.

    Names and views of others stay unchanged. An existing name of the same table is used.
    """

    def __init__(self, session: LazySession, schema: str, folder_of: Callable[[Lane], Folder]) -> None:
        self._session = session
        self._schema = schema
        self._folder_of = folder_of
        self._known: set[str] = set()
        self._one = threading.Lock()

    def catalog_table(self, lane: Lane) -> CatalogTable:
        """The name of the lane's table. Needs no session."""
        return CatalogTable(self._schema, lane.into, to_spark_path(self._folder_of(lane).uri), ownership_remark(lane))

    def refuse_foreign_name(self, lane: Lane, view: str) -> None:
        """Raises ConfigProblem when the name of the table, or of its view, belongs to something else."""
        catalog_table = self.catalog_table(lane)
        with self._translate_errors(lane):
            table, over = self._read_entry(catalog_table), self._read_entry(catalog_table, view) if view else None
            if table is not None and not self._is_table(catalog_table, table):
                raise _name_taken_error(
                    lane, catalog_table.label(), f"a {'view' if table.kind == VIEW else f'table at {table.location}'}"
                )
            if over is not None and not _is_view(catalog_table, over):
                raise _name_taken_error(
                    lane, catalog_table.label(view), "a view" if over.kind == VIEW else f"a table at {over.location}"
                )

    def ensure(self, lane: Lane, view: str) -> None:
        """Creates the name and the view of the lane's table, or updates the view's columns.

        Raises ConfigProblem as `refuse_foreign_name`.
        """
        # An error suspends the lane, and is not a warning: otherwise a run would end well, and users could not read its
        # tables by the configured names.
        self.refuse_foreign_name(lane, view)
        table = self.catalog_table(lane)
        with self._translate_errors(lane), self._one:
            if not self._catalog.databaseExists(self._schema):
                self._run(table.create_schema())
            if self._read_entry(table) is None:
                self._run(table.create_table())
            for other in VIEWS:
                entry = self._read_entry(table, other) if other != view else None
                if entry is not None and _is_view(table, entry):
                    self._run(f"DROP VIEW {table.quote_name(other)}")
            if view and COLUMNS[view] in read_schema(open_table(self._folder_of(lane))).names:
                entry = self._read_entry(table, view)
                if entry is None:
                    self._run(table.create_view(view))
                elif entry.query != table.query(view) or entry.columns != self._render_columns(table):
                    self._run(table.alter_view(view))
            self._known.add(_lane_key(lane))

    def ensure_once(self, lane: Lane, view: str) -> None:
        """`ensure`, once, for a lane without new rows, because the catalog may have been empty at the start."""
        if _lane_key(lane) not in self._known:
            self.ensure(lane, view)

    def list_artifacts(self, lane: Lane, *, stays: bool) -> Sequence[LaneArtifact]:
        """The names that replicator created for the lane's table. `stays`: the table is not removed with the
        lane."""
        with self._translate_errors(lane):
            table = self.catalog_table(lane)
            return [
                LaneArtifact("view" if view else "name", table.label(view), EXISTED_BEFORE if stays and not view else "")
                for view in self._list_own_names(table)
            ]

    def remove_names(self, lane: Lane) -> None:
        """Removes the names; the table's name only after the table. May be repeated."""
        with self._translate_errors(lane), self._one:
            table, is_removed = self.catalog_table(lane), not has_table(self._folder_of(lane))
            for view in self._list_own_names(table):
                if view:
                    self._run(f"DROP VIEW IF EXISTS {table.quote_name(view)}")
                elif is_removed:
                    self._run(f"DROP TABLE IF EXISTS {table.quote_name()}")
            self._known.discard(_lane_key(lane))

    def _list_own_names(self, table: CatalogTable) -> Iterator[str]:
        """The names that replicator created, views first."""
        for view in reversed(ALL):
            entry = self._read_entry(table, view)
            if entry is not None and (
                _is_view(table, entry) if view else self._is_table(table, entry) and is_owned(entry.remark)
            ):
                yield view

    def _is_table(self, table: CatalogTable, entry: CatalogEntry) -> bool:
        """True if the entry points to the lane's table. Any program may have created it."""
        return entry.kind != VIEW and entry.provider == DELTA and entry.location == self._normalize_location(table.place)

    def _read_entry(self, table: CatalogTable, view: str = NONE) -> CatalogEntry | None:
        """The catalog's entry of the name. It bypasses SQL, which would also read the table's files."""
        java, jvm = self._catalog, self._jvm
        wrap = jvm.scala.Option.apply
        name = jvm.org.apache.spark.sql.catalyst.TableIdentifier(f"{table.name}{view}", wrap(self._schema), wrap(CATALOG))
        if not java.tableExists(name):
            return None
        metadata = java.getTableMetadata(name)
        location = _option_value(metadata.storage().locationUri())
        return CatalogEntry(
            metadata.tableType().name(),
            _option_value(metadata.provider()),
            None if location is None else self._normalize_location(location),
            _option_value(metadata.comment()),
            _option_value(metadata.viewText()),
            metadata.schema().catalogString(),
        )

    def _normalize_location(self, location: Any) -> str:
        """A location in one spelling: without `file:` and its slashes, and with decoded escapes."""
        uri = self._jvm.org.apache.hadoop.fs.Path(location).toUri()
        scheme, store, path = uri.getScheme(), uri.getAuthority(), uri.getPath()
        return str(path) if scheme in (None, "file") else f"{scheme}://{store or ''}{path}"

    def _render_columns(self, table: CatalogTable) -> str:
        frame: Any = self._session.spark.table(table.quote_name())
        return str(frame._jdf.schema().catalogString())

    def _run(self, statement: str) -> None:
        self._session.spark.sql(statement)

    @property
    def _catalog(self) -> Any:
        spark: Any = self._session.spark
        return spark._jsparkSession.sessionState().catalog()

    @property
    def _jvm(self) -> Any:
        spark: Any = self._session.spark
        return spark._jvm

    def _translate_errors(self, lane: Lane) -> Any:
        return translate_errors(f"naming table {lane.into} in schema {self._schema} of Spark's catalog")


def _is_view(table: CatalogTable, entry: CatalogEntry) -> bool:
    """The entry is a view that replicator created over that table."""
    return entry.kind == VIEW and entry.remark == table.view_remark


def _name_taken_error(lane: Lane, name: str, kind: str) -> ConfigProblem:
    return ConfigProblem(
        f"{name} in Spark's catalog is {kind} that does not belong to lane {lane.id}: it stays as it is",
        next_step=f"Remove or rename it there, name the target otherwise with `into` in {config_location(lane)}, "
        "or give the sink another `schema`.",
    )


def _option_value(option: Any) -> Any:
    """The value of a Scala option; None when it is empty."""
    return option.get() if option.isDefined() else None


def _lane_key(lane: Lane) -> str:
    return f"{lane.pipeline}/{lane.id}"
