"""Names of files in an index directory, format 1, and the types of values in its JSON files.

The README specifies the contents of each file.

manifests/00000007.json        created in one step, never changed; the highest number is the index
parts/00000/documents.parquet  id, title, text, metadata columns
parts/00000/windows.parquet    one line per vector: text hash, token count (and, with chunking, document, start, end)
parts/00000/embeddings.npy     raw pooled embeddings
parts/00000/moments.npz        their count, mean and scatter
parts/00000/part.json          written last: marks the part as complete
transforms/0007.safetensors    the fitted transform of generation 7
segments/0007-00.faiss         vectors of consecutive rows
deleted/0007.npy               numbers of all documents deleted up to generation 7
encoder/1f2e.../               fitted encoder state (int8), named by the encoder's fingerprint without it
pending.json                   parts that any machine may encode; only between the two halves of a build
lock                           locked by the writer, or shared by processes that encode parts
"""

import os
import re
from pathlib import Path
from typing import Annotated

from msgspec import Meta

FORMAT = 1
LOCK = "lock"
MANIFESTS = "manifests"
PARTS = "parts"
TRANSFORMS = "transforms"
ENCODER = "encoder"
SEGMENTS = "segments"
DELETED = "deleted"
PENDING = "pending.json"

TOP_LEVEL = {LOCK, MANIFESTS, PARTS, TRANSFORMS, SEGMENTS, ENCODER, DELETED, PENDING}

DOCUMENTS = "documents.parquet"
WINDOWS = "windows.parquet"
EMBEDDINGS = "embeddings.npy"
MOMENTS = "moments.npz"
PART = "part.json"
PART_DATA = (DOCUMENTS, WINDOWS, EMBEDDINGS, MOMENTS)  # files of a part other than its record
STATE = "state.json"  # written last: marks the encoder's fitted state as complete

TEMPORARY = ".tmp"  # suffix of files being written; never named by a manifest
MANIFEST_NAME = re.compile(r"(\d{8})\.json", re.ASCII)
PART_NAME = re.compile(r"\d{5,}", re.ASCII)
TRANSFORM_NAME = re.compile(r"\d{4,}\.safetensors", re.ASCII)
STATE_NAME = re.compile(r"[0-9a-f]{16}", re.ASCII)
SEGMENT_NAME = re.compile(r"\d{4,}-\d{2,}\.faiss", re.ASCII)
DELETED_NAME = re.compile(r"\d{4,}\.npy", re.ASCII)
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


def segment_name(generation: int, number: int = 0) -> str:
    return f"{SEGMENTS}/{generation:04d}-{number:02d}.faiss"


def deleted_name(generation: int) -> str:
    return f"{DELETED}/{generation:04d}.npy"


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


def is_index_folder(folder: Path) -> bool:
    """Whether a folder is an index: published (with a manifest), or begun (the lock, and parts or manifests)."""
    try:
        names = [entry.name for entry in (folder / MANIFESTS).iterdir()]
    except OSError:  # missing or unreadable
        names = []
    lock, *begun = (os.path.lexists(folder / name) for name in (LOCK, PARTS, MANIFESTS))
    return any(map(MANIFEST_NAME.fullmatch, names)) or (lock and any(begun))


def is_index(path: str | Path) -> bool:
    """Whether an index was published at this path, intact or damaged."""
    return (Path(path) / MANIFESTS).is_dir()
