"""Names of files in an index directory, format 1, and the types of values in its JSON files.

The README shows the folders, and specifies the contents of each file.
"""

import os
import re
from pathlib import Path
from typing import Annotated

from msgspec import Meta

FORMAT = 1
LOCK = "lock"  # locked by the writer, or shared by processes that encode parts
MANIFESTS = "manifests"
PARTS = "parts"
TRANSFORMS = "transforms"
ENCODER = "encoder"
SEGMENTS = "segments"
DELETED = "deleted"
PENDING = "pending.json"  # parts that any machine may encode; only between the two halves of a build
ERASE = "erase.json"  # an erasure that has begun; removed after its proof is written
PULLED = "pulled"  # files that arrive from a hub; only until a pull is finished

SWEPT = (TRANSFORMS, SEGMENTS, DELETED)  # folders of files that a sweep finds by name
TOP_LEVEL = {LOCK, MANIFESTS, PARTS, TRANSFORMS, SEGMENTS, ENCODER, DELETED, PENDING, ERASE, PULLED}

DOCUMENTS = "documents.parquet"
WINDOWS = "windows.parquet"
EMBEDDINGS = "embeddings.npy"
MOMENTS = "moments.npz"
PART = "part.json"  # written last: marks the part as complete
PART_DATA = (DOCUMENTS, WINDOWS, EMBEDDINGS, MOMENTS)  # files of a part other than its record
STATE = "state.json"  # written last: marks the encoder's fitted state as complete

TEMPORARY = ".tmp"  # suffix of files being written; never named by a manifest
MANIFEST_NAME = re.compile(r"(\d{8})\.json", re.ASCII)
PART_NAME = re.compile(r"\d{5,}", re.ASCII)
# Every file that a manifest may name; digits are ASCII only.
FILE_PATTERN = (
    r"^(parts/[0-9]{5,}/(documents\.parquet|windows\.parquet|embeddings\.npy|moments\.npz|part\.json)"
    r"|transforms/[0-9]{4,}\.safetensors|segments/[0-9]{4,}-[0-9]{2,}\.faiss|deleted/[0-9]{4,}\.npy"
    r"|encoder/[0-9a-f]{16}/[A-Za-z0-9][A-Za-z0-9._-]*)\Z"  # \Z: "$" would let a line break follow
)

# An index may have right checksums and hostile contents, so its JSON is decoded as these types.
MAX_DEPTH = 2 * 64 + 16  # metadata has up to 64 levels, each of which takes two in its schema
Count = Annotated[int, Meta(ge=0, le=1 << 48)]
Size = Annotated[int, Meta(ge=1, le=1 << 20)]  # dimensions
IndexSize = Annotated[int, Meta(ge=0, le=1 << 20)]  # dimensions of an index; 0: unknown, only without documents
Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
FileName = Annotated[str, Meta(pattern=FILE_PATTERN, max_length=200)]
PlainName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=200)]
PartName = Annotated[str, Meta(pattern=r"^parts/[0-9]{5,18}\Z")]
PartFile = Annotated[str, Meta(pattern=rf"^({'|'.join(PART_DATA)})\Z")]


def manifest_name(generation: int) -> str:
    return f"{MANIFESTS}/{generation:08d}.json"


def part_name(number: int) -> str:
    return f"{PARTS}/{number:05d}"


def transform_name(generation: int) -> str:
    return f"{TRANSFORMS}/{generation:04d}.safetensors"


def segment_name(generation: int, number: int) -> str:
    return f"{SEGMENTS}/{generation:04d}-{number:02d}.faiss"


def deleted_name(generation: int) -> str:
    return f"{DELETED}/{generation:04d}.npy"


def file_number(name: str) -> int | None:
    """Return the number in the name of a part, transform, segment or list of deleted documents; else None."""
    number = re.split(r"[-./]", name.partition("/")[2])[0]
    return int(number) if number.isdecimal() else None


def state_folder(fingerprint: str) -> str:
    """Return the folder of an encoder's fitted state, given its fingerprint without the state."""
    return f"{ENCODER}/{fingerprint[:16]}"


def part_numbers(index: Path) -> list[int]:
    """Return the numbers of the part folders, complete or not, ascending."""
    folder = index / PARTS
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if PART_NAME.fullmatch(entry.name) and entry.is_dir()]
    # "000001" would be part 1 too, but is not its folder
    return sorted(int(name) for name in names if part_name(int(name)) == f"{PARTS}/{name}")


def swept_files(index: Path) -> list[str]:
    """Return the transforms, segments and lists of deleted documents in a folder."""
    names = [f"{folder}/{name}" for folder in SWEPT for name in names_in(index / folder)]
    return [name for name in names if re.match(FILE_PATTERN, name)]


def state_records(index: Path) -> list[str]:
    """Return the files that mark fitted states of encoders as complete, existing or not."""
    names = [f"{ENCODER}/{folder}/{STATE}" for folder in names_in(index / ENCODER)]
    return [name for name in names if re.match(FILE_PATTERN, name)]


def names_in(folder: Path) -> list[str]:
    """Return the sorted names in a folder; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:  # there may be thousands
            return sorted(entry.name for entry in entries)
    except OSError:
        return []


def is_index_folder(folder: Path) -> bool:
    """Whether a folder is an index: published (with a manifest), or begun (the lock, and parts or manifests)."""
    lock, *begun = (os.path.lexists(folder / name) for name in (LOCK, PARTS, MANIFESTS))
    return any(map(MANIFEST_NAME.fullmatch, names_in(folder / MANIFESTS))) or (lock and any(begun))
