"""Options that decoders of plain rows share: names of operations, and declared columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from itertools import combinations
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError, model_validator

from replicator.domain.change import Op
from replicator.domain.errors import ConfigProblem, Reject, RejectCode
from replicator.domain.sequence import MAX_EPOCH
from replicator.domain.transform.columns import Mask

from ...arrow.out_of_range_values import OutOfRangeOptions
from ...arrow.record_errors import ValueMisfit
from ...arrow.record_limits import RecordLimits, find_table_entry
from ...arrow.value_readers import ValueReader
from ..json.type_names import find_type_reader

OPS = {"create": Op.CREATE, "update": Op.UPDATE, "delete": Op.DELETE, "read": Op.READ}


def _to_texts(value: object) -> object:
    """Texts of values from YAML, which reads `1` as a number."""
    several = value if isinstance(value, list | tuple) else [value]
    return [str(one) if isinstance(one, int) else one for one in several]


Texts = Annotated[tuple[str, ...], BeforeValidator(_to_texts)]


class RowOptions(OutOfRangeOptions):
    """Options of a decoder of plain rows.

    - `operation_column`: the column with the operation of a row.
    - `operations`: for each operation the values that mean it.
    - `schema`: for each table (exact name or glob) its columns and their types.
    - `keys`: for each table its key.
    - `epoch`: see `domain.sequence.EPOCH_SHIFT`.
    - `private`: for each table the masks of its masked columns; tables without masks are included.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)

    USUAL: ClassVar[Mapping[str, tuple[str, ...]]]
    """The names of operations if the configuration has none."""
    UNSAID: ClassVar[Collection[str]] = ()
    """Names of operations that only transports write."""

    operation_column: str = Field(min_length=1)
    operations: dict[Literal["create", "update", "delete", "read"], Texts] = Field(default_factory=dict)
    declared: dict[str, dict[str, str]] = Field(default_factory=dict, alias="schema")
    keys: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    epoch: int = Field(default=0, ge=0, le=MAX_EPOCH)
    private: dict[str, dict[str, InstanceOf[Mask]]] = Field(default_factory=dict)
    limits: RecordLimits = RecordLimits()

    @model_validator(mode="after")
    def _check_meanings(self) -> RowOptions:
        for (one, texts), (other, others) in combinations(self.list_meanings().items(), 2):
            if set(texts) & set(others):
                raise ValueError(f"operations: {one} and {other} have a value in common")
        return self

    def list_meanings(self) -> Mapping[str, tuple[str, ...]]:
        """For each operation the values that mean it."""
        return {str(name): texts for name, texts in (self.operations or self.USUAL).items()}

    @cached_property
    def operation_of(self) -> Mapping[str, Op]:
        """The operation of each value of the operation column."""
        return {text: OPS[name] for name, texts in self.list_meanings().items() for text in texts}

    def columns_of(self, table: str) -> Mapping[str, str] | None:
        """The declared columns of `table`, if any."""
        return find_table_entry(self.declared, table) or None

    def keys_of(self, table: str) -> tuple[str, ...] | None:
        """The configured key of `table`, if any."""
        return find_table_entry(self.keys, table) or None

    def unknown_operation_reject(self, value: object) -> Reject:
        """The reject of a row with a missing or unknown operation."""
        known = ", ".join(sorted(self.operation_of.keys() - self.UNSAID))
        said = "no operation" if value is None else "an operation that is not known"
        return Reject(RejectCode.UNKNOWN_OPERATION, f"column {self.operation_column!r} holds {said}; known are {known}")


T = TypeVar("T", bound=BaseModel)


def read_options(model: type[T], options: Mapping[str, object], name: str) -> T:
    """The validated options of the format `name`. Raises ConfigProblem that names wrong options, not their values."""
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)
        said = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}".removeprefix(": ") for e in wrong)
        raise ConfigProblem(f"options of {name}: {said}", next_step="Correct them in the source's settings.") from None


def refuse_types(
    declared: Mapping[str, Mapping[str, str]], names: str, can_be: Callable[[ValueReader], bool] = lambda _: True
) -> None:
    """Raise ConfigProblem for every declared column with an unreadable type. The message proposes `names`."""
    bad = [
        f"column {name!r} of table {table} is declared as {said!r}, which is no type this format can read"
        for table, columns in declared.items()
        for name, said in columns.items()
        if not _is_readable(said, can_be)
    ]
    if bad:
        raise ConfigProblem("; ".join(bad), next_step=f"Use an Arrow type name such as {names}.")


def _is_readable(said: str, can_be: Callable[[ValueReader], bool]) -> bool:
    try:
        return can_be(find_type_reader(said))
    except ValueMisfit:
        return False
