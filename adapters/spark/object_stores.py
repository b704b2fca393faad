"""Object stores in Spark: Hadoop's file system `s3a`."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession

from replicator.domain.errors import ConfigProblem
from replicator.ports.options import StorageSettings

from ..delta.folders import Folder
from ..object_store.options import CONNECT_SECONDS, RETRIES, SCHEMES, Storage, split_url

SIMPLE = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
TEMPORARY = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
REACHED = "_replicator_reached"
"""Attribute of a Spark context: the access to its buckets. Contains secrets."""


def to_spark_path(uri: str) -> str:
    """Spark's path for delta-rs's `uri`. Spark does not decode escapes in paths."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri
    return f"s3a://{unquote(rest)}" if scheme in SCHEMES else unquote(rest)


def configure_store(spark: SparkSession, folder: Folder, storage: StorageSettings | None) -> None:
    """Sets the session's access to the store of `folder`; does nothing for a local folder.

    Raises ConfigProblem when another sink uses the same bucket with other access, because Spark supports one
    per bucket.
    """
    if "://" not in folder.uri:
        return
    bucket, _ = split_url(folder.uri)
    context: Any = spark.sparkContext
    hadoop, settings = context._jsc.hadoopConfiguration(), _store_settings(Storage.from_settings(storage))
    known: dict[str, dict[str, str]] = context.__dict__.setdefault(REACHED, {})
    if known.setdefault(bucket, settings) != settings:
        raise ConfigProblem(
            f"two sinks reach the bucket {bucket} in different ways, of which Spark can use one",
            next_step="Write the same `storage` for both, or use two buckets.",
        )
    for name, value in settings.items():
        hadoop.set(f"fs.s3a.bucket.{bucket}.{name}", value)


def _store_settings(storage: Storage) -> dict[str, str]:
    """The options of `s3a` for one bucket. Never log them."""
    keys = storage.config
    said = {
        "access.key": keys.get("aws_access_key_id"),
        "secret.key": keys.get("aws_secret_access_key"),
        "session.token": keys.get("aws_session_token"),
        "endpoint": storage.endpoint,
        "endpoint.region": storage.region,
    }
    settings = {name: value for name, value in said.items() if value is not None}
    if storage.access_key_id is not None:
        settings["aws.credentials.provider"] = SIMPLE if storage.session_token is None else TEMPORARY
    if storage.endpoint is not None:
        settings["path.style.access"] = "true"
        settings["connection.ssl.enabled"] = str(not storage.endpoint.startswith("http://")).lower()
    # The lane retries by itself.
    settings["attempts.maximum"] = settings["retry.limit"] = str(RETRIES)
    settings["connection.establish.timeout"] = str(CONNECT_SECONDS * 1000)
    return settings
