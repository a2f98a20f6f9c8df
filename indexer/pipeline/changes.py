"""Whether a published index was built by the recipe at hand, and in words where it was not."""

import json
from collections.abc import Iterator
from typing import Any

from indexer.ann import factory_of
from indexer.config import BuildConfig
from indexer.corpus.query_file import query_file_sha256
from indexer.encoders import EncoderSpec
from indexer.encoders.spec import spec_difference
from indexer.errors import ExistsError
from indexer.pipeline.context import BuildContext
from indexer.store.manifest import Manifest


def require_same_recipe(build: BuildContext, published: Manifest) -> None:
    """Raises ExistsError naming every difference and the ways out."""
    differences = list(_differences(build, published))
    if differences:
        raise ExistsError(
            f"{build.index}: holds a complete index of another recipe: {'; '.join(differences)}. "
            "Pass --overwrite to publish this one as its next generation, or build at another path."
        )


def _differences(build: BuildContext, published: Manifest) -> Iterator[str]:
    wanted, there = build.config.to_dict(), BuildConfig.from_dict(published.config).to_dict()
    for section, settings in wanted.items():
        if section == "encoder":
            continue  # compared by fingerprint: the same model under another name is the same encoder
        for key, value in settings.items():
            found = there[section][key]
            if _meaning(section, key, found) != _meaning(section, key, value):
                yield f"{section}.{key} is {_shown(found)} there and {_shown(value)} here"
    if published.fingerprint != build.fingerprint:
        yield _encoder_difference(published, build.spec)
    else:
        yield from other_inputs(build, published)


def other_inputs(build: BuildContext, published: Manifest) -> Iterator[str]:
    """What a generation was made of beside recipe and corpus, where it is not what is at hand."""
    taken = build.taken.stamp.sha256 if build.taken else ""
    if published.transform.get("taken_from", "") != taken:
        yield "its transform was fitted there and is another index's here, or the other way round"
    elif not taken and published.transform["query_texts"].get("sha256", "") != query_file_sha256(
        build.config.whitening.query_sample, "whitening.query_sample"
    ):
        yield "the queries in whitening.query_sample have changed"
    measured = published.measured.first.index
    if (measured.queries_sha256 if measured else "") != query_file_sha256(build.config.index.queries, "index.queries"):
        yield "the queries in index.queries have changed"


def _meaning(section: str, key: str, value: Any) -> Any:
    """Settings that are written in several ways, as what they mean."""
    if (section, key) == ("index", "type"):
        return factory_of(value)
    return bool(value) if key in ("query_sample", "vector_column") else value  # contents are compared by hash


def _encoder_difference(published: Manifest, spec: EncoderSpec) -> str:
    return spec_difference(published.encoder["identity"], spec)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
