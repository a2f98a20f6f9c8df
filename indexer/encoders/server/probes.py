"""Probe texts: their embeddings stand for the hash that a server's model does not have.

Servers round differently from one start, batch or GPU to the next, but the relative difference of two embeddings of one
text stays far below `BOUND`. Other weights, another pooling, a prompt or a quantisation exceed it.
"""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from indexer.arrays import Float32Array
from indexer.errors import MismatchError, ModelError, as_argument, spelled
from indexer.models.encoder_spec import EncoderSpec
from indexer.system.escaping import shown
from indexer.system.regular_files import read_regular

FILE = "probes.npy"  # of the encoder's state: float32 (16, d), as the server answers
BOUND = 0.045  # a relative difference; for unit vectors 1 - cosine = 0.001
PROBES = (
    "whale song",
    "How do I reset my password?",
    "The quick brown fox jumps over the lazy dog.",
    "Photosynthesis converts light energy into chemical energy that plants store as sugar.",
    "In 1687 Newton published the laws of motion and of universal gravitation.",
    "def area(radius):\n    return 3.14159 * radius ** 2",
    "Invoice 2024-0173: 12 units at 4.95 EUR, due within 30 days.",
    "Der Zug nach München hat heute leider zwanzig Minuten Verspätung.",
    "La bibliothèque municipale est fermée le lundi et les jours fériés.",
    "El aumento del nivel del mar amenaza a las ciudades costeras.",
    "Уровень инфляции снизился третий месяц подряд.",
    "今日は天気が良いので、公園を散歩しました。",
    "机器学习模型需要大量的训练数据。",
    "يفتح المتحف أبوابه للزوار من التاسعة صباحا.",
    "Aspirin irreversibly inhibits cyclooxygenase, which lowers the risk of stroke but raises the risk of bleeding.",
    "THE BANK RAISED RATES; the river bank flooded: two meanings, one word!",
)
PROBE_TOKENS = 15  # of a probe, in the mean
"""Part of format 1: their order and bytes never change. Another list needs other rules of the kind "server"."""


def probe_bytes(rows: Float32Array) -> bytes:
    """Return the bytes of `FILE`."""
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    return buffer.getvalue()


def read_probes(folder: Path) -> Float32Array:
    """Return the stored rows (16, d). Raises ModelError."""
    path = folder / FILE
    try:
        rows: Float32Array = np.load(io.BytesIO(read_regular(path)), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ModelError(
            f"{path}: cannot be read: {error}. Fix: run {spelled('verify_index', 'isotrope verify')}."
        ) from error
    if rows.ndim != 2 or rows.dtype != np.float32 or len(rows) != len(PROBES) or not np.isfinite(rows).all():
        raise ModelError(f"{path}: expected finite float32 ({len(PROBES)}, d), found {rows.dtype} {rows.shape}.")
    return rows


def require_same_model(spec: EncoderSpec, before: Float32Array, now: Float32Array, numbers: Sequence[int]) -> None:
    """Raise MismatchError if rows `now` (n, d) of the probes `numbers` differ from those `before` (16, d).

    The message names the probe that differs most.
    """
    known = before[list(numbers)].astype(np.float64)
    if now.shape[1] != known.shape[1]:
        raise MismatchError(
            f"{spec.folder}: embeddings of {spec.model} have {now.shape[1]:,} numbers; expected {known.shape[1]:,}, as "
            f"at the first use. {_fix(spec)}"
        )
    if not len(known):
        return
    lengths = np.linalg.norm(known, axis=1)
    differences = np.linalg.norm(now - known, axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)
    worst = int(differences.argmax())
    if differences[worst] <= BOUND:
        return
    products = np.linalg.norm(now[worst].astype(np.float64)) * lengths[worst]
    cosine = float(now[worst] @ known[worst]) / max(float(products), np.finfo(np.float64).tiny)
    raise MismatchError(
        f"{spec.folder}: {spec.model} is no longer the model of the first use: the embedding of the probe text "
        f'"{shown(PROBES[numbers[worst]], 40)}" has cosine {cosine:.4f} with the stored one, and a relative difference '
        f"of {differences[worst]:.3g}; expected at most {BOUND:g}, the limit for rounding. {_fix(spec)}"
    )


def _fix(spec: EncoderSpec) -> str:
    url = as_argument("model", "URL")
    return f"Fix: serve the former model there again, name its server with {url}, or build at another path."
