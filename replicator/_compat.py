"""Names of `replicator.ports` and `replicator.testing` up to 0.1, which adapters of third parties import.

An old name gives the new object and warns. This module goes with version 0.3."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_TABLE = """
ports.backfill > ports.source: Journal=BackfillJournal ReadsBeside=SourceFeatures ReadsConcurrently=SourceFeatures
    TOPICS=BACKFILL_TOPICS Taken=BackfillSnapshot
ports.bulk_load > ports.sink: PartitionsByKey=ports.engine.KeyPartitions
ports.checkpoints > ports.sink: FindsLogCuts=ports.sink.SinkFeatures OpensStoredLanes=ports.sink.SinkFeatures
    RestoresState=ports.sink.SinkFeatures TruncatesLog=ports.sink.SinkFeatures
ports.comparison > ports.reads: Compares=ports.sink.SinkFeatures
ports.components: DeadLetterPlace=DeadLetterStoreKind
ports.dead_letters > ports.stores: EVERY=ALL_DEAD_LETTERS KeepsVersions=DeadLetterFeatures LetterGroup=DeadLetterGroup
    Which=DeadLetterFilter
ports.decoder: FiltersErased=DecoderFeatures KeepsPrivate=DecoderFeatures MasksRecords=DecoderFeatures
    PrintsRecords=DecoderFeatures ReadsTransactionMarks=DecoderFeatures TellsTransactions=DecoderFeatures
    Withholds=DecoderFeatures
ports.diagnosis > ports.runtime:
ports.discovery > ports.source:
ports.engine: Prefetches=Prefetch SeesTransactions=TransactionTracking TracksTransactions=TransactionTracking
    WorksAhead=Prefetch
ports.event_store > ports.stores:
ports.frames: Applied=ApplyOutcome ApplyBatch=ConsumeBatch Folded=FoldedChanges LaneApplied=LaneOutcome
    Rejected=RejectedRecord Routed=RoutedBatch Run=RecordSlice Shaped=TransformedChanges
ports.laying > ports.sink: Loads=BulkLoads PartsByKey=ports.engine.KeyPartitions
    PartitionsByKey=ports.engine.KeyPartitions
ports.lineage > ports.runtime:
ports.monitor > ports.runtime: Monitor=Server
ports.projector: Replaced=ReplaceResult
ports.read_side > ports.reads: NotThere=NotFound Target=ReadTarget Wanted=PageRequest
ports.reader > ports.reads: ListsVersions=TargetVersions SelectRows=ports.sink.SinkFeatures Selects=ports.sink.SinkFeatures
    SelectsRows=ports.sink.SinkFeatures TellsVersions=TargetVersions
ports.register > ports.stores: Seen=RegisterEntry
ports.server > ports.runtime:
ports.service > ports.runtime:
ports.sink: Belonging=LaneArtifact Compacted=CompactionResult Compacts=SinkFeatures Drops=LaneRemoval
    Erased=ErasureResult Erases=KeyErasure ErasesRecords=RecordErasure Explains=SinkFeatures Hurries=SinkFeatures
    Judge=CutoverDecision Publishes=SinkFeatures RefusesSecondWriter=SinkFeatures RemembersSchemas=SchemaStore
    SinkCapabilities=SinkFeatures StoresSchemas=SchemaStore Swaps=SinkFeatures
    TombstoneLedger=testing.sink_contract.TombstoneStore TombstoneStore=testing.sink_contract.TombstoneStore
    Vacuumed=VacuumResult VacuumTarget=SinkFeatures Vacuums=SinkFeatures
ports.source: HasSnapshots=SourceFeatures LogTruncated=SourceFeatures NamesFiles=SourceFiles NamesTopics=SourceFeatures
    Shortened=SourceFeatures WaitsBeside=SourceFeatures WaitsForServer=SourceFeatures
ports.state_snapshots > ports.sink: Seeds=ports.sink.SinkFeatures Shortens=ports.sink.SinkFeatures
    TellsTimes=ports.sink.SinkFeatures Unfit=CheckpointUnsupported
ports.telemetry > ports.runtime: HasPace=ports.source.SourceFeatures Paced=ports.source.SourceFeatures
testing.column_transform_cases > testing.transform_cases:
testing.contract: REASON=OVERRIDE_REASON needs=require
testing.dead_letter_contract > testing.stores_contract: FIRST=FIRST_TIME ODD=ODD_TEXT letter=make_dead_letter
testing.debezium: column_kinds=list_column_types raw_frame=make_raw_frame
testing.decoder_contract: bad_records=make_bad_records halves=split_in_two
testing.decoder_fuzz: ALONE=ALONE_RECORDS Fuzz=DecoderFuzz code=get_code difference=find_difference fewest=find_fewest
    note=note_progress same=is_same shorter=truncate_value shown=to_texts smallest=find_smallest
testing.delivery: Delivering=DeliveryRun Target=SinkTarget arrivals=list_arrivals canonical=to_canonical
    canonical_rows=to_canonical_rows keeping_deletes=make_retention_plans lane_of=make_lane under=make_watermark_plans
testing.engine_ahead > testing.engine_contract: EngineAhead=EnginePrefetchContract
testing.engine_base > testing.engine_contract:
testing.engine_contract: ROWS=BATCH_ROWS UNSEEN=UNSEEN_SHAPE fake_raw=make_fake_raw odd_records=make_odd_records
testing.engine_drops > testing.engine_contract:
testing.engine_partitions > testing.engine_contract:
testing.engine_parts > testing.engine_contract: EngineParts=EnginePartitions NUMBER=PARTITIONS
testing.engine_prefetch > testing.engine_contract:
testing.engine_row_transforms > testing.engine_contract:
testing.engine_shapes > testing.engine_contract: EngineShapes=EngineRowTransforms MOVE=KEY_CHANGE
    expressions=list_expressions
testing.event_lanes_base > testing.event_lanes_contract: Place=EventStoreFixture emitted=make_sample_event
    until_done=retry_until_done
testing.event_lanes_histories > testing.event_lanes_contract:
testing.event_store_contract > testing.stores_contract: FIRST=FIRST_TIME GREEK=UNICODE_TEXT ODD=ODD_EVENT_TEXT
    ODD_TEXT=ODD_EVENT_TEXT emitted=make_sample_event
testing.fake_decoder > testing.fakes: decoded=decode_value encoded=encode_change
testing.fake_event_store > testing.stores_contract:
testing.fakes: advanced=advance_state batch=make_batch bounds=find_bounds places=list_positions
testing.faults > testing.fakes: Pass=PassCall Reject=RefuseCall
testing.histories: Delivery=BatchDelivery any_history=any_histories at_once=statement_end_histories cuts=batch_cuts
    random_history=make_random_history scrambled=scrambled_histories shapes=stream_shapes
testing.kinds > testing.source: KEY_KINDS=KEY_TYPES KINDS=VALUE_TYPES Kind=ValueType instant=encode_instant
    micros=to_micros number=encode_number unscaled=encode_decimal
testing.lane_shapes > testing.transform_cases: All=EveryColumn Case=TransformCase KEEPING=EVERY_NULL_IGNORED
    KEYED=KEYED_TYPES ORDERLY=ORDERED_TYPES Others=AllButV1 among=make_among_condition element=to_element
    is_no_text=make_other_text_condition is_text=make_text_condition shaped_histories=transform_histories
testing.model: alike=is_alike fold=fold_changes shows_another=is_other_row
testing.model_column_transforms > testing.model_transforms:
testing.model_column_versions > testing.model:
testing.model_columns > testing.model: ByColumn=Scd1ColumnVersions
testing.model_expressions > testing.model_transforms: value_of=evaluate
testing.model_remade > testing.model_transforms: Computing=ModelComputedColumn Remaking=ModelColumnTransforms
    Told=NoValue Unfit=UnrepresentableValue
testing.model_row_transforms > testing.model_transforms:
testing.model_shapes > testing.model_transforms: Shaped=TransformingPolicy Wanted=ModelRowTransforms
testing.mutations > testing.decoder_fuzz: DOWN=NESTED_SHARE MARK=RAW_MARK altered_bytes=alter_bytes
    altered_csv=alter_csv altered_json=alter_json
testing.plain_plan: plain=to_plain sequence_of=get_sequence
testing.plain_watermark > testing.plain_plan:
testing.projector_contract: FIRST=FIRST_ROWS SUMS=SUM_QUERY sums=make_projection
testing.remade_shapes > testing.transform_cases: Both=TransformPair GONE=NOTHING_MASK HIDDEN=FIXED_MASK
    changed=make_changed_pair clear=to_masked_text computing=make_computed_pair digest=hash_text louder=compute_louder
    small=to_small text=to_text thrice=compute_thrice whole=to_whole
testing.row_transform_cases > testing.transform_cases:
testing.seeds_contract > testing.restore_contract: Begins=RestoreCase KINDS=RESTORE_CASES REMEMBERED=REMEMBERED_CASES
    SeedsContract=RestoreContract remembering=read_state softly=plan_soft_deletes told=to_comparable
testing.sink_ageing > testing.sink_retention: AGEING=AGEING_STEPS SOFT=SOFT_CASES SinkAgeing=SinkSoftDeletes
testing.sink_base: full_disk=fail_on_rejects moved=move_position no_rejects=refuse_rejects simple=make_history
    stored=to_stored_sequence writes=make_writes
testing.sink_beside > testing.sink_operations: LeftOut=OutOfBandRun NOWHERE=EMPTY_SPAN SinkBeside=SinkOutOfBand
testing.sink_bulk_load > testing.sink_operations:
testing.sink_column_versions > testing.sink_row_transforms: PARTIAL_CHANGES=COLUMN_CHANGES
testing.sink_columns > testing.sink_row_transforms: PARTS=COLUMN_CHANGES SinkColumns=SinkColumnVersions
    in_parts=partial_histories plans=plan_column_versions
testing.sink_contract: KEYED=KEYED_TYPES LedgerContract=TombstoneContract SOFT=SOFT_DELETES alike=make_alike
    applied=find_applied attempt=try_write softly=plan_soft_deletes span=make_span
testing.sink_drops > testing.sink_operations: DELETED=DELETE_HISTORY KEYED=KEYED_TABLE
testing.sink_erasing > testing.sink_operations: KEYED=KEYED_TABLE SinkErasing=SinkErasure
testing.sink_erasure > testing.sink_operations:
testing.sink_loads > testing.sink_operations: HalfWay=FailingPartitions MORE=MORE_HISTORY NUMBER=PARTITIONS
    SinkLoads=SinkBulkLoad
testing.sink_out_of_band > testing.sink_operations:
testing.sink_positions > testing.sink_base:
testing.sink_retention: KEPT=RETENTION at=make_time between=make_span came=make_changes forgotten=get_purged_sequence
    moments=make_times refuse=testing.sink_base.refuse_rejects refuse_rejects=testing.sink_base.refuse_rejects
    told=expect_rows
testing.sink_shapes > testing.sink_row_transforms: CUT=CUT_TEXT LEFT=LEFT_ROWS Lines=LaneStream PARTIAL=PARTIAL_TABLE
    STAYS=REMAINING_ROLES SinkShapes=SinkRowTransforms TEXTUAL=TEXT_TABLE TIMED=TIMED_TABLE TOLD=PARTIAL_CHANGES
testing.sink_soft_deletes > testing.sink_retention: LATE=LATE_DELETES
testing.sink_swaps > testing.sink_operations: HISTORY=SWAP_HISTORY LATE=LATE_DELETE anew=make_rebuild_lane
    as_rebuilt=decide_rebuilt
testing.sink_watermarks > testing.sink_retention: Arriving=ArrivingChange HISTORY=FIRST_HISTORY LATE=LATE_EVENTS
    ONCE=FIRST_CHANGES after=find_position arrived=make_arrivals at=make_event_time make_time=make_event_time
    resent=make_resent
testing.source: Event=SourceEvent Shape=StreamShape
testing.source_contract: Reader=BatchRecorder Stream=SourceStream dict_of=headers_to_dict filled=drop_empty
    partition_of=get_partition place=get_position records=make_records whole=make_whole_span
testing.stored_outbox > testing.event_lanes_contract: BEGAN=FIRST_TIME NAMES=COLUMN_NAMES Outbox=OutboxRecords
    Sent=SentEvent
testing.value_types > testing.source:
"""
"""`old module > new module: Old=New ...`, below `replicator`; names that are not there have not changed. `New` may name
its own module: `ports.sink.SinkFeatures`."""

PACKAGE = "replicator."


def _read_table() -> Mapping[str, tuple[str, Mapping[str, str]]]:
    """By old module: the new one, and new names by old ones."""
    moved: dict[str, tuple[str, Mapping[str, str]]] = {}
    for line in _TABLE.replace("\n    ", " ").strip().splitlines():
        modules, _, names = line.partition(":")
        old, _, new = modules.partition(" > ")
        pairs = (pair.split("=") for pair in names.split())
        moved[PACKAGE + old] = (PACKAGE + (new or old), {name: renamed for name, renamed in pairs})  # noqa: C416 - a pair is a list
    return moved


ALIASES = _read_table()


def find_new_name(module: str, name: str) -> tuple[str, str]:
    """The module and the new name of a name in an old module."""
    target, names = ALIASES[module]
    new_module, _, new = names.get(name, name).rpartition(".")
    return (PACKAGE + new_module if new_module else target), new


def _find_alias(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module that had other names, or another name."""
    target, names = ALIASES[module]

    def find(name: str) -> Any:
        if name not in names and (module == target or name.startswith("__")):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new_module, new = find_new_name(module, name)
        attribute = getattr(import_module(new_module), new)
        text = f"{module}.{name} is now {new_module}.{new}; the old name goes with version 0.3"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return attribute

    return find


class _OldModule(Loader):
    """Loads a module that has moved: every name is looked up in the new one."""

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = _find_alias(module.__name__)  # type: ignore[method-assign]


class _OldNames(Loader):
    """Loads an existing module, with its old names in addition to the new ones."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__getattr__ = _find_alias(module.__name__)  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        """All other methods of the module's own loader. Tools call them to read the source."""
        return getattr(self._loader, name)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in ALIASES:
            return None
        if ALIASES[fullname][0] != fullname:
            return ModuleSpec(fullname, _OldModule())
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in others if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _OldNames(spec.loader)
        return spec


def install() -> None:
    """Make the old names importable. Once per process, before anything of these packages is imported."""
    sys.meta_path.insert(0, _Finder())
