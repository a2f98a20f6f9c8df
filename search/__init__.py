"""The read side of Isotrope: questions to an index directory, and measurements.

Names are handed on lazily, so that `import search` loads no numerical library.
"""

from typing import TYPE_CHECKING

from indexer.lazy import lazy_exports

if TYPE_CHECKING:
    from search.dedup.choosing.suggest import suggest_thresholds as suggest_thresholds
    from search.dedup.deduplication import Deduplication as Deduplication
    from search.dedup.deduplication import PairFiles as PairFiles
    from search.dedup.deduplication import deduplicate as deduplicate
    from search.dedup.keeping.kept import write_kept as write_kept
    from search.dedup.proving.verifier import verify_duplicates as verify_duplicates
    from search.dedup.settings import DedupSettings as DedupSettings
    from search.dedup.settings import JoinOptions as JoinOptions
    from search.engine import Hit as Hit
    from search.engine import SearchEngine as SearchEngine
    from search.evaluation.recall.evaluation import evaluate_recall as evaluate_recall
    from search.evaluation.report.page import write_report as write_report
    from search.evaluation.retrieval.evaluation import RetrievalTask as RetrievalTask
    from search.evaluation.retrieval.evaluation import evaluate_retrieval as evaluate_retrieval
    from search.evaluation.settings import Setting as Setting
    from search.evaluation.settings import Sweep as Sweep
    from search.evaluation.sts.data import read_tasks as read_tasks
    from search.evaluation.sts.evaluation import StsPlan as StsPlan
    from search.evaluation.sts.evaluation import evaluate_sts as evaluate_sts
    from search.evaluation.sts.layers import LayersPlan as LayersPlan
    from search.evaluation.sts.layers import evaluate_layers as evaluate_layers
    from search.evaluation.subject import Subject as Subject
    from search.evaluation.tune.running import TuneTask as TuneTask
    from search.evaluation.tune.running import run_tune as run_tune
    from search.evaluation.tune.running import write_recipe as write_recipe
    from search.export.exported import Exported as Exported
    from search.export.faiss_file import export_faiss as export_faiss
    from search.export.run_file import export_run as export_run
    from search.export.sentence_transformers_folder import export_sentence_transformers as export_sentence_transformers
    from search.export.vectors_file import export_parquet as export_parquet
    from search.files import write_result as write_result
    from search.verification import Verification as Verification
    from search.verification import verify_index as verify_index

_HOME = {
    "DedupSettings": "search.dedup.settings",
    "Deduplication": "search.dedup.deduplication",
    "Exported": "search.export.exported",
    "Hit": "search.engine",
    "JoinOptions": "search.dedup.settings",
    "LayersPlan": "search.evaluation.sts.layers",
    "PairFiles": "search.dedup.deduplication",
    "RetrievalTask": "search.evaluation.retrieval.evaluation",
    "SearchEngine": "search.engine",
    "Setting": "search.evaluation.settings",
    "StsPlan": "search.evaluation.sts.evaluation",
    "Subject": "search.evaluation.subject",
    "Sweep": "search.evaluation.settings",
    "TuneTask": "search.evaluation.tune.running",
    "Verification": "search.verification",
    "deduplicate": "search.dedup.deduplication",
    "evaluate_layers": "search.evaluation.sts.layers",
    "evaluate_recall": "search.evaluation.recall.evaluation",
    "evaluate_retrieval": "search.evaluation.retrieval.evaluation",
    "evaluate_sts": "search.evaluation.sts.evaluation",
    "export_faiss": "search.export.faiss_file",
    "export_parquet": "search.export.vectors_file",
    "export_run": "search.export.run_file",
    "export_sentence_transformers": "search.export.sentence_transformers_folder",
    "read_tasks": "search.evaluation.sts.data",
    "run_tune": "search.evaluation.tune.running",
    "suggest_thresholds": "search.dedup.choosing.suggest",
    "verify_duplicates": "search.dedup.proving.verifier",
    "verify_index": "search.verification",
    "write_kept": "search.dedup.keeping.kept",
    "write_recipe": "search.evaluation.tune.running",
    "write_report": "search.evaluation.report.page",
    "write_result": "search.files",
}
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy_exports(__name__, _HOME)
