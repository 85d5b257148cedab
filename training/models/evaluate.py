"""How good a model is: its loss on held-out text, and text that it writes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from dlx.training.data.shards import BYTE_VALUES, DataError, Dataset
from dlx.training.models import adapters, weights
from dlx.training.models.batches import Batch, counted, documents, parted
from dlx.training.models.loss import summed
from dlx.training.models.pretrained import indexed
from dlx.training.models.stages import StageModel, stage_shapes
from dlx.training.models.transfers import to_device
from dlx.training.recipe.evaluation import spread
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.pointers import pointer
from dlx.training.recipe.strict import ManifestError


class EvaluateError(ValueError):
    """The folder holds no model that can be evaluated."""


def heldout_loss(
    folder: Path, dataset: Dataset, sequence_length: int, max_samples: int = 64, device: str = "cpu"
) -> float:
    """Mean cross-entropy in nats per token (for byte-level data: per byte; of conversations: per token that counts) of
    a Hugging Face folder's model.

    The same up to `max_samples` samples, spread over the held-out data, are used every time. Raises EvaluateError, and
    DataError when the held-out data is shorter than one sample.
    """
    model = _load(folder).to(device)

    def loss(batch: Batch) -> Tensor:
        found = torch.zeros((), device=batch.ids.device)
        for ids, labels in documents(batch):
            logits = model(ids, use_cache=False).logits.float()
            found = found + summed(logits.flatten(0, 1), labels.flatten())
        return found

    return _mean_loss(loss, dataset, sequence_length, max_samples, device)


def heldout_loss_of_stages(
    manifest: Manifest, stage_files: Sequence[Path], dataset: Dataset, max_samples: int = 64, blobs: Path | None = None
) -> float:
    """`heldout_loss` of a version as its canonical stage files. Raises WeightsError and DataError."""
    stages = [weights.read(path, stage_shapes(manifest, stage)) for stage, path in enumerate(stage_files)]
    return heldout_loss_of_weights(manifest, stages, dataset, max_samples, blobs)


def heldout_loss_of_weights(
    manifest: Manifest,
    stages: Sequence[Mapping[str, Tensor]],
    dataset: Dataset,
    max_samples: int = 64,
    blobs: Path | None = None,
) -> float:
    """`heldout_loss` of each stage's float32 tensors. `blobs`: the folder that has an adapter's base. Raises
    DataError."""
    models = []
    for stage, tensors in enumerate(stages):
        model = StageModel(manifest, stage)
        if blobs is not None:
            model.load_base(manifest, blobs)
        model.load(tensors)
        models.append(model)
    if models[-1].tied_head is not None:
        models[-1].tied_head.data.copy_(models[0].embedding)

    def loss(batch: Batch) -> Tensor:
        hidden, labels, begins = batch
        for model in models[:-1]:
            hidden = model(hidden, begins=begins)
        return models[-1](hidden, labels, begins, 1)

    return _mean_loss(loss, dataset, manifest.data.sequence_length, max_samples, "cpu")


def heldout_samples(dataset: Dataset, sequence_length: int, max_samples: int = 64) -> list[int]:
    """Those that a held-out loss is the mean of. Raises DataError where there is none."""
    samples = dataset.len_samples("heldout", sequence_length)
    if not samples:
        raise DataError("the held-out data is shorter than one sample")
    return spread(samples, max_samples)


def generate(folder: Path, prompt: bytes, tokens: int = 200, seed: int = 0, temperature: float = 0.8) -> bytes:
    """Up to `tokens` bytes that continue `prompt`, ending early where the model ends the document.

    Temperature 0 takes the likeliest byte every time. For byte-level models. Raises EvaluateError.
    """
    model = _load(folder)
    if model.config.vocab_size != BYTE_VALUES:
        raise EvaluateError(f"{folder}: not a byte-level model (vocabulary of {model.config.vocab_size})")
    generator = torch.Generator().manual_seed(seed)
    window, text = model.config.max_position_embeddings, list(prompt) or [0]
    start = len(text)
    with torch.inference_mode():
        while len(text) < start + tokens:
            logits = model(torch.tensor([text[-window:]]), use_cache=False, logits_to_keep=1).logits[0, -1]
            token = _draw(logits, temperature, generator)
            if token == 0:
                break
            text.append(token)
    return bytes(text[start:])


def refuse_unloadable(folder: Path) -> None:
    """Raises EvaluateError for a folder that has an adapter alone, a pointer to a file in the place of that, or weights
    beside those that its index names."""
    if (folder / adapters.CONFIG).exists():
        raise EvaluateError(f"{folder}: holds an adapter without its base; name that by --base, or `pull --merged`")
    for path in sorted(path for path in folder.glob("*") if path.is_file()):
        if found := pointer(path):
            raise EvaluateError(f"{path}: {found}")
    try:
        indexed(folder)
    except ManifestError as error:
        raise EvaluateError(str(error)) from None


def _load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    refuse_unloadable(folder)
    if not (folder / "config.json").is_file():
        raise EvaluateError(f"{folder}: holds no config.json; name a folder made by export")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder.resolve(), local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise EvaluateError(f"{folder}: cannot be loaded ({str(error).splitlines()[0]})") from error
    return model.eval()


def _draw(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature <= 0:
        return int(logits.argmax())
    return int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator))


def _mean_loss(
    loss: Callable[[Batch], Tensor], dataset: Dataset, sequence_length: int, max_samples: int, device: str
) -> float:
    """`loss` is the sum over some samples."""
    chosen, total, count = heldout_samples(dataset, sequence_length, max_samples), 0.0, 0
    with torch.inference_mode():
        for first in range(0, len(chosen), 8):
            words = to_device(dataset.batch("heldout", chosen[first : first + 8], sequence_length), device)
            total += loss(parted(words, dataset.manifest.rows is not None)).item()
            count += int(counted(words))
    return total / count
