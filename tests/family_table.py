"""What groupwise does with each decoder family of transformers, measured: the table in docs/reference/models.md.

    python -m tests.family_table --write

A cell says that logprobs (or gradients) are those of the model's own forward pass over each sequence alone, or it is
the text of the refusal.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from groupwise.config import LoraConfig, ModelConfig
from groupwise.config.build import ConfigError
from groupwise.data.batch import Example
from groupwise.engines.engine import Engine, Request
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.engines.reference import ReferenceEngine
from groupwise.models.export import save_folder
from groupwise.models.families import fits_packed_attention
from groupwise.models.head import Head
from groupwise.models.load import LoadedModel, load_model, recompute_activations, set_training, try_quantized
from groupwise.models.lora import add_lora, check_adapters, merged_state_dict, trainable_parameters
from groupwise.models.optimizer import GradientSums
from groupwise.models.policy import Policy
from groupwise.models.quantized import quantize
from groupwise.models.tiny import make_tokenizer
from groupwise.models.trial import has_right_packs
from groupwise.types import Problem, Prompt, SamplingParams
from tests.families import LEFT_OUT, NAMES, make_tiny_family

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "models.md"
BOUNDS = {
    # A step of the recurrence multiplies in another order than the scan over the sequence.
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba"), 1e-4),
    # Here logits are large, and 1e-5 is their rounding.
    **dict.fromkeys(("gemma4_unified_text", "minicpm3", "rembert", "youtu"), 1e-4),
}
"""Largest difference in nats where it is not 1e-5."""
STOPS = tuple(range(0, 256, 8))  # Frequent, so that rows leave the batch at different times.
CPU = torch.device("cpu")


def ids(num_tokens: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(3, 250, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist())


def request(num_tokens: int, num_rollouts: int) -> Request:
    seeds = range(100 * num_tokens, 100 * num_tokens + num_rollouts)
    return Request(Prompt(Problem(str(num_tokens), (), ""), ids(num_tokens, num_tokens)), tuple(seeds))


REQUESTS = [request(9, 3), request(4, 2), request(20, 1)]
EXAMPLES = [Example(ids(9, 0), ids(3, 1)), Example(ids(4, 2), ids(6, 3)), Example(ids(12, 4), ids(2, 5))]


@torch.no_grad()
def own_logprobs(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    """Return the logprobs of a completion from the model's own forward pass over this sequence alone."""
    whole = torch.tensor([[*prompt, *completion]])
    count = len(completion)
    logprobs = model(input_ids=whole, use_cache=False).logits[0, -count - 1 : -1].float().log_softmax(dim=-1)
    return logprobs.gather(1, whole[0, -count:, None])[:, 0]


def sampled_gap(engine: Engine, model: Any) -> float:
    gaps = []
    for index, group in engine.generate(REQUESTS, SamplingParams(max_new_tokens=8), 0):
        assert len(group.rollouts) == len(REQUESTS[index].seeds)
        for rollout in group.rollouts:
            own = own_logprobs(model, group.prompt.token_ids, rollout.token_ids)
            gaps.append((torch.tensor(rollout.rollout_logprobs) - own).abs().max().item())
    return max(gaps)


def trained_gap(model: Any) -> tuple[float, bool]:
    """Return the gap of the trainer's logprobs, and whether rows of different lengths share a rectangle."""
    policy = Policy(LoadedModel(model, make_tokenizer(), 64, CPU, torch.float32), ema_decay=0.0)
    measured = policy.old_logprobs(EXAMPLES, 1.0, 4096)
    gaps = [
        (logprobs - own_logprobs(model, example.prompt_ids, example.completion_ids)).abs().max().item()
        for example, logprobs in zip(EXAMPLES, measured, strict=True)
    ]
    return max(gaps), policy._find_form().is_padded


# -- the columns: each returns a gap, or a gap and a word --


def reference(name: str) -> float:
    model = make_tiny_family(name)
    return sampled_gap(ReferenceEngine(model, make_tokenizer(), STOPS, 4), model)


def native(name: str) -> float:
    model = make_tiny_family(name)
    return sampled_gap(NativeEngine(model, make_tokenizer(), STOPS, 4), model)


def training(name: str) -> tuple[float, str]:
    gap, is_padded = trained_gap(make_tiny_family(name))
    return gap, "equal" if is_padded else "alone"


def packs(name: str) -> tuple[float, str]:
    model = make_tiny_family(name)
    if not has_right_packs(model, Head(model, GradientSums())):
        return 0.0, "no"
    return 0.0, "equal" if fits_packed_attention(model.config.get_text_config()) else "no"


def experts(name: str) -> tuple[float, str]:
    """Compare the experts that each token of a sequence chooses, in sampling by both engines and in training."""
    model, tokenizer = make_tiny_family(name), make_tokenizer()
    engines: list[Engine] = [ReferenceEngine(model, tokenizer, STOPS, 4)]
    with suppress(ConfigError):
        native = NativeEngine(model, tokenizer, STOPS, 4)
        native.find_layout()
        engines.append(native)
    policy = Policy(LoadedModel(model, tokenizer, 64, CPU, torch.float32), ema_decay=0.0)
    policy._find_form()
    differences = 0
    for engine in engines:
        list(engine.generate([request(4, 1)], SamplingParams(max_new_tokens=1), 0))  # It tries the model first.
        for one in (request(9, 1), request(4, 1), request(20, 1)):
            with choices(model) as sampled:
                ((_, group),) = engine.generate([one], SamplingParams(max_new_tokens=8), 0)
            rollout = group.rollouts[0]
            with choices(model) as trained:
                policy.old_logprobs([Example(group.prompt.token_ids, rollout.token_ids)], 1.0, 4096)
            if not trained:
                return 0.0, "–"
            count = len(group.prompt.token_ids) + len(rollout.token_ids) - 1
            for layer, calls in trained.items():
                # Without a cache each call has the whole sequence. Its last token predicts nothing and may be left out.
                parts = [part[-1:] if len(part[-1]) >= count else part for part in (calls, sampled[layer])]
                ours, theirs = (torch.cat(part)[:count].sort().values for part in parts)
                assert len(ours) == len(theirs) == count
                differences += int((ours != theirs).any(dim=1).sum())
    return float(differences), "equal"


@contextmanager
def choices(model: Any) -> Iterator[dict[str, list[Tensor]]]:
    """Yield, by layer, the numbers of the experts [tokens, chosen] in each call of the block."""
    found: dict[str, list[Tensor]] = {}

    def note(path: str) -> Callable[..., None]:
        def keep(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            for value in (*arguments, *named.values()):
                if isinstance(value, Tensor) and not value.is_floating_point():
                    found.setdefault(path, []).append(value)

        return keep

    hooks = [
        module.register_forward_pre_hook(note(path), with_kwargs=True)
        for path, module in model.named_modules()
        if type(module).__name__.endswith("Experts")
    ]
    yield found
    for hook in hooks:
        hook.remove()


def lora(name: str) -> float:
    model = make_tiny_family(name)
    add_lora(model, LoraConfig(rank=2, target_modules=linear_names(model)), seed=0)
    check_adapters(model)
    adapters = trainable_parameters(model)
    with torch.no_grad():
        for key, weight in adapters.items():
            if "lora_B" in key:
                weight.normal_(std=0.02, generator=torch.Generator().manual_seed(1))
    gap, _ = trained_gap(model)
    merged = make_tiny_family(name)
    merged.load_state_dict(merged_state_dict(model))
    example = EXAMPLES[0]
    ours, plain = (own_logprobs(one, example.prompt_ids, example.completion_ids) for one in (model, merged))
    return max(gap, (ours - plain).abs().max().item())


def linear_names(model: Any) -> tuple[str, ...]:
    """Return the linear layers of the decoder's layers that adapters can be put beside."""
    outside = {id(model.get_output_embeddings()), id(model.get_input_embeddings())}
    found = (path for path, one in model.named_modules() if type(one) is nn.Linear and id(one) not in outside)
    names = {path.rpartition(".")[2] for path in found if any(part.isdigit() for part in path.split("."))}
    return tuple(sorted(name for name in names if not name.isdigit()))


def eight_bit(name: str) -> float:
    model = make_tiny_family(name)
    quantize(model, "8bit", CPU, torch.float32)
    try_quantized(model, "8bit")
    return max(sampled_gap(ReferenceEngine(model, make_tokenizer(), STOPS, 4), model), trained_gap(model)[0])


def checkpointing(which: Any) -> Callable[[str], float]:
    def compare(name: str) -> float:
        plain, model = make_tiny_family(name), make_tiny_family(name)
        recompute_activations(model, which)
        expected, found = gradients(plain), gradients(model)
        return max((found[key] - gradient).abs().max().item() for key, gradient in expected.items())

    return compare


def gradients(model: Any) -> dict[str, Tensor]:
    set_training(model, True)
    whole = torch.tensor([[*EXAMPLES[0].prompt_ids, *EXAMPLES[0].completion_ids]])
    logits = model(input_ids=whole, use_cache=False).logits[0, :-1]
    loss = nn.functional.cross_entropy(logits, whole[0, 1:])
    loss.backward()
    set_training(model, False)
    return {key: weight.grad for key, weight in model.named_parameters() if weight.grad is not None}


def export(name: str) -> float:
    model = make_tiny_family(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        save_folder(LoadedModel(model, make_tokenizer(), 64, CPU, torch.float32), path)
        loaded = load_model(ModelConfig(path=str(path), device="cpu", dtype="float32"), 0).model
    example = EXAMPLES[0]
    ours, theirs = (own_logprobs(one, example.prompt_ids, example.completion_ids) for one in (model, loaded))
    return (ours - theirs).abs().max().item()


COLUMNS: dict[str, Callable[[str], Any]] = {
    "reference engine": reference,
    "native engine": native,
    "training": training,
    "packs": packs,
    "experts": experts,
    "LoRA": lora,
    "8-bit weights": eight_bit,
    "checkpointing": checkpointing(True),
    'checkpointing "mlp"': checkpointing("mlp"),
    "export": export,
}


def cell(column: str, name: str) -> str:
    """Return the text of a cell: what was found equal, or the refusal."""
    try:
        result = COLUMNS[column](name)
    except ConfigError as error:
        return _text_of(error)
    gap, text = result if isinstance(result, tuple) else (result, "equal")
    return text if gap <= BOUNDS.get(name, 1e-5) else f"WRONG by {gap:.1e}"


def _text_of(error: ConfigError) -> str:
    """Return the text of a refusal without the model's path and class, and without figures that rounding moves."""
    text = re.sub(r"^model\.path( = '[^']*')?: ", "", str(error))
    text = re.sub(r"\b(?!GPT-)\w+(ForCausalLM|LMHeadModel|ForConditionalGeneration|Decoder)\b", "the model", text)
    return re.sub(r" by [\d.e-]+ nats.*? at most", "", text)


def measure(name: str) -> dict[str, str]:
    return {column: cell(column, name) for column in COLUMNS}


INTRO = """# Model families

What groupwise does with each family of causal language models in transformers {version}, measured with tiny models of
random weights in fp32 on a CPU. `python -m tests.family_table --write` makes this page, and a test holds it.

- **equal**: logprobs of sampling and of training are those of the model's own forward pass over each sequence alone, to
  1e-5 nats (¹ 1e-4, because its rounding is larger). For checkpointing, gradients are those without it. For LoRA,
  merged weights compute what the adapters did. For export, the loaded folder computes what the model did.
- **alone**: equal, and each sequence goes through the model alone, because padding would change the result.
- **no**: not packed, because something would leak from one sequence to the next, or attention cannot be exchanged. On a
  GPU, sequences are packed in bf16 only.
- For experts: each token of a mixture of experts goes to the same ones in sampling, by either engine, as in training.
  **–**: the model has no experts, or does not show which are chosen (Doge, JetMoe, Llama 4).
- A letter: refused before anything is sampled, with the text below the table.

Not listed, because their text model is, or because no tiny model of them can be made here:
{left_out}.

"""


def page(rows: dict[str, dict[str, str]]) -> str:
    letters: dict[str, str] = {}
    lines = [f"| `model_type` | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, row in rows.items():
        shown = [text if text in WORDS else letters.setdefault(text, _letter(len(letters))) for text in row.values()]
        lines.append(f"| {name}{'¹' * (name in BOUNDS)} | {' | '.join(shown)} |")
    legend = [f"- **{letter}**: {text}" for text, letter in letters.items()]
    left_out = textwrap.fill(", ".join(sorted(LEFT_OUT)), 119)
    return INTRO.format(version=transformers.__version__, left_out=left_out) + "\n".join([*lines, "", *legend]) + "\n"


WORDS = ("equal", "alone", "no", "–")


def _letter(number: int) -> str:
    return chr(ord("a") + number) if number < 26 else _letter(number // 26 - 1) + _letter(number % 26)


def read_page(text: str) -> dict[str, dict[str, str]]:
    """Return the table of a page, with the texts of its letters."""
    texts = dict(re.findall(r"^- \*\*([a-z]+)\*\*: (.*)$", text, re.MULTILINE)) | {word: word for word in WORDS}
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    return {name.rstrip("¹"): dict(zip(COLUMNS, map(texts.__getitem__, cells), strict=True)) for name, *cells in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("names", nargs="*", help="families; all by default")
    arguments = parser.parse_args()
    rows = read_page(PAGE.read_text()) if arguments.names else {}
    for name in arguments.names or NAMES:
        rows[name] = measure(name)
        print(name, rows[name], flush=True)
    if arguments.write:
        PAGE.write_text(page({name: rows[name] for name in NAMES}))


if __name__ == "__main__":
    main()
