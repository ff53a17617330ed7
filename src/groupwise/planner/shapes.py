"""Sizes of a model from its configuration only: a hub id, a folder, a GGUF header or a tiny model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from groupwise.base.hub import hub_or_cache
from groupwise.base.outside import local_path
from groupwise.base.text_layout import first_line
from groupwise.config import ConfigError, LoraConfig, ModelConfig
from groupwise.models.families import UNKNOWN, family_named, has_bias, head_size, is_uniform, num_kv_heads


@dataclass(frozen=True, slots=True)
class ModelShape:
    kind: str
    """transformers' model_type."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    width: int
    """Hidden size of the feed-forward part."""
    vocab: int
    is_tied: bool
    """The output head is the embedding."""
    has_head_norms: bool = False
    has_bias: bool = False
    """Query, key and value have a bias."""

    @property
    def query(self) -> int:
        return self.heads * self.head_size

    @property
    def key(self) -> int:
        return self.kv_heads * self.head_size

    @property
    def linear_sizes(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of each linear layer."""
        return {
            "q_proj": (self.hidden, self.query),
            "k_proj": (self.hidden, self.key),
            "v_proj": (self.hidden, self.key),
            "o_proj": (self.query, self.hidden),
            "gate_proj": (self.hidden, self.width),
            "up_proj": (self.hidden, self.width),
            "down_proj": (self.width, self.hidden),
        }

    @property
    def layer_products(self) -> int:
        return sum(inputs * outputs for inputs, outputs in self.linear_sizes.values())

    @property
    def layer_parameters(self) -> int:
        norms = 2 * self.hidden + (2 * self.head_size if self.has_head_norms else 0)
        biases = self.query + 2 * self.key if self.has_bias else 0
        return self.layer_products + norms + biases

    @property
    def embedding_parameters(self) -> int:
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        ends = self.embedding_parameters * (1 if self.is_tied else 2) + self.hidden
        return self.layers * self.layer_parameters + ends

    @property
    def multiplied(self) -> int:
        """Parameters that a token is multiplied with: the head included, the embedding lookup not."""
        return self.parameters - (0 if self.is_tied else self.embedding_parameters)

    @property
    def is_straight(self) -> bool:
        return family_named(self.kind) is not UNKNOWN

    def adapter_parameters(self, lora: LoraConfig) -> int:
        sizes = [sum(pair) for name, pair in self.linear_sizes.items() if name in lora.target_modules]
        return self.layers * lora.rank * sum(sizes)

    def cache_bytes(self, value_bytes: int) -> int:
        """Return the cache bytes per token: a key and a value in each layer."""
        return self.layers * 2 * self.key * value_bytes


def find_shape(model: ModelConfig) -> ModelShape:
    from groupwise.models.tiny import TINY_NAMES, make_tokenizer, tiny_config

    if model.path in TINY_NAMES:
        return shape_of(tiny_config(model.path, model.tiny, make_tokenizer()), model.path)
    from transformers import AutoConfig

    fix = "a folder with config.json is enough; a plan needs no weights"
    return shape_of(read_part(AutoConfig, model.path, "configuration", fix), model.path)


def read_part(kind: Any, path: str, name: str, fix: str) -> Any:
    """Read a model's configuration or tokenizer. `kind` is the class of transformers that does."""
    from groupwise.models.gguf_reading import has_tied_head, read_quickly
    from groupwise.models.model_files import check_files

    file = local_path(path)
    if file.is_dir():
        check_files(file, f"model.path = {path!r}")
    try:
        if file.suffix.lower() != ".gguf":
            with hub_or_cache(path):
                return kind.from_pretrained(path, trust_remote_code=False)
        with read_quickly():
            part = kind.from_pretrained(str(file.parent), gguf_file=file.name)
            if name == "configuration":
                # The header does not say whether the head is tied; the loader decides.
                part.tie_word_embeddings = has_tied_head(str(file))
            return part
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(f"model.path = {path!r}: its {name} cannot be read: {first_line(error)} ({fix})") from error


def shape_of(config: Any, path: str) -> ModelShape:
    """Return the shape of a transformers configuration."""
    text = config.get_text_config()
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if getattr(text, key, None):
            raise ConfigError(f"model.path = {path!r}: the planner does not support mixtures of experts ({key})")
    if not is_uniform(text):
        raise ConfigError(f"model.path = {path!r}: the planner does not support layers of different sizes")
    wanted = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    missing = [key for key in wanted if not isinstance(getattr(text, key, None), int)]
    if missing:
        raise ConfigError(f"model.path = {path!r}: its configuration has no {missing[0]}, which the planner needs")
    return ModelShape(
        kind=text.model_type,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        heads=text.num_attention_heads,
        kv_heads=num_kv_heads(text),
        head_size=head_size(text),
        width=text.intermediate_size,
        vocab=text.vocab_size,
        is_tied=bool(text.tie_word_embeddings),
        has_head_norms=family_named(text.model_type).has_head_norms,
        has_bias=has_bias(text),
    )
