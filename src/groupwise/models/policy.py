"""The policy: a model that is sampled from and trained, with its optimizer, its reference and its moving average.

There is one set of weights. The engine decodes with the very modules that the update changes, so there is nothing to
synchronize; `version` counts the updates that the weights have seen.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from groupwise.algo.logprobs import token_entropy, token_logprobs
from groupwise.config import OptimizerConfig, Recipe
from groupwise.data.batch import Example, Microbatch, make_microbatches
from groupwise.distributed.world import Alone, World
from groupwise.kernels.seam import attending
from groupwise.models.fused import fuse, packed_hidden
from groupwise.models.head import Head, own_logits, padded_hidden
from groupwise.models.load import LoadedModel, load_model, set_training, stop_token_ids
from groupwise.models.lora import add_lora, trainable_parameters, without_lora
from groupwise.models.optimizer import MasterAdamW

AGREEMENT = 1e-4
"""Largest difference, in nats, at which the engine's logprobs pass for the trainer's. (A clip range is about 0.2.)"""


def load_policy(recipe: Recipe, world: World | None = None) -> Policy:
    """The policy of a recipe at its initial weights."""
    loaded = load_model(recipe.model, recipe.seed)
    if recipe.model.lora is not None:
        add_lora(loaded.model, recipe.model.lora, recipe.seed)
    return Policy(loaded, ema_decay=recipe.model.ema_decay, has_lora=recipe.model.lora is not None, world=world)


class Policy:
    def __init__(self, loaded: LoadedModel, *, ema_decay: float, has_lora: bool, world: World | None = None) -> None:
        self.world: World = world or Alone()
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.device = loaded.device
        self.context_tokens = loaded.context_tokens
        self.stop_token_ids = stop_token_ids(loaded.tokenizer, loaded.model)
        self._is_packed = fuse(loaded.model)
        self._head = Head(loaded.model)
        self._is_head_known: bool | None = None
        self.version = 0
        self._has_lora = has_lora
        self._ema_decay = ema_decay
        self._reference: Any = None
        self._optimizer = MasterAdamW(trainable_parameters(self.model), OptimizerConfig())
        self._ema = {name: weight.clone() for name, weight in self.weights.items()} if ema_decay else {}

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trained weights in fp32, by name: the adapters alone under LoRA."""
        return self._optimizer.weights

    def begin_stage(self, optimizer: OptimizerConfig, *, keep_reference: bool) -> None:
        """A fresh optimizer, and the policy as it is now for a reference (under LoRA: the model without adapters)."""
        weights = {name: weight.clone() for name, weight in self.weights.items()}
        self._optimizer = MasterAdamW(trainable_parameters(self.model), optimizer)
        self._optimizer.load_weights(weights)
        self._reference = (
            copy.deepcopy(self.model).requires_grad_(False) if keep_reference and not self._has_lora else None
        )

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        self._optimizer.load_weights(weights)

    def microbatches(
        self, examples: Sequence[Example], token_weights: Sequence[float], max_tokens: int
    ) -> list[Microbatch]:
        return make_microbatches(examples, token_weights, max_tokens, self.device, is_packed=self._is_packed)

    def logprobs(self, microbatch: Microbatch, temperature: float) -> tuple[Tensor, Tensor]:
        """(logprobs with gradient, entropies without) of the completion tokens."""
        return self._logprobs(self.model, microbatch, temperature)

    def _logprobs(self, model: Any, microbatch: Microbatch, temperature: float) -> tuple[Tensor, Tensor]:
        ids = microbatch.completion_ids
        if self._knows_head():
            hidden = (packed_hidden if self._is_packed else padded_hidden)(model, microbatch)
            return self._head.logprobs(model, hidden, ids, temperature)
        logits = own_logits(model, microbatch)
        return token_logprobs(logits, ids, temperature), token_entropy(logits.detach(), temperature)

    def _knows_head(self) -> bool:
        """Found by trying, once, and not in training mode: dropout would make any two passes differ."""
        if self._is_head_known is None:
            self._is_head_known = self._is_packed or self._head.is_right(self.model)
        return self._is_head_known

    def old_logprobs(self, examples: Sequence[Example], temperature: float, max_tokens: int) -> list[Tensor]:
        """Of each example's completion tokens under the weights as they are.

        The engine drew from these very weights. If its logprobs are ours on the first microbatch, they are taken for
        all, and a forward pass over the batch is saved.
        """
        drawn = [example.rollout_logprobs for example in examples if example.rollout_logprobs is not None]
        if len(drawn) == len(examples) and self._engine_agrees(examples, drawn, temperature, max_tokens):
            return drawn
        return self._score(self.model, examples, temperature, max_tokens)

    def _engine_agrees(
        self, examples: Sequence[Example], drawn: Sequence[Tensor], temperature: float, max_tokens: int
    ) -> bool:
        """On the first microbatch; False where that is the whole batch, and nothing is saved."""
        with_tokens = [index for index, example in enumerate(examples) if example.completion_ids]
        batches = self.microbatches([examples[index] for index in with_tokens], [1.0] * len(with_tokens), max_tokens)
        if len(batches) < 2:
            return False
        tried = [with_tokens[row] for row in batches[0].example_indices]
        ours = self._score(self.model, [examples[index] for index in tried], temperature, max_tokens)
        gap = torch.cat(ours) - torch.cat([drawn[index] for index in tried])
        return bool(gap.abs().le(AGREEMENT).all())

    def ref_logprobs(self, examples: Sequence[Example], temperature: float, max_tokens: int) -> list[Tensor]:
        """Likewise under the reference."""
        if self._reference is not None:
            return self._score(self._reference, examples, temperature, max_tokens)
        with without_lora(self.model):
            return self._score(self.model, examples, temperature, max_tokens)

    @torch.no_grad()
    def _score(self, model: Any, examples: Sequence[Example], temperature: float, max_tokens: int) -> list[Tensor]:
        result: list[Tensor] = [torch.zeros(0)] * len(examples)
        # A completion without tokens has no logprobs, and a rectangle of such completions no columns.
        with_tokens = [index for index, example in enumerate(examples) if example.completion_ids]
        places = self.world.share(with_tokens)
        chosen = [examples[index] for index in places]
        mine: list[tuple[int, Tensor]] = []
        with attending(model) if self._is_packed else nullcontext():
            for microbatch in self.microbatches(chosen, [1.0] * len(chosen), max_tokens):
                logprobs, _ = self._logprobs(model, microbatch, temperature)
                lengths = microbatch.completion_mask.sum(dim=1).tolist()
                for row, piece in zip(microbatch.example_indices, logprobs.cpu().split(lengths), strict=True):
                    mine.append((places[row], piece))
        for part in self.world.gather(mine):
            for index, piece in part:
                result[index] = piece
        return result

    @contextmanager
    def training(self) -> Iterator[None]:
        """Dropout of adapters and gradient checkpointing are on in here, and off for whoever samples."""
        self._knows_head()
        set_training(self.model, True)
        try:
            with attending(self.model) if self._is_packed else nullcontext():
                yield
        finally:
            set_training(self.model, False)

    def missing_optimizer_bytes(self) -> int:
        """What the optimizer will take at its first step."""
        return self._optimizer.missing_bytes

    def clear_gradients(self) -> None:
        self._optimizer.clear_gradients()

    def backward(self, loss: Tensor) -> None:
        loss.backward()
        self._optimizer.collect_gradients()

    def step(self, learning_rate: float) -> tuple[float, bool]:
        """Apply the gradients; (their norm, whether they were finite and therefore applied)."""
        if self.world.size > 1:
            self.world.add(self._optimizer.gradients())
        norm, is_finite = self._optimizer.step(learning_rate)
        if is_finite:
            self.version += 1
            self._average()
        return norm, is_finite

    @torch.no_grad()
    def _average(self) -> None:
        for name, average in self._ema.items():
            average.lerp_(self.weights[name], 1 - self._ema_decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, the weights are their moving average."""
        weights = {name: weight.clone() for name, weight in self.weights.items()}
        self.load_weights(self._ema)
        try:
            yield
        finally:
            self.load_weights(weights)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Everything a checkpoint needs to restore this policy bit for bit, as named groups of tensors."""
        reference = {} if self._reference is None else dict(self._reference.named_parameters())
        groups = {
            "weights": self.weights,
            "optimizer": self._optimizer.state(),
            "reference": {name: value.detach() for name, value in reference.items()},
            "ema": self._ema,
        }
        return {name: tensors for name, tensors in groups.items() if tensors}

    @torch.no_grad()
    def load_state(self, groups: Mapping[str, Mapping[str, Tensor]], version: int) -> None:
        """After `begin_stage` of the stage that the checkpoint is from."""
        self.load_weights(groups["weights"])
        self._optimizer.load_state(groups.get("optimizer", {}))
        if self._reference is not None:
            for name, parameter in self._reference.named_parameters():
                parameter.copy_(groups["reference"][name])
        for name, average in self._ema.items():
            average.copy_(groups["ema"][name])
        self.version = version
