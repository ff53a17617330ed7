"""What is refused, and that the message names the key, the value and a way out."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from groupwise.config import ALGORITHMS, ConfigError, Recipe, RlStage, SftStage, make_recipe, nearest
from groupwise.config.build import key_paths
from groupwise.config.synonyms import SYNONYMS

RL = {"algorithm": "grpo", "steps": 2, "problems_per_step": 4, "rollouts_per_problem": 4}
SFT = {"algorithm": "sft", "steps": 2, "demonstrations_per_step": 4}
BASE = {"name": "x", "model": {"path": "tiny-qwen3"}, "task": {"name": "countdown"}, "stages": [RL]}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys; `stages.0.` may be left out for a key of the first stage, written `@key`."""
    table: dict[str, Any] = copy.deepcopy(BASE)
    for key, value in changes.items():
        *path, last = key.replace("@", "stages.0.").split(".")
        node: Any = table
        for part in path:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        if value is ...:
            del node[last]
        else:
            node[last] = value
    return table


def refused(changes: dict[str, Any], *fragments: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_recipe(changed(changes))
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message, message


def test_the_base_is_fine() -> None:
    make_recipe(BASE)


@pytest.mark.parametrize(
    ("key", "fragments"),
    [
        ("sede", ("sede: unknown key", "did you mean 'seed'")),
        ("model.pth", ("model.pth", "did you mean 'path'")),
        ("learning_rate", ("learning_rate: unknown key; did you mean 'stages.0.optimizer.learning_rate'?",)),
        ("@learning_rate", ("did you mean 'stages.0.optimizer.learning_rate'?",)),
        ("optimizer", ("did you mean 'stages.0.optimizer'?",)),
        ("temperature", ("did you mean 'evaluation.temperature' or 'stages.0.sampling.temperature'?",)),
        ("model.rank", ("model.rank: unknown key; did you mean 'model.lora.rank'?",)),
        ("@step", ("stages.0.step", "did you mean 'steps'")),
        ("@loss.clip_hi", ("stages.0.loss.clip_hi", "did you mean 'clip_high'")),
        ("@optimizer.lr", ("stages.0.optimizer.lr: unknown key; did you mean 'stages.0.optimizer.learning_rate'?",)),
        ("@lr", ("stages.0.lr: unknown key; did you mean 'stages.0.optimizer.learning_rate'?",)),
        ("@kl.beta", ("stages.0.kl.beta: unknown key; did you mean 'stages.0.kl.coefficient'?",)),
        ("@num_generations", ("did you mean 'stages.0.rollouts_per_problem'?",)),
        ("@loss.clip", ("stages.0.loss.clip: unknown key; known: advantage, clip_high",)),
        ("model.name", ("model.name: unknown key; known: chat_template_options, device",)),
        ("eval", ("eval: unknown key; did you mean 'evaluation'?",)),
        ("evaluation.qqqq", ("evaluation.qqqq: unknown key; known: at_start",)),
    ],
)
def test_unknown_keys_name_the_nearest(key: str, fragments: tuple[str, ...]) -> None:
    refused({key: 1}, *fragments)


def test_keys_of_another_kind_of_stage_are_unknown() -> None:
    refused({"stages": [SFT | {"rollouts_per_problem": 4}]}, "stages.0.rollouts_per_problem: unknown key")
    refused({"@demonstrations_per_step": 4}, "stages.0.demonstrations_per_step: unknown key")


@pytest.mark.parametrize(
    ("key", "fragments"),
    [
        ("name", ("name: missing", "a string")),
        ("model", ("model: missing", "a table")),
        ("model.path", ("model.path: missing", "a string")),
        ("task.name", ("task.name: missing",)),
        ("@steps", ("stages.0.steps: missing", "a whole number")),
        ("@rollouts_per_problem", ("stages.0.rollouts_per_problem: missing",)),
        ("@algorithm", ("stages.0.algorithm", "grpo")),
        ("stages", ("stages", "at least one")),
    ],
)
def test_missing_keys(key: str, fragments: tuple[str, ...]) -> None:
    refused({key: ...}, *fragments)


@pytest.mark.parametrize(
    ("key", "value", "fragments"),
    [
        ("seed", "1", ("seed = '1'", "expected a whole number, got str")),
        ("seed", 1.0, ("seed = 1.0", "expected a whole number, got float")),
        ("verifier.workers", "all", ("verifier.workers = 'all'", "a whole number or one of 'auto', got str")),
        ("verifier.workers", 300, ("workers = 300", 'from 0 to 256; or "auto"')),
        ("seed", True, ("seed = True", "a whole number", "bool")),
        ("@optimizer.learning_rate", "1e-5", ("stages.0.optimizer.learning_rate = '1e-5'", "a number")),
        ("@optimizer.learning_rate", True, ("a number", "bool")),
        ("evaluation.at_start", 1, ("evaluation.at_start = 1", "true or false")),
        ("model.path", 3, ("model.path = 3", "a string")),
        ("model", 3, ("model: expected a table, got 3; its keys: path, dtype",)),
        ("model.dtype", "bf16", ("model.dtype = 'bf16': did you mean 'bfloat16'?",)),
        ("model.dtype", "int4", ("model.dtype = 'int4': known: auto, bfloat16, float32",)),
        ("model.lora", 3, ("model.lora: expected a table",)),
        ("model.tiny", [1], ("model.tiny = [1]", "a table")),
        ("model.tiny.hidden_size", "32", ("model.tiny.hidden_size = '32'", "a whole number")),
        ("@loss", "clipped", ("stages.0.loss: expected a table",)),
        ("@sampling.stop_strings", "x", ("stages.0.sampling.stop_strings = 'x'", "a list of a string")),
        ("@sampling.stop_strings", ["x", 1], ("stages.0.sampling.stop_strings.1 = 1", "a string")),
        ("@loss.advantage", "group_men", ("stages.0.loss.advantage = 'group_men'", "did you mean 'group_mean'")),
        ("@loss.surrogate", 3, ("stages.0.loss.surrogate = 3", "clipped")),
        ("@algorithm", "gpro", ("stages.0.algorithm = 'gpro'", "did you mean 'grpo'")),
        ("@algorithm", "grop", ("stages.0.algorithm = 'grop'", "did you mean 'grpo'")),
        ("@algorithm", 3, ("stages.0.algorithm", "known:")),
        ("stages", [], ("at least one",)),
        ("stages", {"algorithm": "grpo"}, ("at least one",)),
        ("stages", [3], ("stages.0: expected a table, got 3",)),
        ("@start_from", "bst", ("did you mean 'best'",)),
    ],
)
def test_wrong_types_and_choices(key: str, value: Any, fragments: tuple[str, ...]) -> None:
    refused({key: value}, *fragments)


def test_whoever_goes_back_to_the_best_checkpoint_keeps_one() -> None:
    refused(
        {"checkpoints.keep_best": False, "@start_from": "best"}, 'stages.0.start_from = "best"', "keep_best = false"
    )
    guards = {"guards.action": "fall_back", "evaluation.at_start": True}
    refused({"checkpoints.keep_best": False, **guards}, 'guards.action = "fall_back"', "keep_best = false")
    assert not make_recipe(changed({"checkpoints.keep_best": False})).checkpoints.keep_best
    assert make_recipe(changed({"@start_from": "best", **guards})).checkpoints.keep_best


def test_a_whole_number_will_do_for_a_number() -> None:
    stage = make_recipe(changed({"@kl.coefficient": 1})).stages[0]
    assert isinstance(stage, RlStage)
    assert isinstance(stage.kl.coefficient, float)


AT_LEAST_ONE = [
    "@steps",
    "@problems_per_step",
    "@epochs_per_batch",
    "@microbatch_tokens",
    "@sampling.max_new_tokens",
    "@kl.schedule_steps",
    "engine.max_batch_rollouts",
    "evaluation.rollouts_per_problem",
    "checkpoints.every_steps",
    "checkpoints.keep_last",
    "max_nonfinite_updates",
    "model.lora.rank",
]
NOT_NEGATIVE = [
    "seed",
    "@refill_rounds",
    "@problems_per_update",
    "@max_rollouts_per_problem",
    "@sampling.top_k",
    "@optimizer.warmup_steps",
    "@reward.format_anneal_steps",
    "evaluation.every_steps",
    "evaluation.num_problems",
    "evaluation.max_new_tokens",
    "evaluation.patience",
    "logging.rollouts_every_steps",
    "logging.tokens_every_steps",
]


@pytest.mark.parametrize(
    ("key", "value"), [(key, 0) for key in AT_LEAST_ONE] + [(key, -1) for key in AT_LEAST_ONE + NOT_NEGATIVE]
)
def test_counts(key: str, value: int) -> None:
    refused({key: value}, f"{key.rpartition('.')[2].removeprefix('@')} = {value}")


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("@sampling.temperature", [-0.1, NAN]),
        ("@sampling.top_p", [0.0, -0.5, 1.1, NAN]),
        ("@sampling.min_p", [-0.1, 1.0, NAN]),
        ("@optimizer.learning_rate", [0.0, -1e-6, NAN]),
        ("@optimizer.max_grad_norm", [0.0, -1.0, NAN]),
        ("@loss.clip_low", [-0.1, NAN]),
        ("@loss.clip_high", [-0.1, NAN]),
        ("@loss.dual_clip", [1.0, 0.5, NAN]),
        ("@loss.importance_cap", [0.9, NAN]),
        ("@loss.importance_floor", [-0.1, 1.1, NAN]),
        ("@loss.off_policy_mask", [-0.1, NAN]),
        ("@loss.gate_positive", [0.0, INF, NAN]),
        ("@loss.gate_negative", [-1.0, INF, NAN]),
        ("@loss.pull", [-1e-3, INF, NAN]),
        ("@kl.coefficient", [-0.1, NAN]),
        ("@kl.target", [0.0, -1.0, NAN]),
        ("@reward.overlong_buffer_share", [-0.1, 1.1, NAN]),
        ("@curriculum.low", [-0.1, 0.9, 0.95, NAN]),
        ("@curriculum.high", [0.1, 1.1, NAN]),
        ("@curriculum.explore_share", [-0.1, 1.1, NAN]),
        ("@curriculum.memory", [0.0, 1.1, NAN]),
        ("model.ema_decay", [-0.1, 1.0, NAN]),
        ("model.lora.dropout", [-0.1, 1.0, NAN]),
        ("checkpoints.time_share", [0.0, -0.1, 1.1, NAN]),
    ],
)
def test_numbers_out_of_range(key: str, values: list[float]) -> None:
    for value in values:
        refused({key: value}, key.rpartition(".")[2])


def test_an_infinite_coefficient_goes_with_a_constant_term_of_the_loss() -> None:
    make_recipe(changed({"@kl.coefficient": INF}))
    for other in ({"@kl.place": "reward"}, {"@kl.schedule": "warmup"}, {"@kl.schedule": "target"}):
        refused({"@kl.coefficient": INF} | other, "coefficient = inf", 'place = "loss"')


def test_the_bounds_of_an_importance_ratio_are_in_order() -> None:
    refused({"@loss.importance_floor": 1.0, "@loss.importance_cap": 1.0}, "importance_floor = 1", "importance_cap = 1")
    make_recipe(changed({"@loss.importance_floor": 0.999, "@loss.importance_cap": 1.0}))


def test_a_kl_in_the_reward_has_no_gradient_to_correct() -> None:
    refused({"@kl.unbiased": True, "@kl.place": "reward"}, "unbiased = true", 'place = "loss"')


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("@optimizer.beta1", 1.0),
        ("@optimizer.beta2", -0.1),
        ("@optimizer.epsilon", -1e-8),
        ("@optimizer.weight_decay", -0.1),
        ("@optimizer.final_share", -0.5),
        ("@loss.constant_length", -1),
        ("@curriculum.level_steps", 0),
        ("@reward.overlong_penalty", NAN),
        ("@reward.part_weights", {"answer": NAN}),
    ],
)
def test_numbers_that_nobody_checks(key: str, value: Any) -> None:
    refused({key: value}, key.rpartition(".")[2])


def test_the_edges_are_fine() -> None:
    make_recipe(
        changed(
            {
                "@sampling.top_p": 1.0,
                "@sampling.min_p": 0.0,
                "@loss.clip_low": INF,
                "@loss.clip_high": 0.0,
                "@loss.dual_clip": INF,
                "@loss.importance_cap": 1.0,
                "@optimizer.max_grad_norm": INF,
                "@curriculum.low": 0.0,
                "@curriculum.high": 1.0,
                "evaluation.every_steps": 0,
            }
        )
    )


@pytest.mark.parametrize("rule", ["batch_mean_std", "group_mean_batch_std", "optimal_token"])
def test_a_batch_is_normalized_once(rule: str) -> None:
    refused({"@loss.advantage": rule, "@loss.normalize_batch": True}, "loss.normalize_batch", rule, "remove one")


def test_parts_that_are_normalized_are_neither_clipped_nor_summed() -> None:
    parts = {"@reward.normalize_parts": True}
    refused(parts | {"@reward.min_reward": 0.0}, "normalize_parts", "min_reward and max_reward clip their sum")
    for rule in ("batch_mean_std", "optimal_token"):
        refused(parts | {"@loss.advantage": rule}, "reward.normalize_parts", rule, "remove one of the two")
    refused(parts | {"@kl.place": "reward"}, "reward.normalize_parts", "cancels kl.coefficient", 'kl.place = "loss"')
    make_recipe(changed(parts | {"@kl.place": "reward", "@loss.advantage": "group_mean"}))


@pytest.mark.parametrize("per_update", [3, 5, 8])
def test_problems_per_update_must_divide_the_step(per_update: int) -> None:
    refused({"@problems_per_update": per_update}, f"problems_per_update = {per_update}", "problems_per_step = 4")


@pytest.mark.parametrize(("per_update", "epochs", "updates"), [(0, 1, 1), (4, 1, 1), (2, 1, 2), (1, 3, 12), (0, 2, 2)])
def test_updates_per_step(per_update: int, epochs: int, updates: int) -> None:
    stage = make_recipe(changed({"@problems_per_update": per_update, "@epochs_per_batch": epochs})).stages[0]
    assert isinstance(stage, RlStage)
    assert stage.updates_per_step == updates


@pytest.mark.parametrize("algorithm", ["gr_reinforce", "rloo"])
def test_a_plain_policy_gradient_takes_one_update(algorithm: str) -> None:
    make_recipe(changed({"@algorithm": algorithm}))
    refused({"@algorithm": algorithm, "@epochs_per_batch": 2}, "epochs_per_batch = 2", "= 2 updates")
    refused({"@algorithm": algorithm, "@problems_per_update": 2}, "problems_per_update = 2", "= 2 updates")


@pytest.mark.parametrize("rule", ["group_mean_std", "group_mean", "leave_one_out", "group_mean_batch_std"])
def test_a_group_of_one_has_nobody_to_beat(rule: str) -> None:
    refused({"@rollouts_per_problem": 1, "@loss.advantage": rule}, "rollouts_per_problem = 1", rule, "at least 2")


def test_a_group_of_one_will_do_for_reinforce_plus_plus() -> None:
    make_recipe(changed({"@rollouts_per_problem": 1, "@algorithm": "reinforce++"}))
    refused({"@rollouts_per_problem": 0, "@algorithm": "reinforce++"}, "rollouts_per_problem = 0")


@pytest.mark.parametrize("cap", [1, 4, 6, 9])
def test_groups_grow_by_whole_groups(cap: int) -> None:
    refused({"@max_rollouts_per_problem": cap}, f"max_rollouts_per_problem = {cap}", "such as 8")


def test_groups_may_grow() -> None:
    make_recipe(changed({"@max_rollouts_per_problem": 8}))


def test_greedy_groups_are_refused() -> None:
    refused({"@sampling.temperature": 0}, "sampling.temperature = 0")


def test_target_seeking_needs_a_coefficient_to_start_from() -> None:
    refused({"@kl.schedule": "target", "@kl.coefficient": 0}, "coefficient = 0", "target")


def test_greedy_evaluation_repeats_itself() -> None:
    refused({"evaluation.rollouts_per_problem": 4}, "rollouts_per_problem = 4", "temperature")
    make_recipe(changed({"evaluation.rollouts_per_problem": 4, "evaluation.temperature": 0.7}))


def test_an_average_must_be_kept_to_be_evaluated() -> None:
    refused({"evaluation.use_ema": True}, "use_ema", "ema_decay")
    make_recipe(changed({"evaluation.use_ema": True, "model.ema_decay": 0.99}))


def test_sizes_are_for_tiny_models() -> None:
    refused({"model.path": "org/model", "model.tiny.hidden_size": 32}, "tiny = {'hidden_size': 32}", "'org/model'")


def test_sft_sources() -> None:
    from_rollouts = SFT | {"source": "rollouts"}
    refused({"stages": [from_rollouts, RL]}, "stages.0.source", "put an RL stage first")
    make_recipe(changed({"stages": [RL, from_rollouts]}))
    refused({"stages": [RL, from_rollouts], "logging.rollouts_every_steps": 5}, "stages.1.source", "set it to 1")
    refused({"stages": [SFT | {"source": "file"}]}, "file = ''")
    refused({"stages": [SFT | {"file": "x.jsonl"}]}, "file = 'x.jsonl'")
    make_recipe(changed({"stages": [SFT | {"source": "file", "file": "x.jsonl"}]}))
    refused({"stages": [SFT | {"demonstrations_per_step": 0}]}, "demonstrations_per_step = 0")
    refused({"stages": [SFT | {"min_demonstrations": 0}]}, "min_demonstrations = 0")


@pytest.mark.parametrize("name", ["", "a b", "a/b", ".hidden", "..", "é", "x" * 49, "a\n"])
def test_names_that_make_no_folder(name: str) -> None:
    refused({"name": name}, "name = ")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"@algorithm": "dr_grpo"}, (False, False)),
        ({"@algorithm": "grpo"}, (True, False)),
        ({"@algorithm": "grpo", "@kl.coefficient": 0}, (False, False)),
        ({"@algorithm": "rloo"}, (True, True)),
        ({"@algorithm": "rloo", "@kl.coefficient": 0}, (False, False)),
        ({"@algorithm": "dr_grpo", "@epochs_per_batch": 2}, (False, True)),
        ({"@algorithm": "dr_grpo", "@loss.importance": "masked"}, (False, True)),
    ],
)
def test_which_logprobs_a_stage_needs(changes: dict[str, Any], expected: tuple[bool, bool]) -> None:
    stage = make_recipe(changed(changes)).stages[0]
    assert isinstance(stage, RlStage)
    assert (stage.uses_reference, stage.needs_old_logprobs) == expected


def test_nearest() -> None:
    assert nearest("stpes", ["steps", "seed"]) == "did you mean 'steps'?"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    assert nearest("zzz", []) == "known: none"
    assert nearest("gpu", ["auto", "cpu", "cuda"]) == "did you mean 'cuda'?"
    assert nearest("lr", ["kl", "loss"]) == "known: kl, loss"


def test_synonyms_are_keys_or_values_of_recipes() -> None:
    """A synonym of a name that no longer exists would lead nowhere."""
    keys = {path.rpartition(".")[2] for cls in (Recipe, RlStage, SftStage) for path in key_paths(cls, "")}
    values = {"cuda", "bfloat16", "float32", "4bit", "8bit", *ALGORITHMS}
    assert set(SYNONYMS.values()) <= keys | values
    assert not keys & set(SYNONYMS)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("@optimizer.beta1", 1.0, "stages.0.optimizer: beta1 = 1.0: must be at least 0 and below 1"),
        ("@optimizer.learning_rate", 0, "learning_rate = 0.0: must be above 0"),
        (
            "@optimizer.max_grad_norm",
            0,
            "max_grad_norm = 0.0: must be above 0 and at most 1,000,000, or inf (off); 1 is",
        ),
        ("@sampling.temperature", float("nan"), "temperature = nan: must be from 0 to 100"),
        ("@reward.length_cost", float("inf"), "length_cost = inf: must be from -1,000,000 to 1,000,000"),
        ("@steps", 0, "stages.0: steps = 0: must be from 1 to 10,000,000"),
        ("checkpoints.time_share", 0, "checkpoints: time_share = 0.0: must be above 0 and at most 1; 1 is off"),
    ],
)
def test_numbers_outside_of_their_limits(key: str, value: float, message: str) -> None:
    refused({key: value}, message)


@pytest.mark.parametrize(
    ("changes", "fragments"),
    [
        ({"@entropy.bonus": -0.1}, ("stages.0.entropy: bonus = -0.1", "0.001 is usual")),
        ({"@entropy.target": 0.2}, ("stages.0.entropy", "target = 0.2", "bonus = 0 stays 0")),
        ({"@entropy.top_share": 0}, ("stages.0.entropy: top_share = 0", "0.2 is usual, 1 is off")),
        ({"@entropy.covariance_share": 1}, ("stages.0.entropy: covariance_share = 1", "0.0002 is usual")),
        (
            {"@entropy.covariance_low": 6.0},
            ("covariance_low = 6.0, covariance_high = 5.0", "the first must be smaller"),
        ),
        ({"@entropy.pull_share": 0.002}, ("pull_share = 0.002", "set loss.pull, such as 0.5")),
        ({"@entropy_coef": 0.1}, ("stages.0.entropy_coef: unknown key; did you mean 'stages.0.entropy.bonus'?",)),
    ],
)
def test_entropy(changes: dict[str, Any], fragments: tuple[str, ...]) -> None:
    refused(changes, *fragments)


def test_what_chooses_tokens_by_covariance_needs_the_old_logprobs() -> None:
    for entropy, needs in (({}, False), ({"bonus": 0.1, "top_share": 0.2}, False), ({"covariance_share": 0.1}, True)):
        stage = make_recipe(changed({"@entropy": entropy})).stages[0]
        assert isinstance(stage, RlStage)
        assert stage.needs_old_logprobs is needs
