"""Which of Spark's errors may pass by themselves."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException

from adapters.spark.errors import translating
from replicator.domain.errors import Fatal, Retryable

HIVE = "org.apache.hadoop.hive.ql.metadata.HiveException: "


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        # As a metastore at an address where nobody listens is told.
        (f"{HIVE}java.lang.RuntimeException: Unable to instantiate {HIVE[:35]}SessionHiveMetaStoreClient", Retryable),
        (f"{HIVE}org.apache.thrift.transport.TTransportException: java.net.SocketException: Broken pipe", Retryable),
        (f"{HIVE}MetaException(message:shop.db is not a directory or unable to create one)", Fatal),
    ],
)
def test_a_metastore_that_is_away_is_waited_for(said, kind):
    with pytest.raises(kind, match="naming a table"), translating("naming a table"):
        raise AnalysisException(said)
