"""Settings of sources: the models of their adapters, by transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic.json_schema import SkipJsonSchema

from replicator.ports.adapter_options import SourceOptions

from .adapter_models import SOURCES, FreeForm, join_models

EVENT_COLUMNS = {
    **dict.fromkeys(("id", "aggregatetype", "aggregateid", "type", "payload"), "string"),
    "event_offset": "int64",
}
"""The columns of an outbox's events, and their types."""


class PluginSourceSettings(SourceOptions, FreeForm):
    """A transport of an installed package without a model. Its adapter checks its own keys."""

    transport: str
    # The pipeline adds its values to the mapping of the adapter, not to this model: here they are keys of the adapter.
    session: SkipJsonSchema[Any] = None
    stores: SkipJsonSchema[Any] = None
    batch_bytes: SkipJsonSchema[Any] = None
    batch_records: SkipJsonSchema[Any] = None


if TYPE_CHECKING:
    Source = SourceOptions
else:
    Source = join_models("transport", SOURCES, PluginSourceSettings)
