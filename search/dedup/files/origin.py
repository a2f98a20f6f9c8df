"""What a result was made from: encoder, transform and index, so that it is never used with others."""

from collections.abc import Mapping
from typing import Any

from indexer.errors import MismatchError
from indexer.hashing import canonical_sha256
from search.opened import OpenIndex

_ANEW = "Name the index it was made from, or find the duplicates of this one anew: isotrope dedup INDEX --threshold T"


def origin_of(opened: OpenIndex) -> dict[str, Any]:
    """What a result says of its index, JSON types: "fingerprint", "transform" (sha256) and "index"."""
    manifest = opened.manifest
    transform = manifest.files[manifest.transform["file"]].sha256
    return {"fingerprint": manifest.fingerprint, "transform": transform, "index": _index(opened)}


def origin_of_other(opened: OpenIndex | None) -> dict[str, Any] | None:
    """What a result says of the index that its own was compared with, if any: "against"."""
    if opened is None:
        return None
    return {"index": opened.path.resolve().name, **_index(opened), "documents": opened.manifest.documents}


def check_origin(facts: Mapping[str, Any], opened: OpenIndex, where: object) -> None:
    """Raises MismatchError, naming what differs, unless the facts are those of this index; `where` names their file."""
    found = origin_of(opened)
    words = {
        "fingerprint": "another encoder: fingerprint",
        "transform": "vectors of another transform: sha256",
        "index": "another index, or another generation of it:",
    }
    for name, what in words.items():
        if facts[name] != found[name]:
            raise MismatchError(
                f"{where}: made from {what} {_in_words(facts[name])}; {opened.path} has {_in_words(found[name])}. "
                f"{_ANEW}"
            )


def check_other(facts: Mapping[str, Any], other: OpenIndex | None, where: object) -> None:
    """The same for the index that the documents were compared with, wherever it now lies."""
    told, found = facts["against"], origin_of_other(other)
    told_of, found_of = _without_place(told), _without_place(found)
    if told_of != found_of:
        raise MismatchError(
            f"{where}: made against {_in_words(told_of)}; asked for is "
            f"{f'{other.path}: {_in_words(found_of)}' if other else 'none'}. "
            "Name the same other index as then, with --against, or find the duplicates anew."
        )


def require_same_encoder(opened: OpenIndex, other: OpenIndex) -> None:
    """Raises MismatchError when two indexes have different encoders: scores between them would mean nothing.

    Embeddings that came with a corpus are told apart by the model they are said to be of, and by their length.
    """
    if other.manifest.fingerprint != opened.manifest.fingerprint:
        raise MismatchError(
            f"{other.path} was made by another encoder than {opened.path} (fingerprint "
            f"{other.manifest.fingerprint[:12]}... instead of {opened.manifest.fingerprint[:12]}...), so their vectors "
            "cannot be compared. Build one of them again with the other's [encoder] settings; whitening and index "
            "type may differ."
        )
    sizes = other.manifest.encoder["dim"], opened.manifest.encoder["dim"]
    if sizes[0] != sizes[1]:
        raise MismatchError(
            f"{other.path} holds embeddings of {sizes[0]:,} numbers, {opened.path} of {sizes[1]:,}, so their vectors "
            "cannot be compared. Build one of them again from embeddings of the other's model."
        )


def _index(opened: OpenIndex) -> dict[str, Any]:
    manifest = opened.manifest
    return {"generation": manifest.generation, "manifest": canonical_sha256(manifest.to_dict())}


def _without_place(facts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {name: value for name, value in facts.items() if name != "index"} if facts is not None else None


def _in_words(facts: Any) -> str:
    if facts is None:
        return "no other index"
    if not isinstance(facts, Mapping):
        return f"{str(facts)[:12]}..."
    return f"generation {facts.get('generation')} (manifest {str(facts.get('manifest'))[:12]}...)"
