"""Corpus files in a dataset repository on the Hugging Face hub, downloaded into the cache of its library."""

import re
from collections.abc import Iterable

from indexer.errors import CorpusError, StoreError
from indexer.system.escaping import shown
from indexer.system.hub_errors import hub_requests

_URL = re.compile(r"hf:/+datasets/([\w.-]+/[\w.-]+)(?:@([\w.-]+))?(?:/(.*))?", re.ASCII)


def is_on_hub(source: str) -> bool:
    """Whether a source is a URL of the hub."""
    return source.startswith("hf:/")


def download_dataset(url: str, endings: Iterable[str]) -> str:
    """Download the files of `hf://datasets/user/name[@revision][/path or glob]` and return their local path or glob.

    Without a path, all files with one of the endings are downloaded; files in the cache are used as they are. Raises
    CorpusError.
    """
    match = _URL.fullmatch(url)
    if match is None:
        raise CorpusError(
            f'"{shown(url)}" is not a dataset on the Hugging Face hub; expected hf://datasets/user/name, or files of '
            "it: hf://datasets/user/name/data/*.parquet."
        )
    from huggingface_hub import snapshot_download  # takes 0.3 s

    name, revision, path = match[1], match[2], (match[3] or "").strip("/")
    patterns = [path.replace("**/", "*"), f"{path}/*"] if path else [f"*{ending}" for ending in endings]
    try:
        with hub_requests(url):
            folder = snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=patterns)
    except StoreError as error:
        raise CorpusError(str(error)) from error
    return f"{folder}/{path}" if path else str(folder)
