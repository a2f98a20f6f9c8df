"""The tokenizer of an encoder, kept from one process to the next so that transformers is imported only once."""

from pathlib import Path

from indexer.cache import cached_folder
from indexer.encoders.identity import RULES
from indexer.encoders.model_files import find_model_files
from indexer.encoders.protocol import EncoderSpec
from indexer.encoders.tokens import TextTokenizer, parse_tokenizer
from indexer.regular_files import read_regular
from indexer.versions import version_of

_FILE = "tokenizer.json"


def open_tokenizer(spec: EncoderSpec) -> TextTokenizer:
    """The tokenizer of an encoder. A Python one is loaded by transformers each time."""
    identity, root = spec.identity, find_model_files(Path(spec.folder)).root
    key = {
        "rules": RULES,
        "tokenizer": identity["tokenizer"],
        "config": identity["config"],
        "lowercase": identity["lowercase"],
        "versions": {name: version_of(name) for name in ("tokenizers", "transformers")},
    }

    def make(folder: Path) -> None:
        from indexer.encoders.tokenizer_loading import dump_tokenizer, load_tokenizer

        dumped = dump_tokenizer(load_tokenizer(root, identity["max_length"], identity["lowercase"]))
        (folder / _FILE).write_text(dumped or "", encoding="utf-8")

    data = read_regular(cached_folder("tokenizers", key, make) / _FILE)
    if data:
        return parse_tokenizer(data, identity["max_length"], str(root))
    from indexer.encoders.tokenizer_loading import load_tokenizer

    return load_tokenizer(root, identity["max_length"], identity["lowercase"])
