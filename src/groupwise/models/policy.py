"""The policy: a model that is sampled from and trained, with its optimizer, its reference and its moving average.

There is one set of weights. The engine decodes with the same modules that the update changes, so nothing has to be
synchronized. `version` counts the updates.

With several ranks, each holds a slice of everything: weights, masters, moments, reference and average. Engines then
sample from a replica that is filled from the slices (`replica`). Checkpoints always contain whole tensors.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from groupwise.algo.logprobs import token_measures
from groupwise.config import OptimizerConfig, Recipe, RlStage
from groupwise.data.batch import Example, Microbatch, Rectangle, make_microbatches
from groupwise.data.pack import Pack
from groupwise.distributed.shards import Sharded, Unsharded, local
from groupwise.distributed.world import World, together
from groupwise.kernels.seam import attending
from groupwise.models.families import UNKNOWN, family_of
from groupwise.models.fused import PackedDecoder, fuse, packed_hidden
from groupwise.models.head import Head, own_logits, padded_hidden
from groupwise.models.load import LoadedModel, load_model, set_training, stop_token_ids
from groupwise.models.lora import add_lora, check_adapters, trainable_parameters
from groupwise.models.optimizer import GradientSums, MasterAdamW, sums_stay
from groupwise.models.placement import beside, exchange, to_host
from groupwise.models.replica import Replica, skeleton_of
from groupwise.models.routers import Routers, check_routers
from groupwise.models.straight import straight_layers
from groupwise.models.trial import Form, find_form, has_right_packs

AGREEMENT = 1e-4
"""Largest difference, in nats, at which the engine's logprobs replace the trainer's. (A clip range is about 0.2.)"""


class Measured(NamedTuple):
    """What a pass says of the completion tokens, [N] each, with gradients."""

    logprobs: Tensor
    entropies: Tensor
    imbalance: Tensor | None = None
    """How unevenly routers load the experts (`algo.losses.router_imbalance`), in stages that balance them."""


def load_policy(recipe: Recipe, world: World | None = None) -> Policy:
    """Return the policy of a recipe at its initial weights."""
    loaded = load_model(recipe.model, recipe.seed)
    if recipe.model.lora is not None:
        add_lora(loaded.model, recipe.model.lora, recipe.seed)
        if family_of(loaded.model) is UNKNOWN:
            check_adapters(loaded.model)
    for index, stage in enumerate(recipe.stages):
        if isinstance(stage, RlStage) and stage.balances_routers:
            check_routers(loaded.model, f"stages.{index}.loss.router_balance = {stage.loss.router_balance}")
    return Policy(loaded, ema_decay=recipe.model.ema_decay, world=world)


class Policy:
    def __init__(self, loaded: LoadedModel, *, ema_decay: float, world: World | None = None) -> None:
        self.world = world or World()
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer
        self.device, self.dtype = loaded.device, loaded.dtype
        self.context_tokens = loaded.context_tokens
        self.stop_token_ids = stop_token_ids(loaded.tokenizer, loaded.model)
        self._sums = GradientSums()
        self._is_packed = fuse(loaded.model, self._sums)
        is_cuda, is_alone = self.device.type == "cuda", self.world.is_alone
        is_straight = self._is_packed and is_cuda and is_alone and bool(straight_layers(loaded.model))
        self._straight = PackedDecoder(loaded.model) if is_straight else None
        # Where passes are recorded, a larger pack would need memory besides that of the recordings.
        is_recorded = sums_stay(trainable_parameters(loaded.model).values())
        self._most_tokens = self._straight.most_tokens if self._straight is not None and is_recorded else 0
        self._head = Head(loaded.model, self._sums)
        if self._is_packed and family_of(loaded.model) is UNKNOWN:
            self._is_packed = has_right_packs(loaded.model, self._head)
        self._form: Form | None = None
        self.version = 0
        self._ema_decay = ema_decay
        self._shards: Sharded | Unsharded = Unsharded()
        if not self.world.is_alone:
            self._find_form()  # while the model is whole
            self._skeleton = skeleton_of(self.model)
            self._shards = Sharded(self.model, decoder_layers(self.model), self.world, self.device)
        self._reference: dict[str, Tensor] = {}
        self._routers: Routers | None = None
        self._made: MasterAdamW | None = None
        trained = trainable_parameters(self.model) if ema_decay else {}
        self._ema = {name: local(weight.detach()).float().clone() for name, weight in trained.items()}

    @property
    def optimizer(self) -> MasterAdamW:
        """The optimizer, made on first use: masters take memory, and a stage may offload them.

        `optimizer.begin_gradients` starts an update; `step` or `optimizer.clear_gradients` ends it.
        """
        if self._made is None:
            self._made = self._make_optimizer(OptimizerConfig())
        return self._made

    def _make_optimizer(self, config: OptimizerConfig, weights: Mapping[str, Tensor] | None = None) -> MasterAdamW:
        return MasterAdamW(trainable_parameters(self.model), config, self.world, weights, self._sums)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trained weights in fp32, by name: under LoRA the adapters, with several ranks this rank's slices."""
        return self.optimizer.weights

    def replica(self) -> Replica:
        """Return a plain model for an engine to sample from, if this one is sharded."""
        assert isinstance(self._shards, Sharded)
        return Replica(self._skeleton, self._shards, self.device)

    def begin_stage(
        self,
        optimizer: OptimizerConfig,
        *,
        keep_reference: bool,
        offload_reference: bool = False,
        balance_routers: bool = False,
    ) -> None:
        """Start with a fresh optimizer and, if wanted, the current policy as the reference."""
        self._made = self._make_optimizer(optimizer, None if self._made is None else self._made.weights)
        weights = self.weights
        self._ema = {name: beside(average, weights[name]) for name, average in self._ema.items()}
        self._reference = {}
        if keep_reference:
            keep = to_host if offload_reference else torch.clone
            self._reference = {name: keep(weight) for name, weight in self._slices().items()}
        self._routers = Routers(self.model) if balance_routers else None

    def _slices(self) -> dict[str, Tensor]:
        """Return this rank's slice of each trained weight."""
        return {name: local(parameter.detach()) for name, parameter in trainable_parameters(self.model).items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load whole tensors, as `state` returns them."""
        self.optimizer.load_weights({name: self._shards.part(name, weight) for name, weight in weights.items()})

    @property
    def device_name(self) -> str:
        """The product name of the GPU, or the processor's architecture."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else platform.machine()

    @property
    def rounds_like_native(self) -> bool:
        """Whether the native engine rounds like the passes of this policy: in bf16 on a CPU, where a row of a product
        does not depend on others."""
        return self._is_packed and self.dtype == torch.bfloat16 and self.device.type == "cpu"

    def microbatches(
        self, examples: Sequence[Example], token_weights: Sequence[float], max_tokens: int
    ) -> Sequence[Microbatch]:
        most = min(max_tokens, self._most_tokens or max_tokens)
        form = {"is_packed": self._is_packed, "is_padded": self._find_form().is_padded}
        return make_microbatches(examples, token_weights, most, self.device, **form)

    def logprobs(self, microbatch: Microbatch, temperature: float) -> Measured:
        if self._routers is None or not torch.is_grad_enabled():
            return Measured(*self._run(microbatch, temperature))
        with self._routers.noting() as noted:
            measured = self._run(microbatch, temperature)
        return Measured(*measured, self._routers.imbalance(noted, microbatch))

    def _run(self, microbatch: Microbatch, temperature: float) -> tuple[Tensor, Tensor]:
        """Return (logprobs, entropies) of the completion tokens."""
        inputs, ids = microbatch.inputs, microbatch.completion_ids
        if isinstance(inputs, Pack) or self._find_form().has_known_head:
            return self._shards.run(self._logprobs, inputs, ids, temperature)
        return token_measures(self._shards.run_own(own_logits, self.model, inputs), ids, temperature)

    def _logprobs(self, inputs: Rectangle | Pack, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        if isinstance(inputs, Rectangle):
            hidden = padded_hidden(self.model, inputs)
        else:
            hidden = packed_hidden(self.model, inputs) if self._straight is None else self._straight(inputs)
        return self._head.logprobs(self.model, hidden, ids, temperature)

    @property
    def recorded_bytes(self) -> int:
        """Memory that recorded passes use but torch counts as free."""
        return 0 if self._straight is None else self._straight.recorder.num_bytes

    def take_peak_bytes(self) -> int:
        """Return the peak GPU memory since the last call, without the engine's own memory."""
        if self._straight is not None:
            return self._straight.recorder.take_peak_bytes()
        peak = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak

    def _find_form(self) -> Form:
        """Try the model once. Not in training mode, where dropout makes any two passes differ."""
        if self._form is None:
            self._form = Form(True, True) if self._is_packed else find_form(self.model, self._head)
        return self._form

    def old_logprobs(self, examples: Sequence[Example], temperature: float, max_tokens: int) -> list[Tensor]:
        """Return the logprobs of each example's completion tokens under the current weights.

        The engine sampled from these weights. If its logprobs agree with the trainer's on the first microbatch, they
        are used for all, which saves a forward pass over the batch.
        """
        drawn = [example.rollout_logprobs for example in examples if example.rollout_logprobs is not None]
        if len(drawn) == len(examples) and self._engine_agrees(examples, drawn, temperature, max_tokens):
            return drawn
        return [logprobs for logprobs, _ in self.measure(examples, temperature, max_tokens)]

    def _engine_agrees(
        self, examples: Sequence[Example], drawn: Sequence[Tensor], temperature: float, max_tokens: int
    ) -> bool:
        """Whether the logprobs agree on the first microbatch; False if that is the whole batch and nothing is saved."""
        with_tokens = [index for index, example in enumerate(examples) if example.completion_ids]
        batches = self.microbatches([examples[index] for index in with_tokens], [1.0] * len(with_tokens), max_tokens)
        if len(batches) < 2:
            return False
        tried = [with_tokens[row] for row in batches[0].example_indices]
        ours = self.measure([examples[index] for index in tried], temperature, max_tokens)
        gap = torch.cat([logprobs for logprobs, _ in ours]) - torch.cat([drawn[index] for index in tried])
        return bool(gap.abs().le(AGREEMENT).all())

    def ref_logprobs(self, examples: Sequence[Example], temperature: float, max_tokens: int) -> list[Tensor]:
        """Return the logprobs of each example's completion tokens under the reference."""
        # The reference and the policy swap places, so no second model is needed.
        exchange(self._slices(), self._reference)
        try:
            return [logprobs for logprobs, _ in self.measure(examples, temperature, max_tokens)]
        finally:
            exchange(self._slices(), self._reference)

    @torch.no_grad()
    def measure(self, examples: Sequence[Example], temperature: float, max_tokens: int) -> list[tuple[Tensor, Tensor]]:
        """Return (logprobs, entropies) of each example's completion tokens under the current weights."""
        result = [(torch.zeros(0), torch.zeros(0))] * len(examples)
        # A completion without tokens has no logprobs, and a rectangle of only such completions has no columns.
        places = [index for index, example in enumerate(examples) if example.completion_ids]
        chosen = [examples[index] for index in places]
        measured: list[tuple[Microbatch, Tensor]] = []
        with attending(self.model) if self._is_packed else nullcontext():
            for microbatch, counts in self.world.in_step(self.microbatches(chosen, [1.0] * len(chosen), max_tokens)):
                pair = torch.stack(self.logprobs(microbatch, temperature)[:2])
                if counts:
                    measured.append((microbatch, pair))
        # Read at the end: reading waits for the GPU, and the next microbatch is made while it is busy.
        mine = [
            (places[row], (piece[0], piece[1]))
            for microbatch, pair in measured
            for row, piece in zip(microbatch.example_indices, pair.cpu().split(microbatch.lengths, dim=1), strict=True)
        ]
        for part in self.world.gather(mine):
            for index, piece in part:
                result[index] = piece
        return result

    @contextmanager
    def training(self) -> Iterator[None]:
        """Switch on dropout of adapters and gradient checkpointing for the block. Sampling runs without them."""
        self._find_form()
        set_training(self.model, True)
        try:
            with attending(self.model) if self._is_packed else nullcontext():
                yield
        finally:
            set_training(self.model, False)

    @property
    def can_abandon(self) -> bool:
        """Whether another pass can run after one that ran out of memory."""
        return self._shards.can_forget

    def abandon(self) -> None:
        """Drop the gradients and the state of an interrupted pass."""
        self.optimizer.clear_gradients()
        self._shards.forget()
        if self._straight is not None:
            self._straight.forget()

    def backward(self, loss: Tensor) -> None:
        with nullcontext() if self.world.is_alone else together(is_bare=False):
            loss.backward()
        self.optimizer.collect_gradients()

    def step(self, learning_rate: float) -> tuple[float, bool]:
        """Apply the gradients. Return (their norm, whether they were finite and therefore applied)."""
        norm, is_finite = self.optimizer.step(learning_rate)
        if is_finite:
            self.version += 1
            weights = self.weights
            for name, average in self._ema.items():
                average.lerp_(weights[name], 1 - self._ema_decay)
        return norm, is_finite

    def check_weights(self) -> None:
        """Raise `UnusableWeights` if a trained weight is not finite or absurdly large. `step` checks as well."""
        self.optimizer.check_weights(torch.zeros(()))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the model the moving average of its weights for the block."""
        self._swap_average()
        try:
            yield
        finally:
            self._swap_average()

    def _swap_average(self) -> None:
        exchange(self.weights, self._ema)
        self.optimizer.publish()

    def state(self, *, is_stage_over: bool = False) -> dict[str, dict[str, Tensor]]:
        """Return what a checkpoint needs to restore this policy bit for bit, as named groups of whole tensors.

        The next stage starts with its own optimizer and reference, so they are left out when a stage is over. All ranks
        call this, and rank 0 gets the tensors.
        """
        groups = {"weights": self.weights, "ema": self._ema}
        if not is_stage_over:
            groups |= {"optimizer": self.optimizer.state(), "reference": self._reference}
        # The optimizer's tensors are named kind/weight.
        return {
            group: {name: self._shards.whole(name.rpartition("/")[2], tensor) for name, tensor in tensors.items()}
            for group, tensors in groups.items()
            if tensors
        }

    @torch.no_grad()
    def load_state(self, groups: Mapping[str, Mapping[str, Tensor]], version: int) -> None:
        """Load a checkpoint, after `begin_stage` of its stage. What it does not contain is left unchanged."""
        parts = {
            group: {name: self._shards.part(name.rpartition("/")[2], tensor) for name, tensor in tensors.items()}
            for group, tensors in groups.items()
        }
        self.optimizer.load_weights(parts["weights"])
        self.optimizer.load_state(parts.get("optimizer", {}))
        for kept, group in ((self._reference, "reference"), (self._ema, "ema")):
            for name, tensor in parts.get(group, {}).items():
                kept[name].copy_(tensor)
        self.version = version


def decoder_layers(model: Any) -> list[nn.Module]:
    """Return the modules that transformers does not split. Only one of them is unsharded at a time."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]
