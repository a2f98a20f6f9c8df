"""An index served: over HTTP, with a page for people, and to agents.

settings           address, keys and limits of a server
room               the memory that callers take
batches            threads that take all waiting items as one batch
generations        the open generation of the index, and older ones still in use
service            questions to answers: THE way for every protocol
search_fields      the options of a search as fields of models
messages           requests and answers of /v1
answers            answers as bytes, within limits
failures           answers to faulty requests
facts, examples    the description of the index, and example questions
metrics            the counts that Prometheus reads
routes             /v1/search, documents, info; health; reload
embeddings         /v1/embeddings and models, as OpenAI's API has them
attribute_filters  the filters of that API, as SQL
vector_stores      the index as a searchable store of that API
tools              the tools of agents
agents             the Model Context Protocol: standard streams, and /mcp
standard_streams   standard input and output for a protocol alone
page               the page for people
guard              checks before all routes: hosts, keys, bodies, clients that leave
app                the application that joins these parts
connection         one connection, within limits
listener           uvicorn, which listens, and finishes open requests when it stops
"""
