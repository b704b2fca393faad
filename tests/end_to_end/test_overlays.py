"""The shipped environments."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from . import compare
from .shops import MIRRORS, list_log_differences, list_mirror_differences, read_source_rows
from .stack import TABLES, World

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]


def test_dev_and_prod_environments(shop: World) -> None:
    """The same stream through both: into local folders only, then with every location and secret from outside."""
    world = shop
    world.environment = {"KAFKA_BOOTSTRAP_SERVERS": world.stack.bootstrap_servers}
    assert world.daemon("--env", "dev", "--until-caught-up").wait() == 0
    for table in TABLES:
        rows = compare.index_by_key(compare.read_lake_table(world.lake / "dev" / table), "id")
        assert compare.list_differences(read_source_rows(world, table), rows) == []
    assert compare.read_lake_table(world.lake / "dev" / "cdc_events")
    assert not (world.lake / "customers").exists()
    world.environment = {**world.environment, **make_prod_environment(world)}
    assert world.daemon("--env", "prod", "--until-caught-up").wait() == 0
    world.lake = world.folder / "srv" / "deltalake"
    assert list_mirror_differences(world, mirrors=MIRRORS) == []
    assert list_log_differences(world) == []
    assert (world.folder / "srv" / "state").is_dir()
    check_secrets(world)


def make_prod_environment(world: World) -> Mapping[str, str]:
    """The environment of prod, which has no defaults. DSNs come from files."""
    secrets = {"DATALAKE_DSN": world.datalake, "TARGET_DSN": world.target}
    for name, dsn in secrets.items():
        (world.folder / name).write_text(dsn + "\n")
    files = {f"{name}_FILE": str(world.folder / name) for name in secrets}
    return {**files, "REPLICATOR_HOME": str(world.folder / "srv")}


def check_secrets(world: World) -> None:
    """Logs contain no password, and `check` reports each missing setting of prod."""
    for daemon in world.daemons:
        assert "_password" not in daemon.log.read_text()
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "DATALAKE_DSN_FILE", "TARGET_DSN_FILE"):
        given = dict(world.environment)
        del world.environment[name]
        done = world.program("check", "--env", "prod")
        world.environment = given
        assert done.returncode == 2
        assert name.removesuffix("_FILE") in done.stderr and "prod.yaml" in done.stderr
