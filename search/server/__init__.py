"""A server of one index: HTTP API, search page, and tools for agents.

settings           address, keys and limits of a server
room               memory limits of requests and answers
batches            threads that process all waiting items as one batch
generations        the open generation, and older generations in use
service            queries to answers, for every protocol
search_fields      search options as fields of pydantic models
messages           requests and answers of /v1
answers            answers as JSON bytes, within limits
failures           error responses
facts, examples    the description of the index, and example questions
metrics            metrics for Prometheus
routes             /v1/search, documents, info; health; reload
embeddings         OpenAI's /v1/embeddings and /v1/models
attribute_filters  OpenAI's filters as SQL
vector_stores      OpenAI's vector store search
tools              tools for agents
agents             the Model Context Protocol, over standard streams and at /mcp
standard_streams   standard input and output reserved for a protocol
page               the search page
guard              checks before all routes: hosts, keys, bodies, disconnects
app                the ASGI application
connection         one connection, within limits
listener           uvicorn, which finishes open requests when it stops
"""
