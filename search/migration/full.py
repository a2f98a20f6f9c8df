"""`migrate_index`: the next generation of an index, its stored documents encoded by another encoder.

The new generation is a build of the stored documents in the same folder: parts are completed one after another, the
published generation answers until all are, and an interrupted run continues.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from indexer import BuildReport, build_index
from indexer.corpus.document import Document
from indexer.progress import Progress
from indexer.recipe.run_options import RunOptions
from indexer.typed_arguments import checked
from search.index import Index
from search.migration.comparison import require_another_encoder
from search.migration.recipe import migrated_recipe


@checked
def migrate_index(
    index: str | Path,
    model: str = "",
    assignments: Sequence[str] = (),
    options: RunOptions | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Encode every stored document by another encoder and publish the next generation; no corpus is needed.

    `model` is a hub id, a folder, or a file of word vectors, by default the index's own model; `assignments`
    ("encoder.layers=[1,-1]") change the recipe. Deleted documents are left out. Raises ConfigError for the same
    encoder, and otherwise as `build_index`. Parts completed before an error or a kill are kept for the next run.
    """
    with closing(Index.open(index)) as opened:
        config = migrated_recipe(opened, model, assignments)
        require_another_encoder(opened, config)
    run = replace(options or RunOptions(), overwrite=True)
    return build_index(_stored_documents(opened.path), opened.path, config, run, progress)


def _stored_documents(index: Path) -> Iterator[Document]:
    """Yield the live documents of the generation that is the newest when the first is read, in the writer's lock."""
    with closing(Index.open(index)) as opened:
        yield from opened.documents.all_documents()
