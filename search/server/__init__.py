"""An index served: over HTTP, with a page for people, and to agents.

settings     where a server listens, who may ask, and how much of anything
batches      threads that take whatever waits as one batch
generations  the open generation of the index, and the ones that still have questions
service      questions to answers: THE way every protocol asks
messages     what requests and answers of /v1 look like
failures     what is answered when something is wrong
metrics      what Prometheus reads
routes       /v1/search, documents, info; health; reload
guard        what stands before all routes: hosts, keys, bodies, clients that leave
page         the files of the search page, in the folder of that name
app          the application: all of these together
listener     uvicorn, which listens, and drains when it is told to stop
"""
