"""The read side of Isotrope: questions to an index directory, and measurements.

Names are handed on lazily, so that `import search` loads no numerical library.
"""

from typing import TYPE_CHECKING

from indexer.lazy import lazy_exports

if TYPE_CHECKING:
    from search.client import SearchClient as SearchClient
    from search.dedup.corpus import CorpusBuild as CorpusBuild
    from search.dedup.corpus import deduplicate_corpus as deduplicate_corpus
    from search.dedup.deduplicate import Deduplication as Deduplication
    from search.dedup.deduplicate import deduplicate as deduplicate
    from search.dedup.kept import write_kept as write_kept
    from search.dedup.settings import DedupFiles as DedupFiles
    from search.dedup.settings import DedupSettings as DedupSettings
    from search.dedup.settings import JoinOptions as JoinOptions
    from search.dedup.settings import PairFiles as PairFiles
    from search.dedup.suggest import suggest_thresholds as suggest_thresholds
    from search.dedup.verify import verify_duplicates as verify_duplicates
    from search.engine import SearchEngine as SearchEngine
    from search.evaluation.recall.recall import evaluate_recall as evaluate_recall
    from search.evaluation.report.page import ReportOptions as ReportOptions
    from search.evaluation.report.page import write_report as write_report
    from search.evaluation.result import Result as Result
    from search.evaluation.result import read_result as read_result
    from search.evaluation.result import write_result as write_result
    from search.evaluation.retrieval.reranked import RerankTask as RerankTask
    from search.evaluation.retrieval.retrieval import RetrievalOptions as RetrievalOptions
    from search.evaluation.retrieval.retrieval import evaluate_retrieval as evaluate_retrieval
    from search.evaluation.settings import Setting as Setting
    from search.evaluation.settings import Sweep as Sweep
    from search.evaluation.sts.data import read_tasks as read_tasks
    from search.evaluation.sts.sts import StsOptions as StsOptions
    from search.evaluation.sts.sts import evaluate_sts as evaluate_sts
    from search.evaluation.target import Target as Target
    from search.evaluation.tune.tune import TuneOptions as TuneOptions
    from search.evaluation.tune.tune import run_tune as run_tune
    from search.evaluation.tune.tune import write_recipe as write_recipe
    from search.export import ExportReport as ExportReport
    from search.export.faiss import export_faiss as export_faiss
    from search.export.parquet import export_parquet as export_parquet
    from search.export.sentence_transformers import export_sentence_transformers as export_sentence_transformers
    from search.export.trec import export_trec_run as export_trec_run
    from search.hits import Hit as Hit
    from search.index import Index as Index
    from search.ranking.options import SearchOptions as SearchOptions
    from search.ranking.reranker import Reranker as Reranker
    from search.shards import ShardOptions as ShardOptions
    from search.verify import VerifyReport as VerifyReport
    from search.verify import verify_index as verify_index

_HOME = {
    "CorpusBuild": "search.dedup.corpus",
    "DedupFiles": "search.dedup.settings",
    "deduplicate_corpus": "search.dedup.corpus",
    "DedupSettings": "search.dedup.settings",
    "Deduplication": "search.dedup.deduplicate",
    "ExportReport": "search.export",
    "Hit": "search.hits",
    "Index": "search.index",
    "JoinOptions": "search.dedup.settings",
    "LayersOptions": "search.papers.layers",
    "PairFiles": "search.dedup.settings",
    "Result": "search.evaluation.result",
    "ReportOptions": "search.evaluation.report.page",
    "Reranker": "search.ranking.reranker",
    "RerankTask": "search.evaluation.retrieval.reranked",
    "RetrievalOptions": "search.evaluation.retrieval.retrieval",
    "SearchClient": "search.client",
    "SearchEngine": "search.engine",
    "SearchOptions": "search.ranking.options",
    "Setting": "search.evaluation.settings",
    "ShardOptions": "search.shards",
    "StsOptions": "search.evaluation.sts.sts",
    "Target": "search.evaluation.target",
    "Sweep": "search.evaluation.settings",
    "TuneOptions": "search.evaluation.tune.tune",
    "VerifyReport": "search.verify",
    "deduplicate": "search.dedup.deduplicate",
    "evaluate_layers": "search.papers.layers",
    "evaluate_recall": "search.evaluation.recall.recall",
    "evaluate_retrieval": "search.evaluation.retrieval.retrieval",
    "evaluate_sts": "search.evaluation.sts.sts",
    "export_faiss": "search.export.faiss",
    "export_parquet": "search.export.parquet",
    "export_trec_run": "search.export.trec",
    "export_sentence_transformers": "search.export.sentence_transformers",
    "read_result": "search.evaluation.result",
    "read_tasks": "search.evaluation.sts.data",
    "run_tune": "search.evaluation.tune.tune",
    "suggest_thresholds": "search.dedup.suggest",
    "verify_duplicates": "search.dedup.verify",
    "verify_index": "search.verify",
    "write_kept": "search.dedup.kept",
    "write_recipe": "search.evaluation.tune.tune",
    "write_report": "search.evaluation.report.page",
    "write_result": "search.evaluation.result",
}
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy_exports(__name__, _HOME)
