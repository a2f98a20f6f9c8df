"""An index served: over HTTP, with a page for people, and to agents.

settings           where a server listens, who may ask, and how much of anything
batches            threads that take whatever waits as one batch
generations        the open generation of the index, and the ones that still have questions
service            questions to answers: THE way every protocol asks
messages           what requests and answers of /v1 look like
failures           what is answered when something is wrong
metrics            what Prometheus reads
routes             /v1/search, documents, info; health; reload
embeddings         /v1/embeddings and models, as OpenAI's API has them
attribute_filters  the filters of that API, as SQL
vector_stores      the index as a store of that API, to be searched
tools              what agents may ask, and what they are answered
agents             the Model Context Protocol: standard streams, and /mcp
standard_streams   standard input and output for a protocol alone
page               the page for people
guard              what stands before all routes: hosts, keys, bodies, clients that leave
app                the application: all of these together
connection         one connection, within limits
listener           uvicorn, which listens, and drains when it is told to stop
"""
