"""The options models of installed adapters, and the choice between them in the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, Union

from pydantic import ConfigDict, Discriminator, Tag

from replicator.domain.errors import EnvironmentProblem
from replicator.ports.adapter_options import AdapterOptions, SinkOptions, SourceOptions, StoreOptions

from .plugins import list_names, load_adapter

PLUGIN = "plugin"
"""The tag of an adapter without a model."""


class FreeForm(AdapterOptions):
    """A section of the config for an adapter without a model. The adapter gets a mapping."""

    model_config = ConfigDict(extra="allow")


M = TypeVar("M", bound=AdapterOptions)


def load_models(group: str, base: type[M]) -> tuple[Mapping[str, type[M]], Mapping[str, EnvironmentProblem]]:
    """The models in an entry point group, by the names of their adapters, built-in adapters first. And the errors of those
    that cannot be used, so that they stop only the pipelines that name them.

    EnvironmentProblem if there is none, or none of the built-in adapters.
    """
    found: dict[str, type[M]] = {}
    broken: dict[str, EnvironmentProblem] = {}
    for name in list_names(group):
        step = "Install another version of its package, or remove it."
        try:
            model = load_adapter(group, name)
        except EnvironmentProblem as problem:
            broken[name] = problem
            continue
        except Exception as error:
            why = f"{type(error).__name__} was raised"
            broken[name] = EnvironmentProblem(f"The options of {name!r} ({group}) cannot be loaded: {why}", next_step=step)
            continue
        if isinstance(model, type) and issubclass(model, base):
            found[name] = model
        else:
            sentence = f"The entry point {name!r} in the group {group!r} is not a subclass of"
            broken[name] = EnvironmentProblem(f"{sentence} {base.__module__}.{base.__name__}", next_step=step)
    built_in = [model for model in found.values() if model.__module__.partition(".")[0] == "adapters"]
    if broken and not built_in:
        raise next(iter(broken.values()))
    if not built_in:
        raise EnvironmentProblem(
            f"Replicator's adapters in the group {group!r} are missing: it is not installed, or is an older version",
            next_step="Install it again: pip install replicator; for a checkout: pip install -e .",
        )
    return dict(sorted(found.items(), key=lambda item: (item[1].rank, item[0]))), broken


def join_models(key: str, models: Mapping[str, type[M]], broken: Mapping[str, Exception], plugin: type[M]) -> Any:
    """The type of a section of the config: the model of the adapter that its `key` names, or else `plugin`. The section of a
    broken adapter raises its error."""

    def find_tag(value: Any) -> str:
        name = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
        if isinstance(name, str) and name in broken:
            raise broken[name]
        return name if isinstance(name, str) and name in models else PLUGIN

    tagged = [Annotated[model, Tag(name)] for name, model in {**models, PLUGIN: plugin}.items()]
    return Annotated[Union[tuple(tagged)], Discriminator(find_tag)]  # noqa: UP007 - Their number is not known.


SOURCES, BROKEN_SOURCES = load_models("replicator.source_options", SourceOptions)
"""The options models of sources, by transport; and the errors of those that cannot be loaded."""
SINKS, BROKEN_SINKS = load_models("replicator.sink_options", SinkOptions)
"""The same for sinks, by kind."""
STORES, _ = load_models("replicator.store_options", StoreOptions)
"""The options models of stores, by the section of the config."""
