"""From a recipe's `model.path` to a model and a tokenizer that can be sampled from and trained.

    tiny-…          made here from the seed (see tiny.py)
    X.gguf          dequantized once, to plain floating-point weights
    ./folder        Hugging Face format: config.json, *.safetensors and the tokenizer's files
    org/name        the same, from the hub

Contract: what comes back is complete (no weight was left at a random value), on its device, in its dtype, in eval mode,
and knows at least one stop token. Whatever cannot be loaded is a ConfigError that names the key, the value and the fix.
No code from a checkpoint is ever run: neither remote code nor pickled weights.

With `model.quantization` linear layers are quantized on their way to the device, wherever they come from: see
quantized.py.

Adapters are added by lora.py. The engine's and the trainer's settings are not looked at here.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import jinja2
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.modeling_layers import GradientCheckpointingLayer

from groupwise.base.hub import hub_or_cache, is_hub_name
from groupwise.config.build import ConfigError, nearest
from groupwise.config.schema import ModelConfig
from groupwise.models.chat import set_template_options
from groupwise.models.gguf_reading import TIED_DISTANCE, read_quickly
from groupwise.models.quantized import quantize
from groupwise.models.tiny import TINY_NAMES, make_tiny

logger = logging.getLogger(__name__)

FALLBACK_CHAT_TEMPLATE = (
    "{{ bos_token if bos_token else '' }}"
    "{% for message in messages %}{{ message['role'] | capitalize + ': ' + message['content'] + '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""For a tokenizer without a chat template, as base models have: `User: …`, a blank line, `Assistant:`."""

_STOP_NAMES = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")


@dataclass(frozen=True)
class LoadedModel:
    model: Any
    """A transformers causal language model."""
    tokenizer: Any
    context_tokens: int
    """Positions that the model was made for: prompt and completion together."""
    device: torch.device
    dtype: torch.dtype


def load_model(config: ModelConfig, seed: int) -> LoadedModel:
    """`seed` moves the weights of a `tiny-…` model and nothing else."""
    device = _choose_device(config.device)
    dtype = _choose_dtype(config.dtype, device)
    model, tokenizer = _load(config, dtype, seed)
    prepare_template(tokenizer, config)
    if not stop_token_ids(tokenizer, model):
        raise ConfigError(
            f"model.path = {config.path!r}: neither the tokenizer nor the model names an end-of-text token, so that no "
            "completion could end; set eos_token in tokenizer_config.json"
        )
    if config.quantization != "none":
        quantize(model, config.quantization, device, dtype)
    model = model.to(device=device, dtype=dtype)
    recompute_activations(model, config.gradient_checkpointing)
    set_training(model, False)
    return LoadedModel(model, tokenizer, _context_tokens(model, tokenizer), device, dtype)


def prepare_template(tokenizer: Any, config: ModelConfig) -> None:
    if tokenizer.chat_template is None:
        logger.warning("%s: the tokenizer has no chat template; prompts are written as `User: …`", config.path)
        tokenizer.chat_template = FALLBACK_CHAT_TEMPLATE
    set_template_options(tokenizer, config.chat_template_options, config.path)


def recompute_activations(model: Any, which: Literal[False, True, "mlp"]) -> None:
    """Enable gradient checkpointing of whole layers or of their feed-forward parts; `set_training` switches it on."""
    if which is True:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if which != "mlp":
        return
    layers = getattr(model.get_decoder(), "layers", ())
    parts = [layer.mlp for layer in layers if isinstance(getattr(layer, "mlp", None), nn.Module)]
    if not parts or len(parts) < len(layers):
        raise ConfigError(
            f"model.gradient_checkpointing = 'mlp': the layers of {type(model).__name__} have no part of that name; "
            "take true, which recomputes whole layers"
        )
    for part in parts:
        # As the layers of transformers do it: around `__call__`, so that `forward` may still be replaced (fused.py).
        kind: Any = type(part)
        part.__class__ = _checkpointed(kind)
        part.gradient_checkpointing = True
        part._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)


@cache
def _checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    return type(f"Checkpointed{kind.__name__}", (GradientCheckpointingLayer, kind), {})


def set_training(model: nn.Module, is_training: bool) -> None:
    """Switch on what training alone needs: gradient checkpointing, where enabled, and the dropout of adapters.

    Everything else stays in eval mode. A policy with dropout would not be the one that was sampled from; but
    transformers recomputes activations only in layers in training mode, so those layers alone, not what is in them, are
    put there. Likewise feed-forward parts that `recompute_activations` has chosen.
    """
    model.eval()
    if not is_training:
        return
    for name, module in model.named_modules():
        is_checkpointed = isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing
        if is_checkpointed or ".lora_dropout." in name:
            module.training = True


def stop_token_ids(tokenizer: Any, model: Any) -> tuple[int, ...]:
    """Every token that ends a completion. The first is the one that ends the assistant's turn in the chat template,
    where there is one: demonstrations end with it."""
    known: list[Any] = [tokenizer.eos_token_id]
    from_model = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    known.extend(from_model if isinstance(from_model, (list, tuple)) else [from_model])
    special = {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    known.extend(special.get(name) for name in _STOP_NAMES)
    stops = list(dict.fromkeys(int(token_id) for token_id in known if token_id is not None))
    turn_end = _turn_end(tokenizer, stops)
    return tuple(sorted(stops, key=lambda token_id: token_id != turn_end))


def pad_token_id(tokenizer: Any, stop_ids: Iterable[int]) -> int:
    """What fills a rectangle of token ids; always masked, so that a stop token serves where no padding was defined."""
    return int(next(iter(stop_ids)) if tokenizer.pad_token_id is None else tokenizer.pad_token_id)


def _turn_end(tokenizer: Any, stops: list[int]) -> int | None:
    """The last stop token that the template writes after an assistant's message."""
    if tokenizer.chat_template is None:
        return None
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    try:
        opening = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=False)
        whole = tokenizer.apply_chat_template(messages, return_dict=False)
    except jinja2.TemplateError:
        return None
    return next((token_id for token_id in reversed(whole[len(opening) :]) if token_id in stops), None)


def _choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(
            f"model.device = {name!r}: unknown; {nearest(name, ('auto', 'cpu', 'cuda', 'cuda:0'))}"
        ) from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"model.device = {name!r}: not supported; take 'auto', 'cpu', 'cuda' or 'cuda:0'")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"model.device = {name!r}: torch sees no GPU here; take 'cpu' or 'auto'")
        if (device.index or 0) >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise ConfigError(f"model.device = {name!r}: no such GPU; the last one is 'cuda:{last}'")
        if device.index is None:
            return torch.device("cuda", torch.cuda.current_device())
    return device


def _choose_dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def _load(config: ModelConfig, dtype: torch.dtype, seed: int) -> tuple[Any, Any]:
    path = Path(config.path).expanduser()
    if config.path in TINY_NAMES or (config.path.startswith("tiny-") and not path.exists()):
        return make_tiny(config.path, config.tiny, seed)
    if path.suffix.lower() == ".gguf":
        return _load_gguf(config.path, path, dtype)
    if path.is_dir():
        _check_folder(config.path, path)
        return _load_pretrained(config.path, str(path), dtype, "the files in the folder may be damaged or unfinished")
    if path.is_file():
        raise ConfigError(f"model.path = {config.path!r}: is a file; give the folder that it lies in, or a .gguf file")
    if not is_hub_name(config.path) or "/" not in config.path:
        raise ConfigError(
            f"model.path = {config.path!r}: no such folder (looked for {path.absolute()}); "
            f"give a folder, a .gguf file, a hub id such as 'Qwen/Qwen3-0.6B', or one of {', '.join(TINY_NAMES)}"
        )
    fix = "check the spelling and the network, or download the model and give the folder"
    with hub_or_cache(config.path):
        return _load_pretrained(config.path, config.path, dtype, fix)


def _check_folder(given: str, folder: Path) -> None:
    def refuse(reason: str) -> ConfigError:
        return ConfigError(f"model.path = {given!r}: {reason}")

    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise refuse("holds an adapter without its model; merge them and give the merged folder")
        if ggufs := sorted(folder.glob("*.gguf")):
            raise refuse(f"a folder with GGUF files; name the file, as in {str(Path(given) / ggufs[0].name)!r}")
        raise refuse("the folder has no config.json; give the folder that save_pretrained wrote")
    if not any(folder.glob("*.safetensors")):
        if any(folder.glob("*.bin")):
            raise refuse("the weights are pickled (*.bin), which can run code; convert them to safetensors")
        raise refuse("the folder has no weights (*.safetensors); the download or the export may be unfinished")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise refuse(f"the folder has no tokenizer (none of {', '.join(_TOKENIZER_FILES)}); copy it there")


def _load_pretrained(given: str, source: str, dtype: torch.dtype, fix: str) -> tuple[Any, Any]:
    with _foreign_errors(given, fix):
        # The configuration comes first: it is small, and where the hub cannot be reached it says so before the rest.
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model, info = AutoModelForCausalLM.from_pretrained(
            source,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    _check_complete(given, info)
    if getattr(model, "is_quantized", False):
        raise ConfigError(
            f"model.path = {given!r}: its weights are stored quantized; give the model that they were made from, and "
            "set model.quantization to have it in 4 or 8 bit"
        )
    if len(tokenizer) > _num_embeddings(model):
        raise ConfigError(
            f"model.path = {given!r}: the tokenizer has {len(tokenizer)} tokens and the model embeds "
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
    source, name = str(path.parent), path.name
    why = "the file may be damaged, or of a model that transformers cannot read from GGUF"
    with _foreign_errors(given, why), read_quickly():
        config = AutoConfig.from_pretrained(source, gguf_file=name)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name, trust_remote_code=False)
        model, info = AutoModelForCausalLM.from_pretrained(
            source,
            gguf_file=name,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",
            quantization_config=GgufConfig(dequantize=True),
            trust_remote_code=False,
            output_loading_info=True,
        )
    _check_complete(given, info)
    packed = [key for key, weight in model.named_parameters() if not weight.is_floating_point()]
    if packed or getattr(model, "is_quantized", False):
        raise ConfigError(
            f"model.path = {given!r}: still quantized after loading ({packed[:3]}); convert it to a folder"
        )
    _tie_embeddings(model)
    _mend_tokenizer(tokenizer, config.eos_token_id, _num_embeddings(model))
    return model, tokenizer


def _mend_tokenizer(tokenizer: Any, eos_token_id: Any, num_embeddings: int) -> None:
    """Undo what transformers guesses when it makes a tokenizer from GGUF metadata.

    5.22 adds an <|endoftext|> where the file has none, and it has no embedding. 5.17 takes the end of text from the
    architecture (SmolLM2: <|im_start|>) and tidies up spaces. The model's configuration has it right in both.
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
    """Tie an output head that is the embedding, quantized another way.

    Some GGUF files (Qwen's) carry both, and transformers takes that for an untied model; trained so, the two would
    drift apart. The head's values are kept: it is the one that is stored with more bits.
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


def _check_complete(given: str, info: dict[str, Any]) -> None:
    """transformers gives missing weights random values and only logs it."""
    missing = sorted(info["missing_keys"])
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise ConfigError(
            f"model.path = {given!r}: {len(missing)} weights are missing ({shown}), so that they would be random; "
            "the files are of another architecture than config.json says, or unfinished"
        )


@contextmanager
def _foreign_errors(given: str, fix: str) -> Iterator[None]:
    """What transformers, tokenizers and safetensors raise over files and the hub, as one ConfigError.

    Over damaged files they raise anything: struct.error, AssertionError, and tokenizers a bare Exception.
    """
    try:
        yield
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ConfigError(f"model.path = {given!r}: cannot be loaded: {reason} ({fix})") from error


def _num_embeddings(model: Any) -> int:
    return int(model.get_input_embeddings().weight.shape[0])


def _context_tokens(model: Any, tokenizer: Any) -> int:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(tokenizer.model_max_length if limit is None else limit)
