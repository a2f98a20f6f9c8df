from search.erasure.proof import ErasedReport as ErasedReport
from search.erasure.proof import erase_documents as erase_documents
from search.erasure.proof import verify_erased as verify_erased
