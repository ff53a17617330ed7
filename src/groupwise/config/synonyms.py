"""What other libraries, and people, call the keys and values of a recipe.

A word that is close in spelling is found without this table (see `nearest`), which has the words that are not.
"""

from __future__ import annotations

from collections.abc import Mapping

_WORDS = {
    # keys of stages
    "learning_rate": "lr actor_lr max_lr peak_lr",
    "schedule": "scheduler lr_schedule lr_scheduler lr_scheduler_type",
    "warmup_steps": "lr_warmup_steps num_warmup_steps",
    "weight_decay": "wd",
    "epsilon": "eps adam_epsilon",
    "max_grad_norm": "grad_clip clip_grad clip_grad_norm gradient_clipping max_norm",
    "coefficient": "beta kl_coef kl_coeff kl_beta kl_coefficient kl_loss_coef init_kl_coef",
    "normalize_batch": "whiten_advantages normalize_advantages advantage_normalization",
    "part_weights": "reward_weights reward_weight",
    "clip_low": "clip_ratio_low epsilon_low",
    "clip_high": "clip_ratio_high epsilon_high",
    "dual_clip": "clip_ratio_c",
    "surrogate": "loss_mode policy_loss importance_sampling_level",
    "importance": "rollout_is rollout_rs rollout_correction importance_sampling vllm_importance_sampling_mode tis",
    "importance_cap": "rollout_is_threshold tis_imp_ratio_cap vllm_importance_sampling_cap",
    "importance_floor": "rollout_is_threshold_lower rollout_rs_threshold_lower",
    "off_policy_mask": "off_policy_mask_threshold opsm_delta",
    "gate_positive": "sapo_temperature_pos tau_pos",
    "gate_negative": "sapo_temperature_neg tau_neg",
    "pull": "kl_tau",
    "router_balance": "router_aux_loss_coef router_aux_loss_coeff aux_loss_coef moe_aux_loss_coeff",
    "bonus": "entropy_coef entropy_coeff entropy_bonus entropy_loss_weight ent_coef",
    "target": "target_entropy entropy_target",
    "top_share": "top_entropy_quantile",
    "covariance_share": "clip_cov_ratio",
    "covariance_low": "clip_cov_lb",
    "covariance_high": "clip_cov_ub",
    "pull_share": "kl_cov_ratio",
    "unbiased": "use_bias_correction_kl use_unbiased_kl",
    "steps": "max_steps num_steps total_steps train_steps iterations",
    "problems_per_step": "batch_size train_batch_size prompts_per_step rollout_batch_size",
    "rollouts_per_problem": "group_size num_generations num_samples samples_per_prompt num_rollouts generations",
    "problems_per_update": "mini_batch_size minibatch_size ppo_mini_batch_size",
    "microbatch_tokens": "micro_batch_size microbatch_size max_tokens_per_gpu",
    "epochs_per_batch": "epochs num_epochs ppo_epochs num_iterations num_train_epochs",
    "max_new_tokens": "max_tokens max_length max_completion_length max_response_length response_length",
    "temperature": "temp",
    "stop_strings": "stop stops stop_sequences stop_words",
    # other keys
    "path": "model_name model_name_or_path model_id checkpoint",
    "rank": "r lora_r lora_rank",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "gradient_checkpointing": "grad_checkpointing activation_checkpointing recompute",
    "every_steps": "eval_every eval_steps eval_interval save_every save_steps save_interval",
    "keep_last": "save_total_limit max_checkpoints",
    "seconds": "timeout time_limit",
    "workers": "num_workers num_processes",
    "memory_mb": "memory_limit mem",
    "sinks": "report_to loggers",
    # values
    "cuda": "gpu",
    "bfloat16": "bf16 half fp16 float16",
    "float32": "fp32 float",
    "4bit": "nf4 int4",
    "8bit": "int8",
    "grpo": "ppo",
    "gr_reinforce": "reinforce",
}
SYNONYMS: Mapping[str, str] = {word: ours for ours, words in _WORDS.items() for word in words.split()}
