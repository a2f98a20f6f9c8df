"""The write side of Isotrope: from text to an index directory.

Names are handed on lazily, so that `import indexer` loads no numerical library.
"""

from typing import TYPE_CHECKING

from indexer.lazy import lazy_exports

if TYPE_CHECKING:
    from indexer.config import BuildConfig as BuildConfig
    from indexer.corpus import Corpus as Corpus
    from indexer.corpus import Document as Document
    from indexer.corpus import read_corpus as read_corpus
    from indexer.errors import IsotropeError as IsotropeError
    from indexer.pipeline import BuildReport as BuildReport
    from indexer.pipeline import build_index as build_index
    from indexer.pipeline.add import AddReport as AddReport
    from indexer.pipeline.add import add_documents as add_documents
    from indexer.pipeline.compact import CompactReport as CompactReport
    from indexer.pipeline.compact import compact_index as compact_index
    from indexer.pipeline.delete import DeleteReport as DeleteReport
    from indexer.pipeline.delete import delete_documents as delete_documents
    from indexer.pipeline.pending_parts import EncodedPending as EncodedPending
    from indexer.pipeline.pending_parts import PreparedParts as PreparedParts
    from indexer.pipeline.pending_parts import cancel_pending as cancel_pending
    from indexer.pipeline.pending_parts import encode_pending as encode_pending
    from indexer.pipeline.pending_parts import prepare_parts as prepare_parts
    from indexer.pipeline.refit import RefitReport as RefitReport
    from indexer.pipeline.refit import refit_index as refit_index
    from indexer.pipeline.train import TrainReport as TrainReport
    from indexer.pipeline.train import train_encoder as train_encoder
    from indexer.run_options import RunOptions as RunOptions

_HOME = {
    "AddReport": "indexer.pipeline.add",
    "BuildConfig": "indexer.config",
    "BuildReport": "indexer.pipeline",
    "CompactReport": "indexer.pipeline.compact",
    "Corpus": "indexer.corpus",
    "DeleteReport": "indexer.pipeline.delete",
    "Document": "indexer.corpus",
    "EncodedPending": "indexer.pipeline.pending_parts",
    "IsotropeError": "indexer.errors",
    "PreparedParts": "indexer.pipeline.pending_parts",
    "RefitReport": "indexer.pipeline.refit",
    "RunOptions": "indexer.run_options",
    "TrainReport": "indexer.pipeline.train",
    "add_documents": "indexer.pipeline.add",
    "build_index": "indexer.pipeline",
    "compact_index": "indexer.pipeline.compact",
    "delete_documents": "indexer.pipeline.delete",
    "cancel_pending": "indexer.pipeline.pending_parts",
    "encode_pending": "indexer.pipeline.pending_parts",
    "prepare_parts": "indexer.pipeline.pending_parts",
    "read_corpus": "indexer.corpus",
    "refit_index": "indexer.pipeline.refit",
    "train_encoder": "indexer.pipeline.train",
}
__all__ = sorted(_HOME)
__version__ = "0.1.0"
__getattr__, __dir__ = lazy_exports(__name__, _HOME)
