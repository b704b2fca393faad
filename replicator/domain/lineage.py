"""OpenLineage's run events of refreshes (its specification 2-0-2), as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .projections import Input, Projection, Reads

SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
FACETS = "https://openlineage.io/spec/facets"
PRODUCER = "https://pypi.org/project/replicator"

Happened = Literal["START", "COMPLETE", "FAIL"]
Datasets = Mapping[str, tuple[str, str]]
"""By the label of a table its namespace and its name."""


def dataset(place: str) -> tuple[str, str]:
    """Namespace and name of a table by where it lies, as OpenLineage names them."""
    scheme, is_url, rest = place.partition("://")
    if not is_url:
        return "file", place
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key or "/"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a refresh ended: the version that it made and its rows, or why it failed."""

    version: int | None = None
    rows: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A refresh as lineage knows it."""

    id: str
    namespace: str
    projection: Projection
    reads: Reads
    datasets: Datasets

    def event(self, happened: Happened, at: str, outcome: Outcome | None = None) -> dict[str, Any]:
        """One event of the run; `at` is a time with its zone."""
        done = outcome or Outcome()
        error = {} if done.problem is None else {"errorMessage": _facet("1-0-1/ErrorMessageRunFacet", _error(done.problem))}
        return {
            "eventType": happened,
            "eventTime": at,
            "producer": PRODUCER,
            "schemaURL": SPEC,
            "run": {"runId": self.id, "facets": error},
            "job": {
                "namespace": self.namespace,
                "name": self.projection.name,
                "facets": {"sql": _facet("1-0-1/SQLJobFacet", {"query": self.projection.query})},
            },
            "inputs": [self._input(one) for one in self.projection.inputs],
            "outputs": [self._output(done)],
        }

    def _input(self, one: Input) -> dict[str, Any]:
        read = self.reads.get(one.name)
        return {**self._dataset(one.label), "facets": {} if read is None else _version(read.version)}

    def _output(self, done: Outcome) -> dict[str, Any]:
        counted = {"outputStatistics": _facet("1-0-2/OutputStatisticsOutputDatasetFacet", {"rowCount": done.rows})}
        return {
            **self._dataset(self.projection.label),
            "facets": {} if done.version is None else _version(done.version),
            "outputFacets": {} if done.rows is None else counted,
        }

    def _dataset(self, label: str) -> dict[str, str]:
        namespace, name = self.datasets[label]
        return {"namespace": namespace, "name": name}


def _version(version: int) -> dict[str, Any]:
    return {"version": _facet("1-0-1/DatasetVersionDatasetFacet", {"datasetVersion": str(version)})}


def _error(problem: str) -> dict[str, Any]:
    return {"message": problem, "programmingLanguage": "SQL"}


def _facet(schema: str, values: Mapping[str, Any]) -> dict[str, Any]:
    version, name = schema.split("/")
    return {"_producer": PRODUCER, "_schemaURL": f"{FACETS}/{version}/{name}.json#/$defs/{name}", **values}
