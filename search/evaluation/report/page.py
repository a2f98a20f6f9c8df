"""The report: a self-contained HTML file without scripts and network access."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from indexer.errors import EvaluationError
from indexer.hashing import canonical_sha256
from indexer.lazy_imports import require_extra
from indexer.progress import NoProgress, Progress
from indexer.store.files import FileDigest
from indexer.system.output_files import output_name
from search.describe import describe_index
from search.engine import SearchEngine
from search.evaluation.plots.drawing import require_plots
from search.evaluation.recall.recall import evaluate_recall
from search.evaluation.report import sections
from search.evaluation.report.duplicates import DuplicateClusters, duplicates, read_listing
from search.evaluation.report.sections import Block, Section
from search.evaluation.report.statistics import IndexStatistics, measure_statistics
from search.evaluation.result import KINDS, Clock, Result, read_result
from search.evaluation.tables import tables_of
from search.formatting import escape
from search.index import Index
from search.result_files import check_outputs, read_by, write_output


@dataclass(frozen=True)
class ReportOptions:
    """Result files and a file of duplicates to include, and whether to measure recall."""

    results: Sequence[Path] = ()
    duplicates: Path | None = None
    recall: bool = False


def write_report(
    engine: SearchEngine,
    path: Path,
    options: ReportOptions = ReportOptions(),
    progress: Progress | None = None,
    force: bool = False,
) -> FileDigest:
    """Write the report of an open index to `path`; overwrite a file only with `force`.

    Raises ConfigError for a path that cannot be written, ExistsError, MachineError without matplotlib, EvaluationError
    for an invalid result file and for an index without documents, and what `read_duplicates`, `evaluate_recall` and
    writing raise.
    """
    clock, progress = Clock(), progress or NoProgress()
    check_outputs({output_name(): path}, read_by(engine.index.path, *options.results, options.duplicates), force)
    require_plots()
    if not len(engine):
        raise EvaluationError(f"{engine.index.path}: has no documents to report on. Fix: add documents first.")
    results = [read_result(file) for file in options.results]
    listing = read_listing(options.duplicates) if options.duplicates else None
    progress.phase("measuring vectors", None)
    figures = measure_statistics(engine.index)
    remark = ""
    if options.recall:
        try:
            measured = evaluate_recall(engine, progress=progress)
        except EvaluationError as error:  # for example too few documents; the rest can be reported
            remark = f"Recall was not measured: {error}"
        else:
            results.append(replace(measured, source="measured for this report"))
    page = render(engine.index, figures, results, clock.provenance(None, {}), remark, listing)
    return write_output(path, page.encode(), force=force)


def render(
    index: Index,
    figures: IndexStatistics,
    results: Sequence[Result],
    provenance: dict[str, Any],
    remark: str = "",
    listing: DuplicateClusters | None = None,
) -> str:
    """Return the page; `remark` explains a failed measurement. Equal arguments give equal bytes."""
    about = describe_index(index)
    content = [
        sections.description(about),
        sections.isotropy(about, figures),
        sections.documents(figures),
        sections.gates(about),
        *([duplicates(index, listing)] if listing else []),
        *(_result(result, index) for result in results),
    ]
    page = _template().render(
        name=index.path.resolve().name,
        made=f"{datetime.fromisoformat(provenance['created']):%d %B %Y}",
        cards=sections.cards(about, figures),
        sections=content,
        remark=remark,
        provenance=_provenance(index, provenance),
    )
    return str(page)


def _result(result: Result, index: Index) -> Section:
    facts = {"command": result.provenance.get("command"), "made": result.provenance.get("created")}
    origin = "; ".join([result.source, *(f"{name}: {value}" for name, value in facts.items() if value)])
    blocks: list[Block] = [("text", origin)]
    blocks += [("remark", remark) for remark in _remarks(result, index)]
    blocks += [("table", table) for table in tables_of(result)]
    return Section(KINDS[result.kind].heading, blocks + [("text", note) for note in result.notes])


def _remarks(result: Result, opened: Index) -> list[str]:
    """Return remarks if a result may be of another index."""
    remarks = []
    own = opened.manifest.fingerprint
    if others := sorted(result.encoders - {own}):
        part = "Part of this result" if own in result.encoders else "This result"
        short = ", ".join(f"{other[:12]}…" for other in others)
        remarks.append(f"{part} was measured with another encoder than the index's: {short} instead of {own[:12]}….")
    index = result.provenance.get("index")
    manifest = index.get("manifest") if isinstance(index, dict) else None
    if manifest and manifest != canonical_sha256(opened.manifest.to_dict()):
        remarks.append("Measured on another index, or on another generation of this index.")
    return remarks


def _provenance(index: Index, provenance: dict[str, Any]) -> list[tuple[str, str]]:
    def listed(versions: Mapping[str, str | None]) -> str:
        return ", ".join(f"{name} {version}" for name, version in versions.items())

    manifest = index.manifest
    return [
        ("command", provenance["command"]),
        ("made", provenance["created"]),
        ("generation", f"{manifest.generation}, manifest {canonical_sha256(manifest.to_dict())}"),
        ("encoder", f"fingerprint {manifest.fingerprint}"),
        ("transform", f"sha256 {manifest.files[manifest.transform['file']].sha256}"),
        ("built with", listed(manifest.versions)),
        ("reported with", listed(provenance["versions"])),
    ]


@cache
def _template() -> Any:
    environment = require_extra("jinja2", "plots").Environment(autoescape=True, finalize=_shown)
    return environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def _shown(value: Any) -> Any:
    """Return markup unchanged, and text with control and formatting characters escaped."""
    return value if hasattr(value, "__html__") else escape(str(value))
