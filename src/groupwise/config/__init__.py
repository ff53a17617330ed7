"""Recipes: a TOML file becomes one frozen, validated object. Standard library only."""

from groupwise.config.build import ConfigError, build, nearest, to_table
from groupwise.config.presets import ALGORITHMS, SUMMARIES
from groupwise.config.recipe import apply_override, dump_toml, fingerprint, load_recipe, make_recipe, parse_recipe
from groupwise.config.schema import (
    CheckpointConfig,
    EngineConfig,
    EvaluationConfig,
    LoggingConfig,
    LoraConfig,
    ModelConfig,
    Recipe,
    TaskConfig,
    VerifierConfig,
)
from groupwise.config.stages import (
    CurriculumConfig,
    KlConfig,
    LossConfig,
    OptimizerConfig,
    RewardConfig,
    RlStage,
    SamplingConfig,
    SftStage,
    Stage,
)

__all__ = [
    "ALGORITHMS",
    "SUMMARIES",
    "CheckpointConfig",
    "ConfigError",
    "CurriculumConfig",
    "EngineConfig",
    "EvaluationConfig",
    "KlConfig",
    "LoggingConfig",
    "LoraConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Recipe",
    "RewardConfig",
    "RlStage",
    "SamplingConfig",
    "SftStage",
    "Stage",
    "TaskConfig",
    "VerifierConfig",
    "apply_override",
    "build",
    "dump_toml",
    "fingerprint",
    "load_recipe",
    "make_recipe",
    "nearest",
    "parse_recipe",
    "to_table",
]
