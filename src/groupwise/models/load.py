"""Load the model and tokenizer that a recipe's `model.path` names.

    tiny-…          made from the seed (see tiny.py)
    X.gguf          dequantized once, into plain floating-point weights
    ./folder        Hugging Face format: config.json, *.safetensors and the tokenizer's files
    org/name        the same, from the hub

Contract: the returned model is complete (no weight keeps a random value), on its device, in its dtype, in eval mode,
and has at least one stop token. A model that cannot be loaded is a ConfigError that names the key, the value and the
fix. Code from a checkpoint is never run: neither remote code nor pickled weights.

With `model.quantization`, linear layers are quantized while they are moved to the device (quantized.py). Adapters are
added by lora.py.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from huggingface_hub import hf_hub_download
from tokenizers import Tokenizer
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

import groupwise
from groupwise.base.hub import hub_or_cache, is_hub_name
from groupwise.base.outside import local_path
from groupwise.base.text_layout import first_line
from groupwise.config.build import ConfigError, nearest
from groupwise.config.schema import ModelConfig
from groupwise.models import cpu
from groupwise.models.chat import encode_rendered, set_template_options
from groupwise.models.gguf_reading import TIED_DISTANCE, read_quickly
from groupwise.models.model_files import INDEX, check_files, check_index, read_json
from groupwise.models.quantized import quantize
from groupwise.models.templates import FALLBACK_TEMPLATE, probe, template_of
from groupwise.models.tiny import TINY_NAMES, make_tiny
from groupwise.models.trial import Unusable, attempt

logger = logging.getLogger(__name__)

_STOP_NAMES = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")


@dataclass(frozen=True)
class LoadedModel:
    model: Any
    """A transformers causal language model."""
    tokenizer: Any
    context_tokens: int
    """Maximum length of prompt and completion together."""
    device: torch.device
    dtype: torch.dtype


def load_model(config: ModelConfig, seed: int) -> LoadedModel:
    """Load a model. `seed` only affects the weights of a `tiny-…` model."""
    transformers.utils.logging.disable_progress_bar()  # it would break up the progress display
    device = _choose_device(config.device)
    dtype = _choose_dtype(config.dtype, device)
    if device.type == "cpu":
        cpu.prepare()
    model, tokenizer = _load(config, dtype, seed)
    prepare_template(tokenizer, config)
    if not stop_token_ids(tokenizer, model):
        raise ConfigError(
            f"model.path = {config.path!r}: neither the tokenizer nor the model defines an end-of-text token, so no "
            "completion could end; set eos_token in tokenizer_config.json"
        )
    if config.quantization != "none":
        quantize(model, config.quantization, device, dtype)
    elif config.dtype == "auto" and device.type == "cpu":
        dtype = cpu.choose_dtype(model)
    model = model.to(device=device, dtype=dtype)
    if config.quantization != "none":
        try_quantized(model, config.quantization)
    recompute_activations(model, config.gradient_checkpointing)
    set_training(model, False)
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return LoadedModel(model, tokenizer, int(tokenizer.model_max_length if limit is None else limit), device, dtype)


def try_quantized(model: Any, kind: str) -> None:
    """Refuse a model whose code reads the weights of its linear layers, which are packed now."""
    ids = torch.arange(1, 5, device=model.device)[None]
    try:
        with torch.no_grad():
            attempt(model, input_ids=ids, use_cache=False)
    except Unusable as error:
        raise ConfigError(
            f"model.quantization = {kind!r}: {type(model).__name__} uses weights that are quantized in "
            f"a way of its own ({error}); remove the key"
        ) from error


def prepare_template(tokenizer: Any, config: ModelConfig) -> None:
    """Set a fallback chat template where there is none, and the recipe's template options; check the result."""
    tokenizer.name_or_path = config.path
    if tokenizer.chat_template is None:
        logger.warning("%s: the tokenizer has no chat template; prompts are written as `User: …`", config.path)
        tokenizer.chat_template = FALLBACK_TEMPLATE
    set_template_options(tokenizer, config.chat_template_options, config.path)
    template_of(tokenizer).check()


def recompute_activations(model: Any, which: Literal[False, True, "mlp"]) -> None:
    """Enable gradient checkpointing of whole layers or of their feed-forward blocks. `set_training` switches it on.

    The recomputed module gets another class of the same name in place. A wrapper module would be more explicit, but
    would rename the weights in checkpoints and exports.
    """
    if not which:
        return
    if which == "mlp":
        layers = getattr(model.get_decoder(), "layers", ())
        parts = [layer.mlp for layer in layers if isinstance(getattr(layer, "mlp", None), nn.Module)]
        if not parts or len(parts) < len(layers):
            raise ConfigError(
                f"model.gradient_checkpointing = 'mlp': the layers of {type(model).__name__} have no such block; "
                "use true, which recomputes whole layers"
            )
    else:
        parts = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not parts:
            raise ConfigError(
                f"model.gradient_checkpointing = true: the layers of {type(model).__name__} cannot be recomputed in "
                "transformers; use false, and lower microbatch_tokens to save memory"
            )
    for part in parts:
        kind: Any = type(part)
        part.__class__ = _recomputed(kind)


class Recomputed(nn.Module):
    """Recomputes its activations in the backward pass while `is_recomputing` is set.

    Training mode does not decide, as it does in transformers: it would also switch on the dropout of the module, which
    changes the policy. The checkpoint is around `__call__`, because fused.py replaces `forward`.
    """

    recomputes = True
    """False: a fused form around it recomputes by itself (models/straight.py)."""
    is_recomputing = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = super().__call__
        if self.recomputes and self.is_recomputing:
            return checkpoint(call, *args, use_reentrant=False, **kwargs)
        return call(*args, **kwargs)


@cache
def _recomputed(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (Recomputed, kind), {})


def set_training(model: nn.Module, is_training: bool) -> None:
    """Switch on what only training needs: gradient checkpointing, where enabled, and the dropout of adapters.

    Everything else stays in eval mode, because dropout in the model would change the policy that was sampled from.
    """
    model.eval()
    for name, module in model.named_modules():
        if isinstance(module, Recomputed):
            module.is_recomputing = is_training
        if ".lora_dropout." in name:
            module.training = is_training


def stop_token_ids(tokenizer: Any, model: Any) -> tuple[int, ...]:
    """Return every token that ends a completion.

    The first one ends the assistant's turn in the chat template, if it has one. Demonstrations end with it.
    """
    known: list[Any] = [tokenizer.eos_token_id]
    from_model = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    known.extend(from_model if isinstance(from_model, (list, tuple)) else [from_model])
    special = {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    known.extend(special.get(name) for name in _STOP_NAMES)
    stops = list(dict.fromkeys(int(token_id) for token_id in known if token_id is not None))
    turn_end = _turn_end(tokenizer, stops)
    return tuple(sorted(stops, key=lambda token_id: token_id != turn_end))


def _turn_end(tokenizer: Any, stops: list[int]) -> int | None:
    """Return the last stop token that the template writes after an assistant's message."""
    if tokenizer.chat_template is None:
        return None
    opening, _, whole = (answer.value for answer in probe(template_of(tokenizer)))
    if opening is None or whole is None:
        return None
    length = len(encode_rendered(tokenizer, opening))
    return next((token for token in reversed(encode_rendered(tokenizer, whole)[length:]) if token in stops), None)


def _choose_device(name: str) -> torch.device:
    if name == "auto":
        return _choose_device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"model.device = {name!r}: unknown; {nearest(name, ('auto', 'cpu', 'cuda', 'cuda:0'))}"
        ) from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"model.device = {name!r}: not supported; choose 'auto', 'cpu', 'cuda' or 'cuda:0'")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ConfigError(f"model.device = {name!r}: torch finds no GPU; set 'cpu' or 'auto'")
    last = torch.cuda.device_count() - 1
    if (device.index or 0) > last:
        raise ConfigError(f"model.device = {name!r}: no such GPU; the last is 'cuda:{last}'")
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def _choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def _load(config: ModelConfig, dtype: torch.dtype, seed: int) -> tuple[Any, Any]:
    path = local_path(config.path)
    if config.path in TINY_NAMES or (config.path.startswith("tiny-") and not path.exists()):
        return make_tiny(config.path, config.tiny, seed)
    if path.suffix.lower() == ".gguf":
        return _load_gguf(config.path, path, dtype)
    if path.is_dir():
        _check_folder(config.path, path)
        return _load_pretrained(config.path, str(path), dtype, "the files in the folder may be damaged or incomplete")
    if path.is_file():
        raise ConfigError(f"model.path = {config.path!r}: is a file; give the folder that it lies in, or a .gguf file")
    if not is_hub_name(config.path) or "/" not in config.path:
        raise ConfigError(
            f"model.path = {config.path!r}: no such folder (looked for {path.absolute()}); "
            f"give a folder, a .gguf file, a hub id such as 'Qwen/Qwen3-0.6B', or one of {', '.join(TINY_NAMES)}"
        )
    fix = "check the spelling and the network, or download the model and give the folder"
    with hub_or_cache(config.path):
        _check_hub_index(config.path)
        return _load_pretrained(config.path, config.path, dtype, fix)


def _check_hub_index(name: str) -> None:
    try:
        index = Path(hf_hub_download(name, INDEX))
    except (OSError, ValueError):
        return  # There is none, or the hub cannot be reached, which is told when the model is loaded.
    check_index(read_json(index, f"model.path = {name!r}"), f"model.path = {name!r}: {INDEX}")


def _check_folder(given: str, folder: Path) -> None:
    def refuse(reason: str) -> ConfigError:
        return ConfigError(f"model.path = {given!r}: {reason}")

    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise refuse("contains an adapter without its model; merge them and give the merged folder")
        if ggufs := sorted(folder.glob("*.gguf")):
            raise refuse(f"contains GGUF files; name the file, as in {str(Path(given) / ggufs[0].name)!r}")
        raise refuse("the folder has no config.json; give a folder that save_pretrained wrote")
    if (folder / "adapter_config.json").exists():
        raise refuse("contains an adapter beside the model; move one of them to another folder, or merge them")
    check_files(folder, f"model.path = {given!r}")
    if not any(folder.glob("*.safetensors")):
        if any(folder.glob("*.bin")):
            raise refuse("the weights are pickled (*.bin), which can run code; convert them to safetensors")
        raise refuse("the folder has no weights (*.safetensors); the download or export may be incomplete")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise refuse(f"the folder has no tokenizer (none of {', '.join(_TOKENIZER_FILES)}); copy it there")


def _load_pretrained(given: str, source: str, dtype: torch.dtype, fix: str) -> tuple[Any, Any]:
    _, tokenizer, model = _from_pretrained(given, source, dtype, fix, use_safetensors=True)
    if getattr(model, "is_quantized", False):
        raise ConfigError(
            f"model.path = {given!r}: its weights are stored quantized; give the original model and set "
            "model.quantization to load it in 4 or 8 bit"
        )
    if len(tokenizer) > _num_embeddings(model):
        raise ConfigError(
            f"model.path = {given!r}: the tokenizer has {len(tokenizer)} tokens but the model embeds "
            f"{_num_embeddings(model)}; they do not belong together"
        )
    return model, tokenizer


def _load_gguf(given: str, path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    if not path.is_file():
        raise ConfigError(f"model.path = {given!r}: no such file (looked for {path.absolute()})")
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"model.path = {given!r}: reading a GGUF file needs {package}, which is not installed; "
                "pip install groupwise[gguf]"
            )
    why = "the file may be damaged, or transformers cannot read this model from GGUF"
    plain = {"quantization_config": GgufConfig(dequantize=True)}
    with read_quickly():
        config, tokenizer, model = _from_pretrained(
            given, str(path.parent), dtype, why, {"gguf_file": path.name}, **plain
        )
    packed = [key for key, weight in model.named_parameters() if not weight.is_floating_point()]
    if packed or getattr(model, "is_quantized", False):
        raise ConfigError(
            f"model.path = {given!r}: still quantized after loading ({packed[:3]}); convert it to a folder"
        )
    _tie_embeddings(model)
    _fix_tokenizer(tokenizer, config.eos_token_id, _num_embeddings(model))
    return model, tokenizer


def _from_pretrained(
    given: str, source: str, dtype: torch.dtype, fix: str, file: Mapping[str, str] | None = None, **named: Any
) -> tuple[Any, Any, Any]:
    """Return (configuration, tokenizer, model). A weight that is missing is an error: transformers only logs it."""
    where: dict[str, Any] = {"trust_remote_code": False, **(file or {})}
    try:
        # The configuration first: it is small, and fails early if the hub cannot be reached.
        config = AutoConfig.from_pretrained(source, **where)
        tokenizer = AutoTokenizer.from_pretrained(source, **where)
        kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
        attention = "sdpa" if getattr(kind, "_supports_sdpa", True) else "eager"
        how = {"config": config, "dtype": dtype, "attn_implementation": attention, "output_loading_info": True}
        model, info = AutoModelForCausalLM.from_pretrained(source, **where, **how, **named)
    except Exception as error:  # damaged files raise anything: struct.error, AssertionError, a bare Exception
        if "custom code" in str(error):
            raise ConfigError(
                f"model.path = {given!r}: its architecture is code in the model's files, which is never run; choose a "
                "model whose architecture transformers has"
            ) from error
        raise ConfigError(f"model.path = {given!r}: cannot be loaded: {first_line(error)} ({fix})") from error
    if missing := sorted(info["missing_keys"]):
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise ConfigError(
            f"model.path = {given!r}: {len(missing)} weights are missing ({shown}) and would be random; the "
            "files do not match the architecture in config.json, or are incomplete"
        )
    return config, tokenizer, model


def _fix_tokenizer(tokenizer: Any, eos_token_id: Any, num_embeddings: int) -> None:
    """Undo what transformers guesses when it makes a tokenizer from GGUF metadata.

    5.22 adds an <|endoftext|> without an embedding if the file has none. 5.17 takes the end of text from the
    architecture (SmolLM2: <|im_start|>) and cleans up spaces. The model's configuration is right in both versions.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    kept = [token for token in backend["added_tokens"] if token["id"] < num_embeddings]
    if len(kept) < len(backend["added_tokens"]):
        tokenizer._tokenizer = Tokenizer.from_str(json.dumps({**backend, "added_tokens": kept}))
    if isinstance(eos_token_id, int):
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(eos_token_id)
    tokenizer.clean_up_tokenization_spaces = False


@torch.no_grad()
def _tie_embeddings(model: Any) -> None:
    """Tie an output head that is the embedding in another quantization.

    Some GGUF files (Qwen's) contain both. transformers then loads an untied model, and training would let the two drift
    apart. The head's values are kept, because it is stored with more bits.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is None or embedding.weight is head.weight or embedding.weight.shape != head.weight.shape:
        return
    distance = torch.linalg.vector_norm((embedding.weight - head.weight).float())
    if distance > TIED_DISTANCE * torch.linalg.vector_norm(head.weight.float()):
        return
    embedding.weight.copy_(head.weight)
    model.config.tie_word_embeddings = True
    model.tie_weights()


def _num_embeddings(model: Any) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


def versions() -> dict[str, str]:
    """Return the versions of the software that a run's numbers depend on."""
    return {
        "groupwise": groupwise.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
