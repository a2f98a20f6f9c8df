from search.cli.demo_corpus import stdlib_documents as stdlib_documents
from search.client.answers import ServedResult as ServedResult
from search.client.asynchronous import AsyncSearchClient as AsyncSearchClient
from search.client.blocking import SearchClient as SearchClient
from search.engine import SearchEngine as SearchEngine
from search.filters.facets import ColumnFacet as ColumnFacet
from search.hits import Answer as Answer
from search.hits import FoldedHit as FoldedHit
from search.hits import Hit as Hit
from search.hits import HybridScores as HybridScores
from search.hits import Window as Window
from search.index import Index as Index
from search.ranking.documents import RankedDocument as RankedDocument
from search.ranking.options import SearchFields as SearchFields
from search.ranking.options import SearchOptions as SearchOptions
from search.ranking.reranker import Reranker as Reranker
from search.shards import ShardOptions as ShardOptions
from search.unit_vectors import UnitVectors as UnitVectors
from search.verify import VerifyReport as VerifyReport
from search.verify import verify_index as verify_index

__version__: str
