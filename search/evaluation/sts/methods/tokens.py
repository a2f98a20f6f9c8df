"""Token vectors: of the tasks' sentences in memory, of a training corpus in a file that every seed reads."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.encoders.token_embeddings import TokenEmbeddings, TokenGroup
from indexer.progress import Progress

Rows = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
_STORED = np.float16  # half the disk; token vectors are of the order of 1
_TEXTS = 1024  # read together
_BLOCK_TOKENS = 1 << 14  # that pass through an auto-encoder together


@dataclass(frozen=True)
class SentenceTokens:
    """Token vectors (tokens, d) of distinct sentences end to end; sentence i is rows[starts[i]:starts[i + 1]]."""

    positions: dict[str, int]
    rows: Rows
    starts: Ints

    @classmethod
    def of(cls, outputs: TokenEmbeddings, texts: Sequence[str], layers: Sequence[int]) -> "SentenceTokens":
        """Those of texts, each distinct one once."""
        distinct = list(dict.fromkeys(texts))
        groups = list(outputs(distinct, layers))
        lengths = np.concatenate([np.diff(starts) for _, starts in groups])
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return cls({text: row for row, text in enumerate(distinct)}, np.concatenate([r for r, _ in groups]), starts)

    def tokens(self, sentence: int) -> Rows:
        """Token vectors of one sentence."""
        return self.rows[self.starts[sentence] : self.starts[sentence + 1]]

    def pooled(self, posterior: Callable[[Rows], Rows]) -> Rows:
        """The mean over each sentence's tokens of what `posterior` makes of them, (sentences, width) float32."""
        ends, found, first = self.starts[1:], [], 0
        while first < len(ends):
            last = int(np.searchsorted(ends, self.starts[first] + _BLOCK_TOKENS, side="right"))
            last = max(last, first + 1)
            inside = self.starts[first : last + 1] - self.starts[first]
            block = posterior(self.rows[self.starts[first] : self.starts[last]])
            found.append(np.add.reduceat(block, inside[:-1], axis=0) / np.diff(inside)[:, None].astype(np.float32))
            first = last
        return np.concatenate(found)


@dataclass(frozen=True)
class TrainingTokens:
    """Token vectors of a corpus in a file of half precision numbers, read group by group."""

    path: Path
    size: int
    starts: Ints

    @property
    def texts(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def write(
        cls, outputs: TokenEmbeddings, texts: Sequence[str], layers: Sequence[int], folder: Path, progress: Progress
    ) -> "TrainingTokens":
        """Encode the texts once, unless `folder` holds what this encoder makes of them."""
        path = folder / f"{_digest(outputs, texts, layers)}.tokens"
        known = path.with_suffix(".starts.npy")
        if not known.exists():
            progress.phase("encoding the training corpus", len(texts))
            lengths = [np.zeros(0, np.int64)]
            with path.open("wb") as file:
                for rows, starts in outputs(texts, layers):
                    file.write(rows.astype(_STORED).tobytes())
                    lengths.append(np.diff(starts))
                    progress.advance(len(starts) - 1)
            np.save(known, np.concatenate([[0], np.cumsum(np.concatenate(lengths))]))  # last: all is there
        starts = np.load(known)
        size = path.stat().st_size // (np.dtype(_STORED).itemsize * max(int(starts[-1]), 1))
        return cls(path, size, starts)

    def __call__(self) -> Iterator[TokenGroup]:
        rows = np.memmap(self.path, _STORED, "r").reshape(-1, self.size)
        for first in range(0, self.texts, _TEXTS):
            starts = self.starts[first : first + _TEXTS + 1]
            yield rows[starts[0] : starts[-1]].astype(np.float32), starts - starts[0]


def _digest(outputs: TokenEmbeddings, texts: Sequence[str], layers: Sequence[int]) -> str:
    digest = hashlib.sha256(f"{outputs.spec.identity.token_fingerprint} {list(layers)} {outputs.backend}".encode())
    for text in texts:
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()
