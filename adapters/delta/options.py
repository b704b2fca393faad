"""Options of what writes into a lake."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, ValidationError

from replicator.domain.errors import ConfigProblem


class LakeOptions(BaseModel):
    """`path`: a local folder or `file://` URL."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    path: str

    @classmethod
    def checked(cls, options: Mapping[str, object]) -> LakeOptions:
        """The options, or ConfigProblem naming each that is missing, unknown or of the wrong type."""
        try:
            return cls.model_validate(dict(options))
        except ValidationError as error:
            found = [f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors(include_input=False)]
            raise ConfigProblem(
                f"options of a Delta sink: {'; '.join(found)}", next_step="The only option is `path`, the lake's folder."
            ) from None
