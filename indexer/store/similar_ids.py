"""The id that a caller who named an unknown one probably meant."""

import difflib

import pyarrow as pa

_COMPARED = 8  # of the ids with the longest beginning in common, and of those with the longest end
_LONGEST = 256  # characters of an unknown id; comparing takes quadratic time


def most_similar(ids: pa.Array, unknown: str) -> str:
    """The id most similar to `unknown`, which is not among `ids`; empty if none is similar.

    Only ids with the longest beginning or the longest end in common are compared, as a server does this for every
    unknown id. A single typing error leaves half of an id intact at one of its ends.
    """
    if len(unknown) > _LONGEST:
        return ""
    near = [name for at_end in (False, True) for name in _sharing_most(ids, unknown, at_end)]
    return next(iter(difflib.get_close_matches(unknown, near, n=1)), "")


def _sharing_most(ids: pa.Array, unknown: str, at_end: bool) -> list[str]:
    """The first ids that have the longest possible beginning, or end, in common with `unknown`."""
    import pyarrow.compute as pc  # here, as it takes time, which the first question would wait for

    text = unknown.encode(errors="ignore").decode()
    least, most, sharing = 0, len(text), ids.slice(0, 0)
    while least < most:  # a shorter beginning is shared by all that share a longer one
        length = (least + most + 1) // 2
        pattern = text[-length:] if at_end else text[:length]
        found = ids.filter(pc.ends_with(ids, pattern) if at_end else pc.starts_with(ids, pattern))
        if len(found):
            least, ids, sharing = length, found, found
        else:
            most = length - 1
    near: list[str] = sharing.slice(0, _COMPARED).to_pylist()
    return [name for name in near if len(name) <= 2 * _LONGEST]
