"""`PostgresSink` follows the contract of `ports.sink`, on a real server."""

import psycopg
import pytest
from support.postgres_target import PostgresTarget

from adapters.engines.local import LocalEngine
from adapters.sinks.postgres import scd2
from adapters.sinks.postgres.scd2 import InProcessScd2
from adapters.sinks.postgres.sink import PostgresSink
from replicator.testing.sink_contract import SinkContract
from replicator.testing.sink_row_transforms import SinkColumnVersions, SinkRowTransforms

pytestmark = pytest.mark.postgres


class OnPostgres:
    def new_target(self):
        return PostgresTarget(self.dsn, PostgresSink)

    def new_engine(self):
        return LocalEngine()


@pytest.mark.usefixtures("dsn_of_class")
class TestPostgresSink(OnPostgres, SinkContract):
    """`PostgresSink`."""


@pytest.mark.usefixtures("dsn_of_class")
class TestSequencesPerColumn(OnPostgres, SinkColumnVersions):
    """A side table has the sequences."""


class TestPostgresInEnglish(OnPostgres, SinkRowTransforms):
    """A database in which `a` sorts before `B`. Replicator sorts texts by their bytes all the same."""

    always = frozenset(dir(SinkRowTransforms)) - {"test_histories_with_row_transforms_equal_the_model"}

    @pytest.fixture(autouse=True)
    def database(self, postgres_server):
        self.dsn = postgres_server.database(language="en-US")
        with psycopg.connect(self.dsn) as connection:
            assert connection.execute("SELECT 'a' < 'B'").fetchone() == (True,)


WITH_ROW_SECURITY = """
CREATE FUNCTION secured() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE made record;
BEGIN
    FOR made IN SELECT * FROM pg_event_trigger_ddl_commands() WHERE object_type = 'table' AND schema_name = 'mirror' LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', made.object_identity);
    END LOOP;
END $$;
CREATE EVENT TRIGGER secured ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION secured();
"""


class InTheServer(OnPostgres, SinkContract):
    """Targets into which rows cannot be copied. Their versions are computed in the server."""

    __test__ = False

    def __init__(self, dsn):
        self.dsn = dsn


HISTORIES = (
    pytest.param(SinkContract.test_histories_under_scd2_equal_the_model, marks=pytest.mark.slow),
    pytest.param(SinkContract.test_histories_with_untracked_columns_equal_the_model, marks=pytest.mark.slow),
    SinkContract.test_changes_out_of_order_equal_the_model,
)


class InParts(OnPostgres, SinkContract):
    """Batches in parts: one part is reconciled while another is read or written."""

    __test__ = False

    def __init__(self, dsn):
        self.dsn = dsn


@pytest.mark.parametrize("promise", HISTORIES)
def test_histories_equal_the_model_in_parts(postgres_dsn, promise, monkeypatch):
    """A batch has one part for each key."""
    monkeypatch.setattr(scd2, "PART", 1)
    promise(InParts(postgres_dsn))


@pytest.mark.parametrize("promise", [*HISTORIES, SinkContract.test_sales_in_any_order])
def test_histories_equal_the_model_in_the_server(postgres_dsn, promise, monkeypatch):
    monkeypatch.setattr(InProcessScd2, "judge_parts", None)
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(WITH_ROW_SECURITY)
    promise(InTheServer(postgres_dsn))
