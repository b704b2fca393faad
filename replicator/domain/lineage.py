"""OpenLineage run events of refreshes (specification 2-0-2), as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .projection import InputVersions, Projection, ProjectionInput

SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
FACETS = "https://openlineage.io/spec/facets"
PRODUCER = "https://pypi.org/project/replicator"

RunState = Literal["START", "COMPLETE", "FAIL"]
Datasets = Mapping[str, tuple[str, str]]
"""Per table label its OpenLineage namespace and name."""


def to_dataset(place: str) -> tuple[str, str]:
    """The OpenLineage namespace and name of a table at this location."""
    scheme, is_url, rest = place.partition("://")
    if not is_url:
        return "file", place
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key or "/"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The end of a refresh: the new version and its number of rows, or the reason of its failure."""

    version: int | None = None
    rows: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LineageRun:
    """A refresh as an OpenLineage run."""

    id: str
    namespace: str
    projection: Projection
    reads: InputVersions
    datasets: Datasets

    def make_event(self, happened: RunState, at: str, outcome: RunOutcome | None = None) -> dict[str, Any]:
        """One event of the run; `at` is a time with its zone."""
        done = outcome or RunOutcome()
        error = (
            {}
            if done.problem is None
            else {"errorMessage": _make_facet("1-0-1/ErrorMessageRunFacet", _error_facet(done.problem))}
        )
        return {
            "eventType": happened,
            "eventTime": at,
            "producer": PRODUCER,
            "schemaURL": SPEC,
            "run": {"runId": self.id, "facets": error},
            "job": {
                "namespace": self.namespace,
                "name": self.projection.name,
                "facets": {"sql": _make_facet("1-0-1/SQLJobFacet", {"query": self.projection.query})},
            },
            "inputs": [self._input_to_json(one) for one in self.projection.inputs],
            "outputs": [self._output_to_json(done)],
        }

    def _input_to_json(self, one: ProjectionInput) -> dict[str, Any]:
        read = self.reads.get(one.name)
        return {**self._dataset_to_json(one.label), "facets": {} if read is None else _version_facet(read.version)}

    def _output_to_json(self, done: RunOutcome) -> dict[str, Any]:
        counted = {"outputStatistics": _make_facet("1-0-2/OutputStatisticsOutputDatasetFacet", {"rowCount": done.rows})}
        return {
            **self._dataset_to_json(self.projection.label),
            "facets": {} if done.version is None else _version_facet(done.version),
            "outputFacets": {} if done.rows is None else counted,
        }

    def _dataset_to_json(self, label: str) -> dict[str, str]:
        namespace, name = self.datasets[label]
        return {"namespace": namespace, "name": name}


def _version_facet(version: int) -> dict[str, Any]:
    return {"version": _make_facet("1-0-1/DatasetVersionDatasetFacet", {"datasetVersion": str(version)})}


def _error_facet(problem: str) -> dict[str, Any]:
    return {"message": problem, "programmingLanguage": "SQL"}


def _make_facet(schema: str, values: Mapping[str, Any]) -> dict[str, Any]:
    version, name = schema.split("/")
    return {"_producer": PRODUCER, "_schemaURL": f"{FACETS}/{version}/{name}.json#/$defs/{name}", **values}
