"""Recipes: a TOML file becomes one frozen, validated object. Only the standard library is needed."""

from groupwise.config.build import ConfigError, build, nearest, to_table
from groupwise.config.presets import ALGORITHMS, SUMMARIES
from groupwise.config.recipe import (
    RECIPES,
    apply_override,
    dump_toml,
    find_recipe,
    fingerprint,
    load_recipe,
    make_recipe,
    parse_recipe,
    set_key,
)
from groupwise.config.schema import (
    EngineConfig,
    GuardsConfig,
    LoraConfig,
    ModelConfig,
    Recipe,
    TaskConfig,
    VerifierConfig,
)
from groupwise.config.stages import (
    CurriculumConfig,
    OptimizerConfig,
    RewardConfig,
    RlStage,
    SftStage,
    Stage,
)

__all__ = [
    "ALGORITHMS",
    "RECIPES",
    "SUMMARIES",
    "ConfigError",
    "CurriculumConfig",
    "EngineConfig",
    "GuardsConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Recipe",
    "RewardConfig",
    "RlStage",
    "SftStage",
    "Stage",
    "TaskConfig",
    "VerifierConfig",
    "apply_override",
    "build",
    "dump_toml",
    "find_recipe",
    "fingerprint",
    "load_recipe",
    "make_recipe",
    "nearest",
    "parse_recipe",
    "set_key",
    "to_table",
]
