"""A build in two halves, for batch queues: documents are written and listed here, encoded anywhere, then published.

`prepare_parts` writes the documents of every part and `pending.json`, which lists the parts without embeddings.
`encode_pending` encodes some of them, in any number of processes on any number of machines that share only the index:
a common folder or object storage. `build_index` then uses these parts, encodes missing ones, and continues as usual.
"""

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from indexer.corpus.records import Records
from indexer.errors import ConfigError, CorruptIndexError, MismatchError, NotAnIndexError, StoreError, spelled
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.resolution import resolve_spec
from indexer.pipeline.build import ingested_corpus, is_up_to_date
from indexer.pipeline.generation import Generation
from indexer.pipeline.steps.build_encoder import LazyEncoder, stored_state
from indexer.pipeline.steps.encode import EncodedParts, encode_tasks, share_inputs
from indexer.pipeline.steps.ingest import PendingPart
from indexer.pipeline.steps.part_encoder import EncodedPart, EncodeTask
from indexer.pipeline.steps.reuse import ReusedRows
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig
from indexer.recipe.loading import named_path
from indexer.recipe.run_options import RunOptions
from indexer.store import layout, parts
from indexer.store.files import remove_folder, writer_lock
from indexer.store.integrity import check_file
from indexer.store.manifest import list_generations, load_generation
from indexer.store.parts import ListedPart, PartRecord, PendingList
from indexer.store.sending import Sender, open_sender
from indexer.store.stores import open_stored, store_at
from indexer.typed_arguments import checked
from indexer.typed_json import decode_json

_MOST_BYTES = 1 << 30  # of pending.json


@dataclass(frozen=True)
class PreparedParts:
    """Result of `prepare_parts`. `pending` counts the parts to encode, numbered from 0 for `encode_pending`."""

    index: Path
    up_to_date: bool
    documents: int
    parts: int
    pending: int
    rows: int  # to encode


@dataclass(frozen=True)
class EncodedPending:
    """Result of `encode_pending`. `left` counts all pending parts without embeddings."""

    index: Path
    parts_encoded: int
    parts_kept: int  # already complete
    left: int
    rows_encoded: int = 0
    tokens: int = 0
    retries: int = 0
    backend: str = ""
    notes: tuple[str, ...] = ()


@checked
def prepare_parts(
    corpus: Records,
    index: str | Path,
    config: BuildConfig | None = None,
    options: RunOptions | None = None,
    progress: Progress | None = None,
) -> PreparedParts:
    """Run the first half of `build_index`: read the corpus, write its documents, list the parts to encode.

    Raises as `build_index` for the recipe and the corpus, and StoreError for a list too large to be read back.
    """
    options, progress = options or RunOptions(), progress or NoProgress()
    with ingested_corpus(corpus, index, config or BuildConfig(), options, progress) as (generation, ingested):
        if is_up_to_date(generation, ingested):
            return PreparedParts(generation.index, True, ingested.documents, len(ingested.parts), 0, 0)
        pending = [part for part in ingested.parts if part.record is None]
        listed = _pending_to_json(generation, pending)
        share_inputs(generation, pending)
        generation.sender.list_pending(listed)
        missing = sum(part.missing for part in pending)
        return PreparedParts(generation.index, False, ingested.documents, len(ingested.parts), len(pending), missing)


@checked
def encode_pending(
    index: str | Path,
    numbers: slice = slice(None),
    options: RunOptions | None = None,
    progress: Progress | None = None,
    model: str | Path | None = None,
) -> EncodedPending:
    """Encode the incomplete parts among the slice `numbers` of the parts that `prepare_parts` listed.

    Any number of calls may run at once, on any machine that sees the folder or reaches the object storage; calls that
    encode the same part write the same bytes. `model` is the model's folder if it differs on this machine. Raises
    NotAnIndexError if nothing was prepared, ConfigError for numbers without a part, MismatchError for another encoder
    than the prepared one, ModelError, MachineError, StoreError.
    """
    options, progress = options or RunOptions(), progress or NoProgress()
    folder = named_path(index, "the index")
    if not folder.is_dir() or not store_at(folder).has(layout.PENDING):
        raise _not_prepared(folder)
    with writer_lock(folder, shared=True), closing(open_sender(folder)) as sender:
        config, fingerprint, pending = _read_pending(folder)
        beyond = _check_numbers(folder, numbers, len(pending))
        spec = _spec(folder, config, fingerprint, model)
        chosen, tasks, encoded = pending[numbers], list[EncodeTask](), list[EncodedPart]()
        for part in chosen:
            if (record := _whole_record(folder, part, fingerprint, sender)) is None:
                tasks.append(EncodeTask(folder.absolute(), part))
            else:
                sender.send_part(part.name, record)  # a killed process may not have sent it
        for task in tasks if store_at(folder).is_local else ():
            check_file(task.folder / layout.DOCUMENTS, task.part.written.digest)
        try:
            for result in encode_tasks(tasks, LazyEncoder(config, options, spec), options, progress):
                sender.send_part(result.name, result.record)
                encoded.append(result)
            sender.wait()
        except CorruptIndexError:
            _read_pending(folder)  # raises NotAnIndexError if another machine has published and swept the documents
            raise
        complete = store_at(folder).complete_parts()
        left = sum(part.name not in complete for part in pending)
        fatal = sum(len(part.record.quarantined) for part in encoded)
        lists = f"{spelled('build_index', '`isotrope build`')} lists them with possible fixes"
        note = f"{fatal:,} documents crashed the encoder; {lists}"
        work = EncodedParts([part.record for part in encoded], encoded).work()
        work = {name: work[name] for name in ("rows_encoded", "tokens", "retries", "backend")}
        notes = (*beyond, note) if fatal else beyond
        return EncodedPending(folder, len(encoded), len(chosen) - len(encoded), left, **work, notes=notes)


@checked
def cancel_pending(index: str | Path) -> int:
    """Remove the list of `prepare_parts` and its parts, encoded or not. Published generations stay.

    Returns the number of removed parts. Raises NotAnIndexError if nothing was prepared, LockedError, StoreError.
    """
    folder = named_path(index, "the index")
    if not folder.is_dir() or not store_at(folder).has(layout.PENDING):
        raise _not_prepared(folder)
    with writer_lock(folder), closing(open_sender(folder)) as sender:
        named = {name for number in list_generations(folder) for name in load_generation(folder, number).files}
        kept = {name.rpartition("/")[0] for name in named}
        gone = set[str]()
        with suppress(CorruptIndexError):  # the next publication removes the parts of a damaged list
            gone = {part.name for part in _read_pending(folder)[2]} - kept
        sender.end_pending(kept)
        for name in gone:
            if (folder / name).is_dir():
                remove_folder(folder, name)
        return len(gone)


def _check_numbers(folder: Path, numbers: slice, pending: int) -> tuple[str, ...]:
    """Return a note on a range that ends beyond the listed parts. Raises ConfigError for a range without any part.

    Without pending parts every range is valid.
    """
    first, end = numbers.start or 0, numbers.stop
    written = f"{first}" if end == first + 1 else f"{first}:{'' if end is None else end}"
    given = f"{spelled('numbers', '--parts')} {written}"
    listed = f"parts are numbered 0 to {pending - 1}" if pending > 1 else "the only part has the number 0"
    if pending and not range(pending)[numbers]:
        raise ConfigError(
            f"{folder}: {given} contains no part: {listed}. Fix: correct the range, or in a job array the job numbers."
        )
    beyond = pending and end is not None and end > pending
    return (f"{given} ends beyond the last part: {listed}",) if beyond else ()


def _spec(folder: Path, config: BuildConfig, fingerprint: str, model: str | Path | None) -> EncoderSpec:
    spec = resolve_spec(config, model)
    if spec.identity.needs_state and (state := stored_state(folder, spec)) is not None:
        spec = state.of(folder, spec)
    if spec.fingerprint != fingerprint:
        raise MismatchError(
            f"{folder}: prepared for another encoder than {spec.folder}. The model's files, or the state fitted to the "
            "corpus, have changed since. Fix: restore them, or prepare the build again."
        )
    return spec


def _whole_record(folder: Path, part: PendingPart, fingerprint: str, sender: Sender) -> PartRecord | None:
    """Return the record of a complete part; withdraw an incomplete one."""
    record = parts.read_record(folder / part.name)
    expected = part.written.document_key, fingerprint
    if record and (record.document_key, record.fingerprint) == expected and parts.is_intact(folder / part.name, record):
        return record
    sender.withdraw(part.name)
    return None


# --- pending.json


def _pending_to_json(generation: Generation, pending: Sequence[PendingPart]) -> bytes:
    listed = list(map(_listed, pending))
    data = msgspec.json.encode(
        PendingList(layout.FORMAT, generation.config.to_dict(), generation.spec.fingerprint, listed)
    )
    if len(data) > _MOST_BYTES:
        raise StoreError(
            f"{generation.index / layout.PENDING}: would have {len(data):,} bytes for {len(pending):,} parts; the "
            f"limit is {_MOST_BYTES:,}. Nothing was listed. Fix: use more documents per part (store.part_documents), "
            f"or {spelled('call build_index alone', 'build without --prepare')}."
        )
    return data


def _listed(part: PendingPart) -> ListedPart:
    known = [(name, here.tolist(), there.tolist()) for name, here, there in part.known.by_part] if part.known else []
    return ListedPart(part.name, part.rows, part.written, known)


def _pending(part: ListedPart) -> PendingPart:
    known = ReusedRows(
        [(name, np.array(here, np.int32), np.array(there, np.int32)) for name, here, there in part.known]
    )
    pairs = all(len(here) == len(there) for _, here, there in part.known)
    if not pairs or len(np.unique(known.rows)) != len(known) or known.rows.max(initial=-1) >= part.rows:
        raise ValueError(f"{part.name}: its known rows are inconsistent")
    return PendingPart(part.name, part.written, part.rows, None, known)


def _read_pending(folder: Path) -> tuple[BuildConfig, str, list[PendingPart]]:
    """Return the recipe, the fingerprint of the encoder, and the parts."""
    path = folder / layout.PENDING
    try:
        with open_stored(path) as file:
            pending = decode_json(file.read(_MOST_BYTES), PendingList)  # a longer one is damaged
        if pending.format != layout.FORMAT:
            raise ValueError(f"its format is {pending.format}, expected {layout.FORMAT}")
        return BuildConfig.from_dict(pending.config), pending.fingerprint, list(map(_pending, pending.parts))
    except FileNotFoundError:
        raise _not_prepared(folder) from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except (ValueError, OverflowError, ConfigError) as error:
        raise CorruptIndexError(f"{path}: damaged ({str(error).rstrip('.')}). Fix: prepare the build again.") from error


def _not_prepared(folder: Path) -> NotAnIndexError:
    nothing = f"{folder}: has no pending parts to encode"
    prepare = spelled(f'prepare_parts(corpus, "{folder}")', f"isotrope build SOURCE {folder} --prepare")
    again = spelled(f'prepare_parts(corpus, "{folder}", options=RunOptions(overwrite=True))', f"{prepare} --overwrite")
    if generations := list_generations(folder):
        return NotAnIndexError(
            f"{nothing}: the index is published (generation {generations[-1]}), and no build has been prepared since. "
            f"Fix: use that index, or prepare another build with: {again}"
        )
    if not store_at(folder).has(layout.PARTS):
        return NotAnIndexError(
            f"{nothing}: the index does not exist. Fix: correct the name, or prepare with: {prepare}"
        )
    without = spelled("prepare_parts", "--prepare")
    return NotAnIndexError(f"{nothing}: a build was started without {without}. Fix: list its parts with: {prepare}")
