from search.export.faiss import export_faiss as export_faiss
from search.export.parquet import export_parquet as export_parquet
from search.export.push import PushOptions as PushOptions
from search.export.push import PushReport as PushReport
from search.export.push import push_index as push_index
from search.export.report import ExportReport as ExportReport
from search.export.sentence_transformers import export_sentence_transformers as export_sentence_transformers
from search.export.trec import export_trec_run as export_trec_run
