"""Classifiers whose coverage is tabulated: random weights, small images, few classes, nothing downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradscore.system import import_torchvision

SAMPLES = 3
CLASSES = 10
VOCABULARY = 64
LENGTH = 12


@dataclass(frozen=True)
class Case:
    """A model to build and the batch to show it.

    Attributes:
        name: in its package.
        size: side of the images; 0 for texts.
        options: arguments of the constructor or the configuration.
    """

    name: str
    size: int
    options: dict[str, Any] = field(default_factory=dict)


TORCHVISION = (
    Case("alexnet", 64),
    Case("convnext_tiny", 32),
    Case("densenet121", 32),
    Case("efficientnet_b0", 32),
    Case("efficientnet_v2_s", 32),
    Case("googlenet", 32, {"init_weights": False}),
    Case("inception_v3", 75, {"init_weights": False}),
    Case("maxvit_t", 224),
    Case("mnasnet0_5", 32),
    Case("mobilenet_v2", 32),
    Case("mobilenet_v3_small", 32),
    Case("regnet_y_400mf", 32),
    Case("resnet18", 32),
    Case("resnext50_32x4d", 32),
    Case("shufflenet_v2_x0_5", 32),
    Case("squeezenet1_0", 64),
    Case("swin_t", 32),
    Case("swin_v2_t", 32),
    Case("vgg11_bn", 32),
    Case("vit_b_32", 64, {"image_size": 64}),
)

_TIMM_TRANSFORMER: dict[str, Any] = {"img_size": 32, "patch_size": 8, "depth": 2}

TIMM = (
    Case("beit_base_patch16_224", 32, {**_TIMM_TRANSFORMER, "embed_dim": 48, "num_heads": 3}),
    Case("cait_xxs24_224", 32, _TIMM_TRANSFORMER),
    Case("coatnet_pico_rw_224", 64, {"img_size": 64}),
    Case("convit_tiny", 32, _TIMM_TRANSFORMER),
    Case("convmixer_768_32", 32),
    Case("convnextv2_atto", 32),
    Case("cspresnet50", 32),
    Case("deit3_small_patch16_224", 32, _TIMM_TRANSFORMER),
    Case("dla34", 32),
    Case("edgenext_xx_small", 64),
    Case("efficientformer_l1", 224),
    Case("eva02_tiny_patch14_224", 32, _TIMM_TRANSFORMER),
    Case("ghostnet_050", 32),
    Case("gmlp_s16_224", 224),
    Case("levit_128s", 224),
    Case("mixer_s32_224", 224),
    Case("mobilenetv4_conv_small", 32),
    Case("mobilevit_xxs", 64),
    Case("nfnet_l0", 32),
    Case("pit_ti_224", 64, {"img_size": 64}),
    Case("poolformer_s12", 32),
    Case("repvgg_a0", 32),
    Case("res2net50_26w_4s", 32),
    Case("resmlp_12_224", 224),
    Case("resnest14d", 32),
    Case("resnetv2_50x1_bit", 32),
    Case("seresnet18", 32),
    Case("swinv2_cr_tiny_224", 64, {"img_size": 64, "window_size": 2, "depths": (1, 1, 1, 1)}),
    Case("tiny_vit_5m_224", 224),
    Case("twins_svt_small", 64, {"img_size": 64}),
    Case("vit_relpos_small_patch16_224", 32, _TIMM_TRANSFORMER),
    Case("vit_tiny_patch16_224", 32, _TIMM_TRANSFORMER),
    Case("volo_d1_224", 64, {"img_size": 64}),
    Case("xcit_nano_12_p16_224", 32, {"img_size": 32, "patch_size": 8, "depth": 2}),
)

_ENCODER: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 32,
}
_IMAGE = {**_ENCODER, "image_size": 32, "patch_size": 8}
_TEXT = {**_ENCODER, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "pad_token_id": 0}
_DECODER = {**_TEXT, "num_key_value_heads": 1, "head_dim": 8, "hidden_size": 24}
_STAGES = {"num_channels": 3, "image_size": 32}

TRANSFORMERS = (
    Case("BeitForImageClassification", 32, {**_IMAGE, "use_relative_position_bias": True}),
    Case(
        "BitForImageClassification",
        32,
        {"depths": [1, 1], "hidden_sizes": [32, 64], "embedding_size": 32, "num_groups": 4},
    ),
    Case("ConvNextForImageClassification", 32, {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}),
    Case("ConvNextV2ForImageClassification", 32, {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}),
    Case("CvtForImageClassification", 32, {"embed_dim": [8, 16, 24], "num_heads": [1, 2, 3], "depth": [1, 2, 3]}),
    Case("DeiTForImageClassification", 32, _IMAGE),
    Case("Dinov2ForImageClassification", 32, _IMAGE),
    Case(
        "EfficientNetForImageClassification",
        64,
        {"width_coefficient": 0.5, "depth_coefficient": 0.3, "hidden_dim": 640, "hidden_act": "relu"},
    ),
    Case(
        "FocalNetForImageClassification",
        32,
        {
            "embed_dim": 8,
            "depths": [1, 1],
            "hidden_sizes": [8, 16],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
            "image_size": 32,
        },
    ),
    Case("MobileNetV2ForImageClassification", 32, {"depth_multiplier": 0.35}),
    Case("MobileViTForImageClassification", 64, {"image_size": 64}),
    Case("PoolFormerForImageClassification", 32, {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}),
    Case("PvtForImageClassification", 64, {"image_size": 64, "depths": [1, 1, 1, 1]}),
    Case(
        "RegNetForImageClassification",
        32,
        {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32], "groups_width": 8, "embedding_size": 16},
    ),
    Case("ResNetForImageClassification", 32, {"depths": [1, 1], "hidden_sizes": [16, 32], "embedding_size": 16}),
    Case(
        "SegformerForImageClassification",
        32,
        {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 3, 4]},
    ),
    Case(
        "SwinForImageClassification",
        32,
        {"image_size": 32, "embed_dim": 12, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4, "patch_size": 2},
    ),
    Case(
        "Swinv2ForImageClassification",
        32,
        {"image_size": 32, "embed_dim": 12, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4, "patch_size": 2},
    ),
    Case("ViTForImageClassification", 32, _IMAGE),
    Case("AlbertForSequenceClassification", 0, {**_TEXT, "embedding_size": 16}),
    Case("BertForSequenceClassification", 0, _TEXT),
    Case(
        "BloomForSequenceClassification",
        0,
        {"vocab_size": VOCABULARY, "hidden_size": 24, "n_layer": 2, "n_head": 3, "pad_token_id": 0},
    ),
    Case(
        "DebertaV2ForSequenceClassification", 0, {**_TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    ),
    Case(
        "DistilBertForSequenceClassification",
        0,
        {"vocab_size": VOCABULARY, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 32},
    ),
    Case("ElectraForSequenceClassification", 0, {**_TEXT, "embedding_size": 16}),
    Case("FNetForSequenceClassification", 0, {**_TEXT}),
    Case("GemmaForSequenceClassification", 0, _DECODER),
    Case(
        "GPT2ForSequenceClassification",
        0,
        {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 2, "n_head": 3, "pad_token_id": 0},
    ),
    Case("GPTNeoXForSequenceClassification", 0, _TEXT),
    Case("LlamaForSequenceClassification", 0, _DECODER),
    Case("MistralForSequenceClassification", 0, _DECODER),
    Case(
        "ModernBertForSequenceClassification",
        0,
        {**_TEXT, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    Case("MPNetForSequenceClassification", 0, {**_TEXT, "max_position_embeddings": 40}),
    Case(
        "OPTForSequenceClassification",
        0,
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "ffn_dim": 32,
            "word_embed_proj_dim": 24,
            "max_position_embeddings": 32,
            "pad_token_id": 0,
        },
    ),
    Case("Qwen2ForSequenceClassification", 0, _DECODER),
    Case("RobertaForSequenceClassification", 0, _TEXT),
    Case("RoFormerForSequenceClassification", 0, {**_TEXT, "num_attention_heads": 2, "embedding_size": 24}),
    Case(
        "T5ForSequenceClassification",
        0,
        {
            "vocab_size": VOCABULARY,
            "d_model": 24,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 2,
            "num_heads": 3,
            "pad_token_id": 0,
            "decoder_start_token_id": 0,
        },
    ),
    Case(
        "XLNetForSequenceClassification",
        0,
        {"vocab_size": VOCABULARY, "d_model": 24, "n_layer": 2, "n_head": 3, "d_inner": 32},
    ),
)

_ENCODER_DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
_OF_GPT = {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 2, "n_head": 3}

LANGUAGE = (
    Case("BloomForCausalLM", 0, {"vocab_size": VOCABULARY, "hidden_size": 24, "n_layer": 2, "n_head": 3}),
    Case("GemmaForCausalLM", 0, _DECODER),
    Case("GPT2LMHeadModel", 0, _OF_GPT),
    Case(
        "GPTNeoForCausalLM",
        0,
        {**_TEXT, "num_layers": 2, "num_heads": 3, "attention_types": [[["global", "local"], 1]]},
    ),
    Case("GPTNeoXForCausalLM", 0, _TEXT),
    Case("LlamaForCausalLM", 0, _DECODER),
    Case("LlamaForCausalLM (tied)", 0, {**_DECODER, "tie_word_embeddings": True}),
    Case("MistralForCausalLM", 0, _DECODER),
    Case("OPTForCausalLM", 0, {**_TEXT, "ffn_dim": 32, "word_embed_proj_dim": 24}),
    Case("Phi3ForCausalLM", 0, {**_DECODER, "num_attention_heads": 3}),
    Case("Qwen2ForCausalLM", 0, _DECODER),
    Case("Qwen3ForCausalLM", 0, _DECODER),
    Case("AlbertForMaskedLM", 0, {**_TEXT, "embedding_size": 16}),
    Case("BertForMaskedLM", 0, _TEXT),
    Case("DebertaV2ForMaskedLM", 0, {**_TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    Case(
        "DistilBertForMaskedLM", 0, {"vocab_size": VOCABULARY, "dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 32}
    ),
    Case("ElectraForMaskedLM", 0, {**_TEXT, "embedding_size": 16}),
    Case(
        "ModernBertForMaskedLM",
        0,
        {**_TEXT, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    Case("RobertaForMaskedLM", 0, _TEXT),
    Case("BartForConditionalGeneration", 0, _ENCODER_DECODER),
    Case("MarianMTModel", 0, {**_ENCODER_DECODER, "decoder_start_token_id": 0}),
    Case("PegasusForConditionalGeneration", 0, _ENCODER_DECODER),
    Case(
        "T5ForConditionalGeneration",
        0,
        {"vocab_size": VOCABULARY, "d_model": 24, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 3},
    ),
)


class SequenceLosses(nn.Module):
    """The loss of every sequence of a padded batch: cross entropy of tokens, averaged over those of the sequence.

    Causal models predict the next token, masked ones every third token, and encoder-decoders the sequence itself.
    """

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, tokens: Tensor) -> Tensor:
        lengths = LENGTH - 3 * torch.arange(len(tokens)) % LENGTH
        real = torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)
        inputs = {"input_ids": tokens.masked_fill(~real, 0), "attention_mask": real.long()}
        if "MaskedLM" in self.name:
            counted = real & (torch.arange(tokens.shape[1]) % 3 == 0)
            inputs["input_ids"] = inputs["input_ids"].masked_fill(counted, 2)
        elif self.model.config.is_encoder_decoder:
            counted = real
            inputs["decoder_input_ids"] = nn.functional.pad(tokens, (1, -1), value=2)
        else:
            counted, tokens = real[:, 1:], tokens[:, 1:]
        logits = self.model(**inputs).logits[:, : tokens.shape[1]]
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")
        return (losses * counted).sum(1) / counted.sum(1)


class Logits(nn.Module):
    """A transformers model that returns its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Tensor) -> Tensor:
        return self.model(batch).logits


def from_torchvision(case: Case) -> nn.Module:
    import_torchvision()
    from torchvision import models

    return models.get_model(case.name, weights=None, num_classes=CLASSES, **case.options)


def from_timm(case: Case) -> nn.Module:
    import_torchvision()
    import timm

    return timm.create_model(case.name, pretrained=False, num_classes=CLASSES, **case.options)


def from_transformers(case: Case) -> nn.Module:
    import_torchvision()
    import transformers

    kind = getattr(transformers, case.name)
    return Logits(kind(kind.config_class(num_labels=CLASSES, **case.options)))


def language_from_transformers(case: Case) -> nn.Module:
    import_torchvision()
    import transformers

    kind = getattr(transformers, case.name.partition(" ")[0])
    return SequenceLosses(kind(kind.config_class(**case.options)), case.name)


PACKAGES: dict[str, tuple[Callable[[Case], nn.Module], tuple[Case, ...]]] = {
    "torchvision": (from_torchvision, TORCHVISION),
    "timm": (from_timm, TIMM),
    "transformers": (from_transformers, TRANSFORMERS),
    "language models of transformers": (language_from_transformers, LANGUAGE),
}


def batch_for(case: Case) -> Tensor:
    """Random images in float64, or tokens that end with the end-of-text token T5 looks for."""
    if case.size:
        return torch.randn(SAMPLES, 3, case.size, case.size, dtype=torch.float64)
    tokens = torch.randint(3, VOCABULARY, (SAMPLES, LENGTH))
    tokens[:, -1] = 1
    return tokens


def enliven(model: nn.Module, batch: Tensor) -> None:
    """Makes every layer of a fresh model matter, so that no gradient vanishes and no error hides.

    Parameters that start out constant (scales of 1 or 1e-6, tables and biases of 0) get noise, matrices and kernels
    random values that keep the size of activations, and batch norms the statistics of their own inputs.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
            elif parameter.dim() > 1:
                parameter.normal_(std=(len(parameter) / parameter.numel()) ** 0.5)
        norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            norm.momentum = 1.0
            norm.train()
        if norms:
            model(batch)
    model.eval()
