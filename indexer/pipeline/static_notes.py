"""What is said of texts and words that a static table does not know."""

from collections.abc import Mapping
from typing import Any

from indexer.encoders import Encoder
from indexer.encoders.static import StaticEncoder


def table_notes(encoder: Encoder) -> tuple[str, ...]:
    """What was passed over or repaired when the table was read."""
    return encoder.table.notes if isinstance(encoder, StaticEncoder) else ()


def unknown_note(quality: Mapping[str, Any]) -> tuple[str, ...]:
    """That some texts hold nothing the table knows, if so."""
    count = quality.get("without_tokens", 0)
    said = f"{count:,} texts hold nothing that the table knows; each stands as the mean of the table's vectors"
    return (said,) if count else ()
