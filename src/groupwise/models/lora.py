"""LoRA: train small adapters beside frozen weights, through peft.

Adapters are added inside the given model, which stays the same object of the same class for engines, trainer and
exporter. An adapter has the dtype that its layer computes in. Adapters are not saved in peft's own format; an export
writes the merged model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from groupwise.config.build import ConfigError, nearest
from groupwise.config.schema import LoraConfig
from groupwise.models.quantized import QuantizedLinear

_ADAPTER = "default"


def add_lora(model: nn.Module, config: LoraConfig, seed: int) -> nn.Module:
    """Add adapters to the model and freeze everything else. Return the same model.

    An adapter starts with no effect, because its second matrix is zero. The first matrix is sampled from `seed` alone.
    """
    try:
        import peft
    except ImportError as error:
        raise ConfigError("model.lora: needs peft, which is not installed; pip install groupwise[lora]") from error
    targets = _find_targets(model, config.target_modules)
    # In a shell without a configuration: of a mixture of experts that it knows, peft would adapt the fused experts
    # instead of the linear layers that have such a name.
    shell = nn.Module()
    shell.model = model
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=[f"model.{name}" for name in targets],
        bias="none",
    )
    training = model.training
    # peft samples on the CPU and moves the result to the layer's device, so only the CPU's generator must be restored.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        peft.inject_adapter_in_model(settings, shell, adapter_name=_ADAPTER)
    for layer in _lora_layers(model).values():
        if isinstance(layer.base_layer, QuantizedLinear):  # peft looks at the packed weight and leaves them in float32
            layer.lora_A.to(layer.base_layer.dtype)
            layer.lora_B.to(layer.base_layer.dtype)
    # peft adds layers in training mode, dropout included, whatever mode the model is in.
    return model.train(training)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters by name; a tied weight appears once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def merged_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights of a plain model that computes what this one does with its adapters.

    The keys are those of the model without adapters. The model is not changed, and tensors without an adapter share its
    memory. Quantized weights are dense here, and in host memory, because the device may have no room for all of them.
    """
    layers = _lora_layers(model)
    packed = {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    merged = {}
    for key, tensor in model.state_dict().items():
        if key.partition(".lora_")[0] in layers:
            continue  # a weight of the adapter
        weight = packed[key].dense() if key in packed else tensor
        owner, _, inner = key.rpartition(".base_layer.")
        if owner in layers and inner == "weight":
            weight = _merge_weight(layers[owner], weight)
        name = f"{owner}.{inner}" if owner in layers else key
        merged[name] = weight.cpu() if key in packed else weight
    return merged


def _merge_weight(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    """Return W + scaling · B A, summed in float32 and rounded once to the dtype of W."""
    with torch.no_grad():
        first, second = layer.lora_A[_ADAPTER].weight.float(), layer.lora_B[_ADAPTER].weight.float()
        return (weight.float() + layer.scaling[_ADAPTER] * (second @ first)).to(weight.dtype)


def _lora_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers with adapters, by name. They are recognized by their attributes, which works without peft."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "lora_A") and hasattr(module, "base_layer")
    }


def _find_targets(model: nn.Module, targets: tuple[str, ...]) -> list[str]:
    """Return the full names of the linear layers that the given names mean."""
    if _lora_layers(model):
        raise ConfigError("model.lora: the model already has adapters; merge them first")
    # Not subclasses: a router that is one returns something else than a product.
    linear = {name: module for name, module in model.named_modules() if type(module) in (nn.Linear, QuantizedLinear)}
    short_names = {name.rpartition(".")[2] for name in linear}
    if not targets:
        raise ConfigError(f"model.lora.target_modules = []: name at least one of {', '.join(sorted(short_names))}")
    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    found: list[str] = []
    for target in targets:
        names = [name for name in linear if name == target or name.endswith("." + target)]
        if not names:
            raise ConfigError(
                f"model.lora.target_modules: {target!r} is not a linear layer of {type(model).__name__}; "
                f"it has {', '.join(sorted(short_names))} ({nearest(target, short_names)})"
            )
        if embedding is not None and any(linear[name].weight is embedding.weight for name in names):
            raise ConfigError(
                f"model.lora.target_modules: {target!r} shares its weight with the embedding, so an adapter on it "
                "cannot be merged; remove it"
            )
        found += names
    return found


@torch.no_grad()
def check_adapters(model: Any) -> None:
    """Refuse adapters that a forward pass does not call: some layers use the weight of another one directly."""
    called: set[str] = set()
    layers = _lora_layers(model)

    def note(name: str) -> Callable[..., None]:
        return lambda *_: called.add(name)

    hooks = [layer.register_forward_pre_hook(note(name.rpartition(".")[2])) for name, layer in layers.items()]
    model(input_ids=torch.arange(1, 5, device=model.device)[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    missed = sorted({name.rpartition(".")[2] for name in layers} - called)
    if missed:
        raise ConfigError(
            f"model.lora.target_modules: {type(model).__name__} uses the weight of {', '.join(missed)} without calling "
            "the layer, so an adapter would have no effect; remove it"
        )
