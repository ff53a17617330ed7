// The curves of the dashboard, in the order in which one looks at them, and the phases of a step. Tables alone.

export const PANELS = [
  { name: "held_out", title: "Held-out pass@1", metric: "eval/pass_at_1", kind: "points", isEval: true,
    isAlways: "No held-out evaluation yet." },
  { name: "reward", title: "Reward", metrics: ["reward/mean"], isAlways: "No step with a reward yet." },
  { name: "sft", title: "SFT loss", metrics: ["sft/loss"] },
  { name: "kl", title: "KL from the reference", metrics: ["kl/ref_k3"], mayBeLog: true },
  { name: "step_kl", title: "KL of the step", metrics: ["policy/approx_kl"], mayBeLog: true },
  { name: "clip", title: "Clipped tokens", metrics: ["policy/clip_share"] },
  { name: "entropy", title: "Entropy", metrics: ["policy/entropy_nats"] },
  { name: "grad_norm", title: "Gradient norm", metrics: ["policy/grad_norm"], mayBeLog: true },
  { name: "length", title: "Completion length", words: ["mean", "longest"],
    metrics: ["rollouts/length_mean_tokens", "rollouts/length_max_tokens"] },
  { name: "dead_groups", title: "Groups without signal", unit: "share",
    metrics: ["groups/dead_all_wrong", "groups/dead_all_correct"], per: "groups/count", isSum: true,
    words: ["all wrong", "all correct"],
    why: "Share of the step's groups whose rewards are alike: they teach nothing" },
  { name: "time", title: "Where the time goes", kind: "stack", unit: "s", metrics: ["time/sample_s", "time/score_s",
    "time/logprobs_s", "time/update_s", "time/tokens_s", "time/eval_s", "time/checkpoint_s"] },
  { name: "speed", title: "Sampling speed", metrics: ["engine/tokens_per_s"] },
  { name: "memory", title: "Peak memory", metrics: ["memory/peak_bytes"] },
];

// Where the time of a step goes, in the order in which it happens, with colours of the palette. The last two fall
// between steps.
export const PHASES = [["sample", 0], ["score", 3], ["logprobs", 4], ["update", 1], ["tokens", 7], ["other", 6],
  ["eval", 2], ["checkpoint", 5]];
