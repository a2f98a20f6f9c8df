"""Encoders: text to embedding. `protocol` says what every encoder offers, `load` chooses who runs it.

Names are handed on lazily, so that importing this package loads neither numpy nor torch.
"""

from typing import TYPE_CHECKING

from indexer.lazy import lazy_exports

if TYPE_CHECKING:
    from indexer.config import Role as Role
    from indexer.encoders.load import load_encoder as load_encoder
    from indexer.encoders.protocol import Encoder as Encoder
    from indexer.encoders.protocol import EncoderSpec as EncoderSpec
    from indexer.encoders.protocol import EncodeStats as EncodeStats
    from indexer.encoders.spec import resolve_spec as resolve_spec
    from indexer.encoders.spec import spec_difference as spec_difference

_HOME = {
    "EncodeStats": "indexer.encoders.protocol",
    "Encoder": "indexer.encoders.protocol",
    "EncoderSpec": "indexer.encoders.protocol",
    "Role": "indexer.config",
    "load_encoder": "indexer.encoders.load",
    "spec_difference": "indexer.encoders.spec",
    "resolve_spec": "indexer.encoders.spec",
}
__all__ = sorted(_HOME)
__getattr__, __dir__ = lazy_exports(__name__, _HOME)
