"""Stored embeddings read like numpy reads them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer.errors import CorruptIndexError
from indexer.store import parts
from indexer.store.embeddings import open_embeddings


def test_embeddings_are_read_as_numpy_reads_them(tmp_path: Path) -> None:
    for name, kind in (("full", np.float32), ("half", np.float16)):
        (tmp_path / name).mkdir()
        rows: Any = np.arange(15).reshape(5, 3).astype(kind)
        parts.write_embeddings(tmp_path / name, rows)
        index = open_embeddings(tmp_path / name)
        assert index.dtype == kind
        np.testing.assert_array_equal(index, np.load(tmp_path / name / "embeddings.npy"))
        np.testing.assert_array_equal(index, rows)
    np.save(tmp_path / "full/embeddings.npy", np.zeros((2, 2), np.int64))
    with pytest.raises(CorruptIndexError, match="not an array of embeddings"):
        open_embeddings(tmp_path / "full")
