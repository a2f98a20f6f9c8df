from indexer.corpus.corpus import Corpus as Corpus
from indexer.corpus.corpus import read_corpus as read_corpus
from indexer.corpus.document import Document as Document
from indexer.corpus.document import joined_text as joined_text
from indexer.errors import IsotropeError as IsotropeError
from indexer.pipeline.add import AddReport as AddReport
from indexer.pipeline.add import add_documents as add_documents
from indexer.pipeline.build import BuildReport as BuildReport
from indexer.pipeline.build import build_index as build_index
from indexer.pipeline.compact import CompactReport as CompactReport
from indexer.pipeline.compact import compact_index as compact_index
from indexer.pipeline.delete import DeleteReport as DeleteReport
from indexer.pipeline.delete import delete_documents as delete_documents
from indexer.pipeline.pending_parts import EncodedPending as EncodedPending
from indexer.pipeline.pending_parts import PreparedParts as PreparedParts
from indexer.pipeline.pending_parts import cancel_pending as cancel_pending
from indexer.pipeline.pending_parts import encode_pending as encode_pending
from indexer.pipeline.pending_parts import prepare_parts as prepare_parts
from indexer.pipeline.pull import PullReport as PullReport
from indexer.pipeline.pull import pull_index as pull_index
from indexer.pipeline.refit import RefitReport as RefitReport
from indexer.pipeline.refit import refit_index as refit_index
from indexer.pipeline.train import TrainReport as TrainReport
from indexer.pipeline.train import train_encoder as train_encoder
from indexer.recipe.config import BuildConfig as BuildConfig
from indexer.recipe.run_options import RunOptions as RunOptions

__version__: str
