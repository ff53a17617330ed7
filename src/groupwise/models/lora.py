"""LoRA: train small adapters beside frozen weights, through peft.

The adapters are put inside the model that is given: it stays the same object and the same class, so that engines, the
trainer and the exporter see the model they know.

Adapters have the dtype that the layer they sit on computes in. Saving adapters in peft's own format is not done here;
an export writes the merged model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from groupwise.config.build import ConfigError, nearest
from groupwise.config.schema import LoraConfig
from groupwise.models.quantized import QuantizedLinear

_ADAPTER = "default"


def add_lora(model: nn.Module, config: LoraConfig, seed: int) -> nn.Module:
    """Give the model adapters and freeze everything else; returns the same model.

    An adapter begins as nothing: its second matrix is zero, so that the model computes what it did before. The first
    matrix is drawn from `seed` alone.
    """
    try:
        import peft
    except ImportError as error:
        raise ConfigError("model.lora: needs peft, which is not installed; pip install groupwise[lora]") from error
    _check_targets(model, config.target_modules)
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(config.target_modules),
        bias="none",
    )
    training = model.training
    # peft draws on the CPU and moves the result to where the layer is, so the CPU's generator is all there is to keep.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        peft.inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)
    for layer in _lora_layers(model).values():
        if isinstance(layer.base_layer, QuantizedLinear):  # peft goes by the packed weight, and leaves them in float32
            layer.lora_A.to(layer.base_layer.dtype)
            layer.lora_B.to(layer.base_layer.dtype)
    # New layers come in training mode, and with it their dropout, whatever mode the model is in.
    return model.train(training)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """What the optimizer moves, by name; a tied weight is there once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def merged_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """The weights of a plain model that computes what this one does with its adapters on.

    The keys are those of the model without adapters. Tensors that have no adapter share memory with the live model;
    the live model is not changed. Quantized weights come out dense, as they are computed with, and in host memory: the
    device may have no room for all of them.
    """
    layers = _lora_layers(model)
    packed = {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    merged = {}
    for key, tensor in model.state_dict().items():
        weight = packed[key].dense() if key in packed else tensor
        owner = next((name for name in _parents(key) if name in layers), None)
        name = key
        if owner is not None:
            inner = key[len(owner) + 1 :]
            if not inner.startswith("base_layer."):
                continue  # of the adapter
            inner = inner.removeprefix("base_layer.")
            if inner == "weight":
                weight = _merge_weight(layers[owner], weight)
            name = f"{owner}.{inner}"
        merged[name] = weight.cpu() if key in packed else weight
    return merged


def _merge_weight(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    """W + scaling · B A, summed in float32 and rounded once to the dtype of W."""
    with torch.no_grad():
        first, second = layer.lora_A[_ADAPTER].weight.float(), layer.lora_B[_ADAPTER].weight.float()
        return (weight.float() + layer.scaling[_ADAPTER] * (second @ first)).to(weight.dtype)


def _lora_layers(model: nn.Module) -> dict[str, Any]:
    """The layers with adapters, by name; told by their parts, so that no peft is needed where none is used."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "lora_A") and hasattr(module, "base_layer")
    }


def _parents(key: str) -> Iterator[str]:
    while "." in key:
        key = key.rpartition(".")[0]
        yield key


def _check_targets(model: nn.Module, targets: tuple[str, ...]) -> None:
    if _lora_layers(model):
        raise ConfigError("model.lora: the model has adapters already; merge them first")
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    short_names = {name.rpartition(".")[2] for name in linear}
    if not targets:
        raise ConfigError(f"model.lora.target_modules = []: name at least one of {', '.join(sorted(short_names))}")
    for target in targets:
        matches = [module for name, module in linear.items() if name == target or name.endswith("." + target)]
        if not matches:
            raise ConfigError(
                f"model.lora.target_modules: {target!r} is no linear layer of {type(model).__name__}; "
                f"it has {', '.join(sorted(short_names))} ({nearest(target, short_names)})"
            )
        embedding = getattr(model, "get_input_embeddings", lambda: None)()
        if embedding is not None and any(module.weight is embedding.weight for module in matches):
            raise ConfigError(
                f"model.lora.target_modules: {target!r} shares its weight with the embedding, and an adapter on one of "
                "them cannot be merged; leave it out"
            )
