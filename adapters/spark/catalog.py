"""Tables of a lake under their names in the catalog of the Spark session, and views of what holds now over them.

A name is a sign on the door: the table is its folder, whoever writes it, and nothing of a name is in the table's log. Hence
names can be made after the table and removed after it, and are made anew wherever a catalog forgets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from replicator.domain.errors import ConfigProblem
from replicator.ports.frames import Lane
from replicator.ports.sink import Belonging

from ..delta.folders import Folder
from ..delta.options import config_place
from ..delta.tables import exists, opened, schema_of
from ..sql.made import is_made, made_for
from ..sql.spark_names import ALL, CATALOG, Named
from ..sql.views import COLUMNS, NONE, VIEWS
from .errors import translating
from .session import Session
from .stores import place

VIEW, DELTA = "VIEW", "delta"
FOUND = "it was there before the lane wrote to it: the table stays, and so does its name"


@dataclass(frozen=True)
class Entry:
    """What a catalog says of a name. `kind`: VIEW, EXTERNAL or MANAGED."""

    kind: str
    provider: str | None
    location: str | None
    remark: str | None
    query: str | None
    columns: str


class CatalogNames:
    """The names of one lake's tables in one schema, by one session. Safe for use from several threads.

    Names and views that were not made here stay as they are. A name that somebody gave to the same table is used.
    """

    def __init__(self, session: Session, schema: str, folder_of: Callable[[Lane], Folder]) -> None:
        self._session = session
        self._schema = schema
        self._folder_of = folder_of
        self._known: set[str] = set()
        self._one = threading.Lock()

    def named(self, lane: Lane) -> Named:
        """How the table of the lane is called. Needs no session."""
        return Named(self._schema, lane.into, place(self._folder_of(lane).uri), made_for(lane))

    def refuse_taken(self, lane: Lane, view: str) -> None:
        """Raise ConfigProblem when the table, or its view, would have the name of something else."""
        named = self.named(lane)
        with self._doing(lane):
            table, over = self._entry(named), self._entry(named, view) if view else None
            if table is not None and not self._is_table(named, table):
                raise _taken(lane, named.shown(), f"a {'view' if table.kind == VIEW else f'table at {table.location}'}")
            if over is not None and not _is_view(named, over):
                raise _taken(lane, named.shown(view), "a view" if over.kind == VIEW else f"a table at {over.location}")

    def ensure(self, lane: Lane, view: str) -> None:
        """Give the lane's table its name and its view, or bring the view's columns up to date. ConfigProblem as of
        `refuse_taken`."""
        self.refuse_taken(lane, view)
        named = self.named(lane)
        with self._doing(lane), self._one:
            self._ensure_table(named)
            for other in VIEWS:
                if other != view and self._own_view(named, other) is not None:
                    self._run(f"DROP VIEW {named.quoted(other)}")
            if view and COLUMNS[view] in schema_of(opened(self._folder_of(lane))).names:
                self._ensure_view(named, view)
            self._known.add(_key(lane))

    def remember(self, lane: Lane, view: str) -> None:
        """`ensure`, once, for a lane that need not write anything: the catalog may be one that was empty at the start."""
        if _key(lane) not in self._known:
            self.ensure(lane, view)

    def belongings(self, lane: Lane, *, stays: bool) -> Sequence[Belonging]:
        """The names that were made for the lane's table; `stays`: the table is not removed with the lane."""
        with self._doing(lane):
            named = self.named(lane)
            return [
                Belonging("view" if view else "name", named.shown(view), FOUND if stays and not view else "")
                for view in self._own(named)
            ]

    def forget(self, lane: Lane) -> None:
        """Remove them: that of the table only once the table is gone. May be repeated."""
        with self._doing(lane), self._one:
            named, gone = self.named(lane), not exists(self._folder_of(lane))
            for view in self._own(named):
                if view:
                    self._run(f"DROP VIEW IF EXISTS {named.quoted(view)}")
                elif gone:
                    self._run(f"DROP TABLE IF EXISTS {named.quoted()}")
            self._known.discard(_key(lane))

    def _ensure_table(self, named: Named) -> None:
        if not self._catalog.databaseExists(self._schema):
            self._run(named.create_schema())
        if self._entry(named) is None:
            self._run(named.create_table())

    def _ensure_view(self, named: Named, view: str) -> None:
        entry = self._entry(named, view)
        if entry is None:
            self._run(named.create_view(view))
        elif entry.query != named.query(view) or entry.columns != self._columns(named):
            self._run(named.alter_view(view))

    def _own(self, named: Named) -> Iterator[str]:
        """Which of the names were made here, views first."""
        for view in reversed(ALL):
            entry = self._entry(named, view)
            if entry is not None and (
                _is_view(named, entry) if view else self._is_table(named, entry) and is_made(entry.remark)
            ):
                yield view

    def _own_view(self, named: Named, view: str) -> Entry | None:
        entry = self._entry(named, view)
        return entry if entry is not None and _is_view(named, entry) else None

    def _is_table(self, named: Named, entry: Entry) -> bool:
        """The entry is of the lane's table, whoever made it."""
        return entry.kind != VIEW and entry.provider == DELTA and entry.location == self._location(named.place)

    def _entry(self, named: Named, view: str = NONE) -> Entry | None:
        """What the catalog says of the name. Asked below SQL: that would look for the table's files too."""
        java, jvm = self._catalog, self._jvm
        some = jvm.scala.Option.apply
        name = jvm.org.apache.spark.sql.catalyst.TableIdentifier(f"{named.name}{view}", some(self._schema), some(CATALOG))
        if not java.tableExists(name):
            return None
        found = java.getTableMetadata(name)
        location = _value(found.storage().locationUri())
        return Entry(
            found.tableType().name(),
            _value(found.provider()),
            None if location is None else self._location(location),
            _value(found.comment()),
            _value(found.viewText()),
            found.schema().catalogString(),
        )

    def _location(self, there: Any) -> str:
        """A place in one spelling: `file:` and its slashes are left out, escapes are what they stand for."""
        uri = self._jvm.org.apache.hadoop.fs.Path(there).toUri()
        scheme, store, path = uri.getScheme(), uri.getAuthority(), uri.getPath()
        return str(path) if scheme in (None, "file") else f"{scheme}://{store or ''}{path}"

    def _columns(self, named: Named) -> str:
        frame: Any = self._session.spark.table(named.quoted())
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

    def _doing(self, lane: Lane) -> Any:
        return translating(f"naming table {lane.into} in schema {self._schema} of Spark's catalog")


def _is_view(named: Named, entry: Entry) -> bool:
    """The entry is a view that was made here over that table."""
    return entry.kind == VIEW and entry.remark == named.view_remark


def _taken(lane: Lane, name: str, what: str) -> ConfigProblem:
    return ConfigProblem(
        f"{name} in Spark's catalog is {what} already, which is not of lane {lane.id}: it stays as it is",
        next_step=f"Remove or rename it there, name the target otherwise with `into` in {config_place(lane)}, "
        "or give the sink another `schema`.",
    )


def _value(option: Any) -> Any:
    """What a Scala option holds; None where it is empty."""
    return option.get() if option.isDefined() else None


def _key(lane: Lane) -> str:
    return f"{lane.pipeline}/{lane.id}"
