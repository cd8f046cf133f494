"""Tiny members of many architectures of transformers, from configurations, with their own losses.

Nothing is downloaded. Settings that make forward itself a matter of chance in Python (layer drop)
are off, for Pantile and for eager alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers as hf
from tests.clients.client import Batch, Client, Optimizer
from torch import nn

VOCABULARY, LENGTH, WIDTH, PICTURE = 100, 16, 32, 16

# The same sizes under the names that the configuration classes use.
BERT_LIKE = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
LLAMA_LIKE = BERT_LIKE | {"num_key_value_heads": 2}
GPT_LIKE = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 64}
BART_LIKE = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}
T5_LIKE = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
VIT_LIKE = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": PICTURE,
    "patch_size": 4,
    "num_labels": 5,
    "hidden_dropout_prob": 0.1,
}


class Trained(nn.Module):
    """A model with the loss it computes itself, followed by its first other output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss, logits."""
        loss, second, *_ = self.model(**inputs, return_dict=False)
        return loss, second


def _words(*, labels: bool = True) -> Batch:
    batch = {
        "input_ids": torch.randint(3, VOCABULARY, (2, LENGTH)),
        "attention_mask": torch.ones(2, LENGTH, dtype=torch.long),
    }
    batch["attention_mask"][1, LENGTH - 4 :] = 0
    if labels:
        batch["labels"] = torch.randint(3, VOCABULARY, (2, LENGTH))
    return batch


def _classes() -> Batch:
    return _words(labels=False) | {"labels": torch.randint(0, 2, (2,))}


def _tags() -> Batch:
    return _words(labels=False) | {"labels": torch.randint(0, 2, (2, LENGTH))}


def _spans() -> Batch:
    return _words(labels=False) | {
        "start_positions": torch.randint(0, LENGTH, (2,)),
        "end_positions": torch.randint(0, LENGTH, (2,)),
    }


def _pictures(size: int = PICTURE) -> Batch:
    return {
        "pixel_values": torch.randn(2, 3, size, size),
        "labels": torch.randint(0, 5, (2,)),
    }


def _big_pictures() -> Batch:
    return _pictures(32)


def _masked_pictures() -> Batch:
    batch = _pictures()
    return {"pixel_values": batch["pixel_values"], "noise": torch.rand(2, (PICTURE // 4) ** 2)}


def _pairs() -> Batch:
    return _words(labels=False) | {"pixel_values": torch.randn(2, 3, PICTURE, PICTURE)}


def _client(
    name: str,
    model: str,
    settings: dict[str, Any],
    batch: Callable[[], Batch] = _words,
    *,
    optimizer: Optimizer = "adamw",
    refusal: str = "",
) -> Client:
    """`name` is the architecture: its configuration class is `<name>Config`."""

    def make() -> nn.Module:
        configuration = getattr(hf, f"{name}Config")(**settings)
        return Trained(getattr(hf, model)(configuration))

    return Client(name.lower(), make, batch, optimizer, refusal)


class _WithLoss(Trained):
    """For models that compute a loss only when told to."""

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss, logits."""
        loss, second, *_ = self.model(**inputs, return_loss=True, return_dict=False)
        return loss, second


def _clip() -> nn.Module:
    text = {k: v for k, v in BERT_LIKE.items() if k != "max_position_embeddings"}
    text |= {"max_position_embeddings": LENGTH, "eos_token_id": 2, "bos_token_id": 1}
    vision = {k: v for k, v in VIT_LIKE.items() if k not in ("hidden_dropout_prob", "num_labels")}
    config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    return _WithLoss(hf.CLIPModel(config))


CLIENTS = (
    _client("Bert", "BertForMaskedLM", BERT_LIKE),
    _client("Roberta", "RobertaForSequenceClassification", BERT_LIKE, _classes, optimizer="sgd"),
    _client("XLMRoberta", "XLMRobertaForTokenClassification", BERT_LIKE, _tags),
    _client(
        "DistilBert",
        "DistilBertForQuestionAnswering",
        {"vocab_size": VOCABULARY, "dim": WIDTH, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
        _spans,
    ),
    _client("Albert", "AlbertForMaskedLM", BERT_LIKE | {"embedding_size": 16}),
    _client("Electra", "ElectraForMaskedLM", BERT_LIKE | {"embedding_size": 16}, optimizer="sgd"),
    _client("MPNet", "MPNetForMaskedLM", BERT_LIKE),
    _client("Deberta", "DebertaForMaskedLM", BERT_LIKE | {"relative_attention": True}),
    _client(
        "DebertaV2",
        "DebertaV2ForSequenceClassification",
        BERT_LIKE | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        _classes,
        refusal="DynamicShapeError",  # its loss picks the samples whose label is not negative
    ),
    _client(
        "SqueezeBert",
        "SqueezeBertForTokenClassification",
        BERT_LIKE | {"embedding_size": WIDTH},
        _tags,
        optimizer="sgd",
    ),
    _client(
        "Funnel",
        "FunnelForSequenceClassification",
        {
            "vocab_size": VOCABULARY,
            "block_sizes": [1, 1],
            "d_model": WIDTH,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 64,
        },
        _classes,
    ),
    _client("FNet", "FNetForMaskedLM", BERT_LIKE, lambda: _without_mask(_words())),
    _client(
        "XLNet",
        "XLNetForSequenceClassification",
        {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layer": 2, "n_head": 4, "d_inner": 64},
        _classes,
    ),
    _client("ConvBert", "ConvBertForMaskedLM", BERT_LIKE | {"embedding_size": WIDTH}),
    _client("RoFormer", "RoFormerForMaskedLM", BERT_LIKE | {"embedding_size": WIDTH}),
    _client(
        "ModernBert",
        "ModernBertForMaskedLM",
        BERT_LIKE
        | {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1}
        | {"cls_token_id": 1, "sep_token_id": 2},
    ),
    _client("GPT2", "GPT2LMHeadModel", GPT_LIKE),
    _client(
        "GPTNeo",
        "GPTNeoForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": WIDTH,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 64,
            "window_size": 8,
        },
    ),
    _client("GPTNeoX", "GPTNeoXForCausalLM", BERT_LIKE, optimizer="sgd"),
    _client("GPTJ", "GPTJForCausalLM", GPT_LIKE | {"rotary_dim": 4}),
    _client("CodeGen", "CodeGenForCausalLM", GPT_LIKE | {"rotary_dim": 4}),
    _client(
        "OPT",
        "OPTForCausalLM",
        BERT_LIKE | {"ffn_dim": 64, "word_embed_proj_dim": WIDTH, "layerdrop": 0.0},
    ),
    _client("Llama", "LlamaForCausalLM", LLAMA_LIKE),
    _client("Mistral", "MistralForCausalLM", LLAMA_LIKE | {"sliding_window": 8}, optimizer="sgd"),
    _client(
        "Mixtral",
        "MixtralForCausalLM",
        LLAMA_LIKE | {"num_local_experts": 4, "experts_implementation": "batched_mm"},
    ),
    _client("Qwen2", "Qwen2ForCausalLM", LLAMA_LIKE),
    _client("Qwen3", "Qwen3ForCausalLM", LLAMA_LIKE | {"head_dim": 8}),
    _client("Phi", "PhiForCausalLM", LLAMA_LIKE | {"resid_pdrop": 0.1}),
    _client("Gemma", "GemmaForCausalLM", LLAMA_LIKE | {"head_dim": 8}),
    _client("Gemma2", "Gemma2ForCausalLM", LLAMA_LIKE | {"head_dim": 8, "sliding_window": 8}),
    _client("StableLm", "StableLmForCausalLM", LLAMA_LIKE),
    _client(
        "Bloom",
        "BloomForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4},
    ),
    _client("Falcon", "FalconForCausalLM", BERT_LIKE | {"alibi": False}, optimizer="sgd"),
    _client(
        "Mpt",
        "MptForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "n_layers": 2,
            "n_heads": 4,
            "max_seq_len": 64,
        },
    ),
    _client(
        "Mamba",
        "MambaForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "state_size": 4},
    ),
    _client("T5", "T5ForConditionalGeneration", T5_LIKE),
    _client("Bart", "BartForConditionalGeneration", BART_LIKE),
    _client("MBart", "MBartForConditionalGeneration", BART_LIKE, optimizer="sgd"),
    _client("Pegasus", "PegasusForConditionalGeneration", BART_LIKE),
    _client(
        "Marian", "MarianMTModel", BART_LIKE | {"pad_token_id": 0, "decoder_start_token_id": 0}
    ),
    _client("ViT", "ViTForImageClassification", VIT_LIKE, _pictures),
    _client("DeiT", "DeiTForImageClassification", VIT_LIKE, _pictures, optimizer="sgd"),
    _client("Beit", "BeitForImageClassification", VIT_LIKE, _pictures),
    _client(
        "ViTMAE",
        "ViTMAEForPreTraining",
        VIT_LIKE
        | {
            "decoder_hidden_size": WIDTH,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 4,
            "decoder_intermediate_size": 64,
        },
        _masked_pictures,
    ),
    _client(
        "Swin",
        "SwinForImageClassification",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
            "num_labels": 5,
        },
        _big_pictures,
    ),
    _client(
        "ConvNext",
        "ConvNextForImageClassification",
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_stages": 2,
            "num_labels": 5,
            "drop_path_rate": 0.1,
        },
        _big_pictures,
        optimizer="sgd",
    ),
    _client(
        "ResNet",
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 5},
        _big_pictures,
    ),
    Client("clip", _clip, _pairs, "sgd"),
)


def _without_mask(batch: Batch) -> Batch:
    return {name: value for name, value in batch.items() if name != "attention_mask"}
