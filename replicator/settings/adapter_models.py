"""The options models of installed adapters, and the choice between them in the config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, Union

from pydantic import ConfigDict, Discriminator, Tag

from replicator.domain.errors import EnvironmentProblem
from replicator.ports.adapter_options import AdapterOptions

from .plugins import list_names, load_adapter

PLUGIN = "plugin"
"""The tag of an adapter without a model."""


class FreeForm(AdapterOptions):
    """A section of the config for an adapter without a model. The adapter gets a mapping."""

    model_config = ConfigDict(extra="allow")


M = TypeVar("M", bound=AdapterOptions)


def load_models(group: str, base: type[M]) -> Mapping[str, type[M]]:
    """The models in an entry point group, by the names of their adapters. Built-in adapters come first.

    EnvironmentProblem if there is none, and for an entry that is not a subclass of `base`.
    """
    found = {name: load_adapter(group, name) for name in list_names(group)}
    if not found:
        raise EnvironmentProblem(
            f"No installed package has adapters in the group {group!r}: the package of Replicator is not installed, or by "
            "an older version",
            next_step="Install it again: pip install replicator; for a checkout: pip install -e .",
        )
    for name, model in found.items():
        if not (isinstance(model, type) and issubclass(model, base)):
            raise EnvironmentProblem(
                f"The entry point {name!r} in the group {group!r} is not a subclass of {base.__module__}.{base.__name__}",
                next_step="Install another version of its package, or remove it.",
            )
    return dict(sorted(found.items(), key=lambda item: (item[1].rank, item[0])))


def join_models(models: Mapping[str, type[Any]], plugin: type[Any], find_tag: Callable[[Any], str]) -> Any:
    """The type of a section of the config: the model that `find_tag` names, or else `plugin`."""
    tagged = [Annotated[model, Tag(name)] for name, model in {**models, PLUGIN: plugin}.items()]
    return Annotated[Union[tuple(tagged)], Discriminator(find_tag)]  # noqa: UP007 - Their number is not known.
