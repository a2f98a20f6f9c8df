"""The page: one HTML file that needs nothing else, no network and no script."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from indexer.errors import EvaluationError
from indexer.hashing import canonical_sha256
from indexer.progress import NoProgress, Progress
from indexer.store.files import FileDigest
from search.describe import describe_index
from search.engine import SearchEngine
from search.evaluation.plots.drawing import require_plots
from search.evaluation.recall.recall import evaluate_recall
from search.evaluation.report import sections
from search.evaluation.report.duplicates import DuplicateClusters, duplicates, read_listing
from search.evaluation.report.html import Html, facts, join, section, table, tag
from search.evaluation.report.statistics import IndexStatistics, measure_statistics
from search.evaluation.result import Clock, Result, read_result
from search.evaluation.tables import heading_of, tables_of
from search.files import check_outputs, read_by, write_output
from search.index import Index

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8881; }
body { margin: 0 auto; max-width: 46rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem; } h3 { font-size: 1rem; }
.cards { display: grid; grid-template-columns: 1fr 1fr; gap: .6rem; padding: 0; }
.cards li { list-style: none; background: var(--soft); border-radius: .5rem; padding: .6rem .8rem; }
.cards b { display: block; font-size: 1.15rem; } .cards span, figcaption, footer, dd { font-size: .875rem; }
.scroll { overflow-x: auto; margin: .8rem 0; } table { border-collapse: collapse; font-size: .875rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--line); }
th, td { white-space: nowrap; font-weight: 600; } td { font-weight: 400; font-variant-numeric: tabular-nums; }
tbody th { white-space: normal; min-width: 7rem; } table { overflow-wrap: normal; }
.explained td:last-child { white-space: normal; min-width: 14rem; }
figure { margin: 1rem 0; } svg { display: block; width: 100%; max-width: 34rem; height: auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; } figcaption { opacity: .8; }
dt { font-weight: 600; font-size: .875rem; } dd { margin: 0 0 .5rem; } .facts dd { margin: 0; }
.facts div { padding: .3rem 0; border-bottom: 1px solid var(--line); }
@media (min-width: 36rem) {
  .cards { grid-template-columns: 1fr 1fr 1fr; } tbody th { min-width: 12rem; }
  .facts div { display: grid; grid-template-columns: 9rem 1fr; }
}
.remark { border-left: .25rem solid #e08214; padding-left: .6rem; }
.cluster { border-left: .25rem solid var(--line); padding-left: .8rem; margin: 1.2rem 0; font-size: .875rem; }
.cluster h4, .cluster p { margin: .3rem 0; } .cluster ul { list-style: none; margin: 0; padding: 0; }
.cluster li { border-top: 1px solid var(--line); padding: .3rem 0; }
.score { white-space: nowrap; font-variant-numeric: tabular-nums; } code { background: var(--soft); padding: 0 .2rem; }
footer { margin-top: 2.5rem; opacity: .85; }
"""


@dataclass(frozen=True)
class ReportOptions:
    """What a report shows beside the index: result files, a file of duplicates, and recall, measured now if asked."""

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
    """Write the report of an open index to `path`; over another file only with `force`.

    Raises ConfigError for a path that cannot be written, ExistsError, MachineError without matplotlib,
    EvaluationError for a file that is no result, what `read_duplicates` raises, and what `evaluate_recall` and writing
    raise.
    """
    clock, progress = Clock(), progress or NoProgress()
    check_outputs({"-o": path}, read_by(engine.index.path, *options.results, options.duplicates), force)
    require_plots()
    results = [read_result(file) for file in options.results]
    listing = read_listing(options.duplicates) if options.duplicates else None
    progress.phase("measuring vectors", None)
    figures = measure_statistics(engine.index)
    remark = ""
    if options.recall:
        try:
            measured = evaluate_recall(engine, progress=progress)
        except EvaluationError as error:  # such as too few documents, which keeps nothing else from being reported
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
    """The page as text; `remark` says what could not be measured. The same arguments give the same bytes."""
    made = datetime.fromisoformat(provenance["created"])
    about = describe_index(index)
    name = index.path.resolve().name
    body = join(
        [
            tag("header", tag("h1", name), tag("p", f"Isotrope report, {made:%d %B %Y}")),
            sections.overview(about, figures),
            sections.description(about),
            sections.isotropy(about, figures),
            sections.documents(figures),
            sections.gates(about),
            *([duplicates(index, listing)] if listing else []),
            *(_result(result, index) for result in results),
            *[tag("p", remark, class_="remark")] * bool(remark),
            _footer(index, provenance),
        ]
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{name}: Isotrope report"),
        tag("style", Html(_STYLE)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _result(result: Result, index: Index) -> Html:
    body: list[Html] = [tag("p", _made(result))]
    body += [tag("p", remark, class_="remark") for remark in _remarks(result, index)]
    for laid_out in tables_of(result):
        body += [tag("h3", laid_out.caption)] * bool(laid_out.caption)
        body.append(table(laid_out.columns, laid_out.rows))
        body += [tag("p", remark) for remark in laid_out.remarks]
    body += [tag("p", note) for note in result.notes]
    return section(heading_of(result), *body)


def _made(result: Result) -> str:
    said = {name: result.provenance.get(key) for name, key in [("command", "command"), ("made", "created")]}
    return "; ".join([result.source, *(f"{name}: {value}" for name, value in said.items() if value)])


def _remarks(result: Result, opened: Index) -> list[str]:
    """What keeps a result from being about this index."""
    remarks = []
    own = opened.manifest.fingerprint
    if others := sorted(result.encoders - {own}):
        some = "Some of this" if own in result.encoders else "This"
        short = ", ".join(f"{other[:12]}…" for other in others)
        remarks.append(f"{some} was measured with another encoder than the index's: {short} instead of {own[:12]}….")
    index = result.provenance.get("index")
    manifest = index.get("manifest") if isinstance(index, dict) else None
    if manifest and manifest != canonical_sha256(opened.manifest.to_dict()):
        remarks.append("Measured on another index, or on another generation of this one.")
    return remarks


def _footer(index: Index, provenance: dict[str, Any]) -> Html:
    def listed(versions: Mapping[str, str | None]) -> str:
        return ", ".join(f"{name} {version}" for name, version in versions.items())

    manifest = index.manifest
    rows = [
        ("command", provenance["command"]),
        ("made", provenance["created"]),
        ("generation", f"{manifest.generation}, manifest {canonical_sha256(manifest.to_dict())}"),
        ("encoder", f"fingerprint {manifest.fingerprint}"),
        ("transform", f"sha256 {manifest.files[manifest.transform['file']].sha256}"),
        ("built with", listed(manifest.versions)),
        ("reported with", listed(provenance["versions"])),
    ]
    return tag("footer", tag("h2", "Provenance"), facts(rows))
