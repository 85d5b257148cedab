"""Pipeline stages: contiguous slices of a transformers model, with the unsplit model's parameter names."""

import hashlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from dlx.training.models import adapters, weights
from dlx.training.models.loss import chunk_rows, cross_entropy
from dlx.training.models.parallel import dimension
from dlx.training.models.placement import ONE_THREAD, Checkpoint, Placement
from dlx.training.models.shapes import factor_shapes, stage_shapes
from dlx.training.models.surroundings import Documents, Surroundings
from dlx.training.recipe.family import Config, Layout
from dlx.training.recipe.huggingface import transformers_config
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import Recipe, embedding_shape, packing, parse_model

_DEAR = [  # what costs most to compute again: products of matrices, and attention
    *(getattr(torch.ops.aten, name).default for name in ("mm", "bmm", "addmm", "baddbmm", "_grouped_mm")),
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
]
_SELECTIVE = partial(create_selective_checkpoint_contexts, _DEAR)


class StageModel(nn.Module):
    """Stage `stage` of a run: embeddings if it is the first, its layers, final norm and head if it is the last.

    Parameters have the unsplit model's names and no values yet: load or initialise them before use. They stay float32,
    and so does what goes in and out; inside, with precision bfloat16, matrix products are taken in bfloat16.
    `placement` (settled) has the device, and what a layer keeps for the backward pass: all. With checkpoint `layers`
    its input alone, which takes about a third more time; with `selective` the results of products of matrices and of
    attention too. The rest is computed once more, in float32 to the same bits. With `compile` the layers are compiled
    once for all at their first use; where that fails they run as they are. On "meta" nothing takes memory.
    `shard` may divide the parameters among ranks, before any of them takes memory.

    With an adapter the weights of its base, which `load_base` reads, and whatever factors are not trained have no
    gradient.
    """

    tied_head: Tensor | None  # on the last stage, where it is the first one's embedding: lent for a step

    def __init__(
        self,
        recipe: Recipe,
        stage: int,
        placement: Placement = ONE_THREAD,
        shard: Callable[["StageModel"], None] = lambda model: None,
    ) -> None:
        super().__init__()
        config = parse_model(recipe.model)
        layout, (low, high) = config.layout, recipe.stages[stage]
        self.stage, self.stages = stage, len(recipe.stages)
        self.device, self.checkpoint = placement.device, placement.checkpoint
        data = recipe.data
        self.micro_batches = data.micro_batches
        samples = data.batch_size // data.micro_batches
        self.activation_shape = (samples, data.sequence_length, config.width)
        self.packing, self.has_rows = packing(recipe), data.chat
        self._bfloat16 = recipe.precision == "bfloat16"
        self.layout, self._low, self.vocabulary = layout, low, config.vocab_size
        self._embedding_factor = config.embedding_factor
        self._logits_divisor, self._logits_cap = config.logits_divisor, config.logits_cap
        self.computes_on = self.device  # "meta" stands for another one
        whole = _whole_on_meta(config)
        rotary = _part(whole, layout.rotary)
        lent_head = embedding_shape(recipe)
        own_head = self.is_last and not lent_head and not (config.tie_word_embeddings and self.is_first)
        _keep(whole, layout, low, high, first=self.is_first, last=self.is_last, head=own_head)
        for name, part in whole.named_children():
            self.add_module(name, part)
        self.layers = tuple(_part(self, layout.layers).values())  # a tuple: not registered a second time
        if recipe.adapter is not None:
            _add_factors(self, recipe)
        shard(self)
        self.to_empty(device=self.device)
        # Buffers outside the weights, which to_empty leaves as garbage, are computed anew.
        for part in self.modules():
            scale: Any = getattr(part, "embed_scale", None)
            if isinstance(scale, Tensor):  # of Gemma's embedding
                scale.fill_(config.width**0.5)
            if self.device == "meta" and isinstance(getattr(part, "gate_up_proj", None), Tensor):  # of all experts
                part.forward = partial(_as_one_expert, part)
        self.tied_shape = lent_head
        lent = None
        if self.tied_shape and self.is_last:
            lent = torch.empty(self.tied_shape, device=self.device, requires_grad=True)
        self.register_buffer("tied_head", lent, persistent=False)
        self._surroundings = Surroundings(config, rotary, range(low, high), data.sequence_length, self.device)
        self._through = _compiled() if placement.compile else _through

    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that steps change, in the order of the pipeline."""
        return {name: one for name, one in self.named_parameters() if one.requires_grad}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy in the float32 values of some of the parameters, by their names."""
        parameters = dict(self.named_parameters())
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)

    def load_base(self, manifest: Manifest, blobs: Path) -> None:
        """The weights that an adapter leaves as they are, from their file in `blobs`; nothing without an adapter.
        Raises Damaged, WeightsError."""
        base = adapters.base_file(manifest, self.stage, blobs)
        if base is not None:
            self.load(weights.tensors(base))
            self.load(weights.tensors(adapters.untrained(manifest, self.stage)))

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def head(self) -> nn.Module | None:
        """The last stage's own; None where an embedding is its head, and on other stages."""
        return _part(self, self.layout.head)

    @property
    def head_weight(self) -> Tensor:
        """Of the last stage: [vocabulary, width]."""
        if self.tied_head is not None:
            return self.tied_head
        return self.embedding if self.head is None else self.head.weight  # type: ignore[return-value]

    def rows_cut(self, parallel: int) -> int | None:
        """Along which dimension so many ranks cut embedding and head, whose rows are tokens."""
        return dimension(self.layout, f"{self.layout.tokens}.weight", (self.vocabulary,), parallel)

    @property
    def embedding(self) -> Tensor:
        """Of tokens, on the first stage."""
        return _part(self, self.layout.tokens).weight

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    def forward(
        self,
        x: Tensor,
        labels: Tensor | None = None,
        begins: Tensor | None = None,
        count: Tensor | int | None = None,
    ) -> Tensor:
        """Token ids int64 [n, length] on the first stage, else hidden states float32 [n, length, hidden], to hidden
        states. The last stage gives the cross-entropy in nats, a scalar, against labels int64 [n, length]: summed, but
        of those that are ignored, and divided by `count` (None: the labels' number). Without labels it gives logits
        float32 [n, length, vocabulary]. Attention is causal; the length is at most the run's sequence length. `begins`
        bool [n, length], of rows: where documents begin. Each attends to itself alone."""
        documents = None if begins is None else Documents(begins)
        options = self._surroundings.of(x.size(1), documents)  # neither cache nor dropout exists here
        recomputed = self.checkpoint if torch.is_grad_enabled() else "none"
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._bfloat16):
            hidden = self._embed(x, documents) if self.is_first else x
            for index, layer in enumerate(self.layers, self._low):
                hidden = self._through(layer, recomputed, hidden, options(index))
            if self.is_last:
                hidden = self._normed(hidden)
                if labels is None:
                    hidden = self._head(hidden)
                else:
                    hidden = self.loss(hidden, labels, count)
        return hidden.float()

    def loss(self, hidden: Tensor, labels: Tensor, count: Tensor | int | None) -> Tensor:
        """The cross-entropy, from what the head takes."""
        rows, weight = chunk_rows(self.computes_on, len(self.head_weight)), self.head_weight
        learns = (weight,) if weight.requires_grad else ()
        return cross_entropy(self._head, learns, rows, hidden.flatten(0, 1), labels.flatten(), count)

    def _embed(self, ids: Tensor, documents: Documents | None) -> Tensor:
        layout = self.layout
        hidden = _part(self, layout.tokens)(ids)
        if self._embedding_factor != 1:
            hidden = hidden * self._embedding_factor
        project_in = _part(self, layout.project_in)
        if project_in is not None:
            hidden = project_in(hidden)
        if layout.positions:
            positions = torch.arange(ids.size(1), device=ids.device)[None]
            if documents is not None:
                positions = documents.positions
            elif layout.positions_per_sample:
                positions = positions.expand(ids.shape)
            embedding = _part(self, layout.positions)
            # OPT's own class adds an offset to the positions and wants a mask that it then does not use.
            plain = type(embedding) is nn.Embedding
            hidden = hidden + (embedding(positions) if plain else embedding(None, position_ids=positions))
        return hidden

    def _normed(self, hidden: Tensor) -> Tensor:
        """What the head takes."""
        for path in self.layout.final:
            part = _part(self, path)
            if part is not None:
                hidden = part(hidden)
        return hidden

    def _head(self, hidden: Tensor) -> Tensor:
        return self.logits(hidden, self.head_weight)

    def logits(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Of the tokens that `weight` has, the head's [tokens, width] or a part of it."""
        found = functional.linear(hidden, weight)
        if self._logits_divisor != 1:
            found = found / self._logits_divisor
        if self._logits_cap:
            found = torch.tanh(found / self._logits_cap) * self._logits_cap
        return found


def _compiled() -> Callable[[nn.Module, Checkpoint, Tensor, dict[str, Any]], Tensor]:
    import torch._dynamo  # which takes its time

    torch._dynamo.config.suppress_errors = True  # what cannot be compiled is run as it is, with a warning
    return torch.compile(_through, dynamic=False)


def _through(layer: nn.Module, recomputed: Checkpoint, hidden: Tensor, options: dict[str, Any]) -> Tensor:
    if recomputed == "none":
        return layer(hidden, **options)
    selective: dict[str, Any] = {"context_fn": _SELECTIVE} if recomputed == "selective" else {}
    return checkpoint(layer, hidden, use_reentrant=False, preserve_rng_state=False, **selective, **options)


def preload() -> None:
    """Import the model classes, which takes seconds; whatever uses them imports them anyway, at its first call."""
    from transformers.models.llama import modeling_llama  # noqa: F401  with all that the other families use


def initialise(recipe: Recipe, stage: int) -> dict[str, Tensor]:
    """Fresh float32 tensors that the stage trains. Weights are drawn from a seed of each one's own name: norms that
    multiply by 1, biases 0, else normal. Factors of an adapter begin as they do in PEFT.

    Only the run's creator calls this: random generators differ between machines, so the published genesis is the truth.
    """
    if recipe.adapter is not None:
        return dict(weights.tensors(adapters.initial(recipe, stage)))
    config, seed = parse_model(recipe.model), recipe.data.seed
    return {name: _initial(name, shape, config, seed) for name, shape in stage_shapes(recipe, stage).items()}


def _whole_on_meta(config: Config) -> Any:
    """The unsplit model without memory for its parameters, which come in the order of the pipeline."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        # The experts' grouped products take no part in autocast; one by one they do.
        whole = AutoModelForCausalLM.from_config(transformers_config(config), experts_implementation="eager")
    for path in config.layout.final:  # OPT registers these before its layers
        _put(whole, path, _part(whole, path))
    return whole


def _add_factors(model: StageModel, recipe: Recipe) -> None:
    """To the matrices that the recipe's adapter is of; all else gets no gradient."""
    adapter, shapes = recipe.adapter, factor_shapes(recipe, model.stage)
    assert adapter is not None
    for name, (outputs, inputs) in shapes.items():
        path, kind, _ = name.rsplit(".", 2)
        part = _part(model, path)
        setattr(part, kind, nn.Linear(inputs, outputs, bias=False, device="meta"))
        if kind == "lora_B":
            part.register_forward_hook(partial(_with_product, adapter.alpha / adapter.rank))
    learns = stage_shapes(recipe, model.stage)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in learns)


def _with_product(scale: float, part: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    """What PEFT's layer gives."""
    return output + part.lora_B(part.lora_A(inputs[0])) * scale


def _keep(whole: Any, layout: Layout, low: int, high: int, *, first: bool, last: bool, head: bool) -> None:
    """Take out of the unsplit model what is not the stage's, and the rotary part, which has no weights."""
    dropped = [layout.rotary]
    if not first:
        dropped += [layout.tokens, layout.positions, layout.project_in]
    if not last:
        dropped += [*layout.final]
    if not head:
        dropped.append(layout.head)
    for path in filter(None, dropped):
        _put(whole, path, None)
    layers = _part(whole, layout.layers)
    _put(whole, layout.layers, nn.ModuleDict({str(index): layers[index] for index in range(low, high)}))
    if last:
        for path in layout.final:
            _put(whole, path, _part(whole, path))


def _as_one_expert(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """As much work for [tokens, width] as all `experts` have, done by one: without values no token has others."""
    count = chosen.size(-1)
    inner, outer = experts.gate_up_proj[0], experts.down_proj[0]
    gate, up = functional.linear(hidden.repeat_interleave(count, 0), inner).chunk(2, dim=-1)
    products = functional.linear(experts.act_fn(gate) * up, outer)
    return (products * weights.reshape(-1, 1)).unflatten(0, (-1, count)).sum(1)


def _part(root: nn.Module, path: str) -> Any:
    """The module at a path such as "model.layers"; None where there is none."""
    part: Any = root
    for name in path.split("."):
        part = getattr(part, name, None)
    return part if path else None


def _put(root: nn.Module, path: str, part: nn.Module | None) -> None:
    """Set the module at a path, last among its neighbours."""
    parent, _, name = path.rpartition(".")
    owner = _part(root, parent) if parent else root
    delattr(owner, name)
    setattr(owner, name, part)


def _initial(name: str, shape: tuple[int, ...], config: Config, seed: int) -> Tensor:
    if name.endswith("bias"):
        return torch.zeros(shape)
    if len(shape) == 1:  # a norm's
        return torch.zeros(shape) if config.layout.norms_from_zero else torch.ones(shape)
    deviation = config.deviation
    if name.endswith(config.layout.residual_outputs):
        deviation /= math.sqrt(2 * config.layers)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.empty(shape).normal_(0, deviation, generator=generator)
