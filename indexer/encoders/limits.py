"""How many layers and how many tokens a model takes, read from its config.json and tokenizer_config.json."""

from collections.abc import Iterable

from indexer.encoders.model_files import ModelFiles
from indexer.errors import ConfigError, ModelError

# What transformers' attribute maps call the number of blocks.
_LAYER_COUNTS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
_POSITIONS = ("max_position_embeddings", "n_positions")
# Positions relative between tokens: config.json may state a number, but no text is too long for the model.
_RELATIVE = ("t5", "mt5", "umt5", "longt5", "xlnet")
# Positions counted from pad_token_id + 1, as fairseq did, so that that many table rows are never used.
_OFFSET = (
    "camembert",
    "data2vec-text",
    "ibert",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)
_WITHOUT_LIMIT = 512  # taken when neither the model nor its tokenizer has a limit
_UNSET = 10**9  # tokenizers without a limit state 1e30


def layer_count(files: ModelFiles) -> int:
    """Blocks of the model. ModelError when config.json does not say."""
    for name in _LAYER_COUNTS:
        value: int | None = getattr(files.config, name)
        if value:
            return value
    raise ModelError(
        f"{files.root / 'config.json'}: states no number of layers ({', '.join(_LAYER_COUNTS)}); "
        "expected the config of a text encoder."
    )


def resolve_layers(layers: Iterable[int], count: int) -> list[int]:
    """Non-negative, sorted, without repetition: [1, -1] of 12 blocks is [1, 12]; 0 is the embeddings."""
    resolved = set()
    for layer in layers:
        if not -(count + 1) <= layer <= count:
            raise ConfigError(
                f"encoder.layers has {layer}, but the model has {count} blocks; expected 0 (the embedding "
                f"output) to {count}, or -1 (the last) to {-(count + 1)}."
            )
        resolved.add(layer if layer >= 0 else layer + count + 1)
    return sorted(resolved)


def position_limit(files: ModelFiles) -> int:
    """Most tokens the model's position embeddings take, special tokens included; 0: no such limit."""
    config = files.config
    kind = config.model_type
    if kind in _RELATIVE or (kind in ("deberta", "deberta-v2") and config.position_biased_input is False):
        return 0
    stated = (getattr(config, name) for name in _POSITIONS)
    rows: int = next((value for value in stated if value is not None), 0)
    if rows <= 0:
        return 0
    padding = config.pad_token_id
    offset = (1 if padding is None else padding) + 1 if kind in _OFFSET else 0
    if not 0 <= offset < rows:
        raise ModelError(
            f"{files.root / 'config.json'}: pad_token_id is {padding}, and positions are counted from the next number; "
            f"expected one below {rows - 1}, as there are {rows} positions."
        )
    return rows - offset


def own_limit(files: ModelFiles) -> int:
    """The model's own maximum length: its tokenizer's, capped by its position embeddings; else 512."""
    stated = files.tokenizer_config.model_max_length
    tokenizer = int(stated) if stated is not None and 0 < stated < _UNSET else 0
    limits = [limit for limit in (tokenizer, position_limit(files)) if limit > 0]
    return min(limits) if limits else _WITHOUT_LIMIT


def check_max_length(max_length: int, files: ModelFiles) -> int:
    """`max_length`, if the model can take it; else ConfigError with the limit."""
    limit = position_limit(files)
    if limit and max_length > limit:
        raise ConfigError(
            f"encoder.max_length is {max_length}, but the model in {files.root} has position embeddings for "
            f"{limit} tokens; expected at most {limit}, or 0 for the model's own limit."
        )
    return max_length
