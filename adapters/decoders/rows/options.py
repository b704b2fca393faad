"""The options of the decoder, checked on their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import combinations
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from replicator.domain.change import Op
from replicator.domain.errors import ConfigProblem
from replicator.domain.sequence import MAX_EPOCH

from ...arrow.json.faults import Unfit
from ...arrow.json.limits import Limits, of_table
from ...arrow.json.spelling import NAMES, node_of

OPERATION = "_op"
SEQUENCE = ("_version", "_order", "_row")
BEFORE = "_before"
"""What the records of `transport: delta` are called in."""
OPERATIONS = {"create": ("c", "I"), "update": ("u", "U"), "delete": ("d", "D"), "read": ("r",)}
OPS = {"create": Op.CREATE, "update": Op.UPDATE, "delete": Op.DELETE, "read": Op.READ}


def _texts(value: object) -> object:
    """YAML reads 1 as a number; it is compared as text."""
    several = value if isinstance(value, list | tuple) else [value]
    return [str(one) if isinstance(one, int) else one for one in several]


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]


class Options(BaseModel):
    """What `RowsDecoder` takes: see the package. `schema`: per table (exact name or glob) its columns and their types.
    `keys`: per table its key. `epoch`: see `domain.sequence.with_epoch`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)

    operation_column: str = Field(OPERATION, min_length=1)
    sequence_columns: tuple[str, ...] = Field(SEQUENCE, min_length=1, max_length=4)
    operations: dict[Literal["create", "update", "delete", "read"], Texts] = Field(default_factory=dict)
    declared: dict[str, dict[str, str]] = Field(default_factory=dict, alias="schema")
    keys: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    tombstones: Literal["ignore"] | dict[str, Literal["ignore"]] = "ignore"
    epoch: int = Field(default=0, ge=0, le=MAX_EPOCH)
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _one_meaning_each(self) -> Options:
        for (one, texts), (other, others) in combinations(self.meanings().items(), 2):
            if set(texts) & set(others):
                raise ValueError(f"operations: {one} and {other} have a value in common")
        if len({*self.sequence_columns, self.operation_column}) <= len(self.sequence_columns):
            raise ValueError("operation_column and sequence_columns name a column twice")
        return self

    def meanings(self) -> Mapping[str, tuple[str, ...]]:
        """Per operation the values that mean it."""
        return {str(name): texts for name, texts in (self.operations or OPERATIONS).items()}

    @cached_property
    def operation_of(self) -> Mapping[str, Op]:
        """What each value of the operation column means."""
        return {text: OPS[name] for name, texts in self.meanings().items() for text in texts}

    def columns_of(self, table: str) -> Mapping[str, str] | None:
        """The declared columns of `table`, if any."""
        return of_table(self.declared, table) or None

    def keys_of(self, table: str) -> tuple[str, ...] | None:
        """The configured key of `table`, if any."""
        return of_table(self.keys, table) or None

    @property
    def before(self) -> str | None:
        """The field with the values that an update changed, where records have one."""
        return BEFORE if self.sequence_columns == SEQUENCE else None


def read_options(options: Mapping[str, object]) -> Options:
    """The options, or ConfigProblem that names every wrong one without its value."""
    try:
        found = Options.model_validate(dict(options))
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)
        said = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}".removeprefix(": ") for e in wrong)
        raise ConfigProblem(f"options of rows: {said}", next_step="Correct them in the source's settings.") from None
    _refuse_types(found.declared)
    return found


def _refuse_types(declared: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ConfigProblem that names every declared column whose type cannot be read."""
    bad = []
    for table, columns in declared.items():
        for name, said in columns.items():
            try:
                node_of(said)
            except Unfit:
                bad.append(
                    f"column {name!r} of table {table} is declared as {said!r}, which is no type this format can read"
                )
    if bad:
        raise ConfigProblem("; ".join(bad), next_step=f"Use an Arrow type name such as {NAMES}.")
