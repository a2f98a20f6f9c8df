"""Tiny models with random weights and working tokenizers, one for each architecture of the paper's Table 2.

    folder = make_tiny_model("bert", tmp_path / "bert")

Every parameter is random, including norms and biases, so that a missing step is visible. Seeds are fixed: the same name
gives the same bytes. Tokenizers consist of the printable ASCII characters and a few words, so that any ASCII text
tokenises. XLM uses the library's Python tokenizer, which needs sacremoses (extra `dev`).
"""

import json
import string
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

_WORDS = ("the", "of", "and", "whale", "sing", "song", "deep", "sea", "a", "in", "to", "library", "for", "data")
_CHARACTERS = string.ascii_letters + string.digits + string.punctuation
_SIZE = 32  # hidden size
_HEADS = 4


@dataclass(frozen=True)
class _Recipe:
    model: str  # a class of transformers
    config: str
    settings: dict[str, Any]
    tokenizer: Callable[[Path], int]  # writes the tokenizer's files and returns the vocabulary size


def architectures() -> list[str]:
    """Return the names that `make_tiny_model` accepts."""
    return list(_recipes())


def architecture_cases(*representatives: str, without: Iterable[str] = ()) -> list[Any]:
    """Return values for `parametrize`: representative architectures in `make test`, all in `make check`."""
    names = [*representatives, *(name for name in architectures() if name not in {*representatives, *without})]
    return [pytest.param(name, marks=[] if name in representatives else pytest.mark.check) for name in names]


def make_tiny_model(architecture: str, folder: Path, **larger: Any) -> Path:
    """Write a model of the architecture into `folder` (created), as safetensors with its tokenizer.

    `larger` are other values of settings that the architecture's recipe has.
    """
    import transformers

    recipe = _recipes()[architecture]
    folder.mkdir(parents=True)
    vocabulary = recipe.tokenizer(folder)
    settings = recipe.settings | {name: value for name, value in larger.items() if name in recipe.settings}
    config = getattr(transformers, recipe.config)(vocab_size=vocabulary, **settings)
    model = getattr(transformers, recipe.model)(config)
    spread = 0.2 if not larger else 0.2 * (_SIZE / config.hidden_size) ** 0.5  # of wide rows, so that sums stay small
    _randomise(model, zlib.crc32(architecture.encode()), spread)
    _save_quietly(model, folder)
    return folder


def _save_quietly(model: Any, folder: Path) -> None:
    from transformers.utils import logging

    bars: Any = logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        model.save_pretrained(folder)
    finally:
        if shown:
            bars.enable_progress_bar()


def make_tiny_cross_encoder(folder: Path, labels: int = 1, architecture: str = "bert", **config: Any) -> Path:
    """Write a model that reads two texts together and returns `labels` scores; `config` are further settings.

    Its scores are spread widely, so that rounding does not change the order of documents.
    """
    import transformers

    recipe = _recipes()[architecture]
    folder.mkdir(parents=True)
    settings = {**recipe.settings, "vocab_size": recipe.tokenizer(folder), "num_labels": labels, **config}
    kind = f"{recipe.config.removesuffix('Config')}ForSequenceClassification"
    model = getattr(transformers, kind)(getattr(transformers, recipe.config)(**settings))
    _randomise(model, seed=labels)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and parameter.shape[0] == labels:  # the layer of the scores
                parameter.mul_(10 if name.startswith(("classifier", "score")) else 1)
    _save_quietly(model, folder)
    return folder


def _randomise(model: torch.nn.Module, seed: int, spread: float = 0.2) -> None:
    """Set norm weights near 1 and all others near 0, none exactly."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_scale = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.3 * noise if is_scale else spread * noise)


def _bert_like(**changed: Any) -> dict[str, Any]:
    return {
        "hidden_size": _SIZE,
        "num_hidden_layers": 3,
        "num_attention_heads": _HEADS,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
        **changed,
    }


def _decoder(**changed: Any) -> dict[str, Any]:
    """Return settings of a decoder with grouped heads; its attention is causal if the architecture's is."""
    return _bert_like(
        num_key_value_heads=2, **{"eos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": True, **changed}
    )


def _recipes() -> dict[str, _Recipe]:
    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": -1}
    roberta = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 130}
    factorised = {"embedding_size": 16, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    xlm = {"n_layers": 3, "n_heads": _HEADS, "emb_dim": _SIZE, "max_position_embeddings": 128}
    gpt2 = {"n_embd": _SIZE, "n_layer": 3, "n_head": _HEADS, "n_positions": 128, "bos_token_id": 0, "eos_token_id": 0}
    t5 = {"d_model": _SIZE, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": _HEADS}
    deberta_v2 = {"position_biased_input": False, "position_buckets": 16, "norm_rel_ebd": "layer_norm"}
    modern = {"local_attention": 8, "global_attn_every_n_layers": 2, "pad_token_id": 0, "num_hidden_layers": 4}
    gemma = {"head_dim": 8, "sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"] * 2}
    gemma |= {"num_hidden_layers": 4, "query_pre_attn_scalar": 8, "pad_token_id": 0, "eos_token_id": 1}
    special = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    return {
        "bert": _Recipe("BertModel", "BertConfig", _bert_like(num_hidden_layers=2), _wordpiece()),
        "bert-cased": _Recipe("BertForMaskedLM", "BertConfig", _bert_like(), _wordpiece(lowercase=False)),
        "bert-pooler": _Recipe("BertModel", "BertConfig", _bert_like(hidden_act="relu"), _wordpiece()),
        "roberta": _Recipe("RobertaForMaskedLM", "RobertaConfig", _bert_like(**roberta), _byte_bpe("RobertaTokenizer")),
        "xlm-roberta": _Recipe(
            "XLMRobertaModel", "XLMRobertaConfig", _bert_like(**roberta), _byte_bpe("RobertaTokenizer")
        ),
        "camembert": _Recipe(
            "CamembertForMaskedLM", "CamembertConfig", _bert_like(**roberta), _byte_bpe("RobertaTokenizer")
        ),
        "deberta": _Recipe(
            "DebertaModel", "DebertaConfig", _bert_like(type_vocab_size=0, **relative), _byte_bpe("DebertaTokenizer")
        ),
        "deberta-v2": _Recipe(
            "DebertaV2Model",
            "DebertaV2Config",
            _bert_like(
                type_vocab_size=0, share_att_key=True, conv_kernel_size=3, conv_act="gelu", **relative, **deberta_v2
            ),
            _unigram("DebertaV2Tokenizer"),
        ),
        "albert": _Recipe(
            "AlbertModel", "AlbertConfig", _bert_like(num_hidden_layers=4, **factorised), _unigram("AlbertTokenizer")
        ),
        "albert-two-groups": _Recipe(
            "AlbertModel",
            "AlbertConfig",
            _bert_like(num_hidden_layers=4, num_hidden_groups=2, **factorised),
            _unigram("AlbertTokenizer"),
        ),
        "t5": _Recipe("T5ForConditionalGeneration", "T5Config", t5, _unigram("T5Tokenizer", extra_ids=0)),
        "layoutlm": _Recipe("LayoutLMModel", "LayoutLMConfig", _bert_like(), _wordpiece()),
        "xlm": _Recipe("XLMWithLMHeadModel", "XLMConfig", xlm, _xlm),
        "distilbert": _Recipe(
            "DistilBertModel",
            "DistilBertConfig",
            {"dim": _SIZE, "n_layers": 3, "n_heads": _HEADS, "hidden_dim": 48, "max_position_embeddings": 128},
            _wordpiece(),
        ),
        "mpnet": _Recipe(
            "MPNetModel",
            "MPNetConfig",
            _bert_like(max_position_embeddings=130, pad_token_id=1),
            _wordpiece("MPNetTokenizer", ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")),
        ),
        "squeezebert": _Recipe("SqueezeBertModel", "SqueezeBertConfig", _bert_like(embedding_size=_SIZE), _wordpiece()),
        "gpt2": _Recipe("GPT2ForSequenceClassification", "GPT2Config", gpt2, _byte_bpe("GPT2Tokenizer")),
        "electra": _Recipe("ElectraForPreTraining", "ElectraConfig", _bert_like(embedding_size=16), _wordpiece()),
        "modernbert": _Recipe("ModernBertModel", "ModernBertConfig", _bert_like(**{**modern, **special}), _wordpiece()),
        "nomic": _Recipe("NomicBertModel", "NomicBertConfig", _bert_like(num_hidden_layers=4), _wordpiece()),
        "gte": _Recipe("GteModel", "GteConfig", _bert_like(pad_token_id=0), _wordpiece()),
        "qwen2": _Recipe("Qwen2ForCausalLM", "Qwen2Config", _decoder(), _causal("Qwen2Tokenizer")),
        "qwen3": _Recipe("Qwen3ForCausalLM", "Qwen3Config", _decoder(head_dim=12), _causal("Qwen2Tokenizer")),
        "mistral": _Recipe("MistralModel", "MistralConfig", _decoder(sliding_window=9), _causal("LlamaTokenizer")),
        "gemma3": _Recipe("Gemma3TextModel", "Gemma3TextConfig", _decoder(**gemma), _causal("GemmaTokenizer")),
        "embeddinggemma": _Recipe(
            "Gemma3TextModel",
            "Gemma3TextConfig",
            _decoder(**gemma, use_bidirectional_attention=True),
            _causal("GemmaTokenizer"),
        ),
    }


def _wordpiece(
    kind: str = "BertTokenizer",
    specials: tuple[str, ...] = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    lowercase: bool = True,
) -> Callable[[Path], int]:
    def write(folder: Path) -> int:
        pieces = [*specials, *_CHARACTERS, *(f"##{c}" for c in _CHARACTERS), *_WORDS, "##s", "##ing"]
        vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
        return _save(kind, folder, len(vocabulary), vocab=vocabulary, do_lower_case=lowercase, model_max_length=128)

    return write


def _byte_bpe(kind: str) -> Callable[[Path], int]:
    specials = {
        "RobertaTokenizer": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
        "DebertaTokenizer": ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"),
        "GPT2Tokenizer": ("<|endoftext|>",),
    }[kind]

    def write(folder: Path) -> int:
        from tokenizers.pre_tokenizers import ByteLevel

        merges = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("i", "n"), ("in", "g"), ("o", "f"), ("\u0120", "of")]
        pieces = [*specials, *sorted(ByteLevel.alphabet()), *("".join(merge) for merge in merges)]
        vocabulary = {piece: i for i, piece in enumerate(pieces)}
        return _save(kind, folder, len(vocabulary), vocab=vocabulary, merges=merges, model_max_length=128)

    return write


def _causal(kind: str) -> Callable[[Path], int]:
    """Return the writer of a decoder's tokenizer of bytes, which pads on the left and appends the end token."""

    def write(folder: Path) -> int:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from tokenizers.pre_tokenizers import ByteLevel
        from tokenizers.processors import TemplateProcessing

        begin = ["<bos>"] if kind == "GemmaTokenizer" else []
        specials = ["<pad>", "<eos>", *begin]
        vocabulary = {piece: i for i, piece in enumerate([*specials, *sorted(ByteLevel.alphabet())])}
        tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=None))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        ends = [(token, vocabulary[token]) for token in ["<eos>", *begin]]
        tokenizer.post_processor = TemplateProcessing(single=" ".join([*begin, "$A", "<eos>"]), special_tokens=ends)
        settings = {"pad_token": "<pad>", "eos_token": "<eos>", "padding_side": "left", "model_max_length": 128}
        settings |= {"bos_token": "<bos>"} if begin else {}
        return _save("PreTrainedTokenizerFast", folder, len(vocabulary), tokenizer_object=tokenizer, **settings)

    return write


def _unigram(kind: str, **arguments: Any) -> Callable[[Path], int]:
    specials = {
        "T5Tokenizer": ("<pad>", "</s>", "<unk>"),
        "AlbertTokenizer": ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
        "DebertaV2Tokenizer": ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"),
    }[kind]

    def write(folder: Path) -> int:
        pieces: list[tuple[str, float]] = [(token, 0.0) for token in specials]
        pieces += [("\u2581", -4.0), *((c, -8.0) for c in _CHARACTERS), *((f"\u2581{word}", -5.0) for word in _WORDS)]
        return _save(kind, folder, len(pieces), vocab=pieces, **arguments)

    return write


def _save(kind: str, folder: Path, size: int, **arguments: Any) -> int:
    import transformers

    getattr(transformers, kind)(**arguments).save_pretrained(folder)
    return size


def _xlm(folder: Path) -> int:
    pieces = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))]
    pieces += [*_CHARACTERS, *(f"{c}</w>" for c in _CHARACTERS), "th", "the</w>", "in", "ing</w>"]
    merges = ["t h 9", "th e</w> 8", "i n 7", "in g</w> 6"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "XLMTokenizer", "model_max_length": 128}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return len(pieces)
