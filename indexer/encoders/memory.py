"""The memory that a model needs, compared with the memory of the machine before the model is loaded.

Choices (float32 or bfloat16, OpenVINO or torch) depend on all memory of the machine, so that a continued build makes
them again, whatever else runs. Only the refusal of a model depends on the memory that is free.
"""

from collections.abc import Iterator

from indexer.errors import MachineError
from indexer.models.model_files import ModelFiles
from indexer.system.memory import free_memory, total_memory
from indexer.system.safetensors_file import TensorEntry, read_header

FLOAT32, HALF = 4, 2  # bytes a parameter
# Bytes a parameter while OpenVINO converts a model: two float32 copies and some work space. Measured with 0.3 and 0.5
# billion parameters: 9.3 and 9.6.
CONVERSION = 10


def stored_tensors(files: ModelFiles) -> Iterator[TensorEntry]:
    """Yield the tensors of a model's weights, from the headers of their files. Raises ModelError for a damaged file."""
    for name in files.weights:
        if name.endswith(".safetensors"):
            yield from read_header(files.root / name).tensors.values()


def parameter_count(files: ModelFiles) -> int:
    """Return the number of parameters in a model's weights. Raises ModelError for a damaged file."""
    return sum(entry.elements for entry in stored_tensors(files))


def only_half_fits(parameters: int) -> bool:
    """Return whether this machine's memory holds the parameters in 16-bit numbers, but not in float32."""
    return HALF * parameters < total_memory() <= FLOAT32 * parameters


def conversion_fits(files: ModelFiles) -> bool:
    """Return whether this machine's memory suffices to convert a model for OpenVINO."""
    return CONVERSION * parameter_count(files) < total_memory()


def require_memory(task: str, needed: int, fix: str, free: int | None = None, where: str = "cpu") -> None:
    """Raise MachineError if a task needs more bytes than are free; `free` is by default the machine's free memory."""
    free = free_memory() if free is None else free
    if needed > free:
        raise MachineError(
            f"{task} needs {needed / 1e9:.1f} GB of memory, but {free / 1e9:.1f} GB are free on {where}. Fix: {fix}."
        )
