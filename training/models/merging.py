"""The whole model of a pulled adapter's folder and its base's, for whoever has both and asks no node."""

import tempfile
from pathlib import Path

from msgspec.structs import replace

from dlx.training.data.vocabulary import Vocabulary
from dlx.training.models import weights
from dlx.training.models.export import export
from dlx.training.models.model_files import MERGED, Folder
from dlx.training.models.pretrained import Checkpoint
from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.usage import end_of_text, read_usage


def merge(manifest: Manifest, adapter: Path, base: Path, out: Path) -> None:
    """Write the new folder `out`, with the weights that `pull --merged` writes. `adapter` is what `pull` wrote of a run
    with this manifest, `base` the Hugging Face folder that the run started from, both of unknown origin.

    Tokenizer and chat template are the adapter's folder's; what ends a text, and how one is drawn, the base's, which
    nothing is compared with. Raises
    WeightsError, also for another base, ManifestError, DataError, ExportError, OSError.
    """
    checkpoint = Checkpoint(manifest, base)
    with tempfile.TemporaryDirectory(prefix=".merging-", dir=out.parent) as place:
        blobs = Path(place)
        for stage, named in enumerate(manifest.base):
            if weights.write_blob(checkpoint.weights(stage), blobs).hex() != named.sha256:
                raise weights.WeightsError(
                    f"{base} has other weights than the adapter's base: name the folder that it is of"
                )
        trained = [blobs / digest.hex() for digest in Folder(manifest, adapter).write_stages(blobs)]
        theirs, _ = read_usage(base)
        usage = replace(read_usage(adapter)[0], ids=theirs.ids, generation=theirs.generation)
        tokens = adapter / "tokenizer.json"
        vocabulary = Vocabulary.read(tokens, end_of_text(adapter)) if tokens.exists() else None
        export(manifest, trained, out, vocabulary, usage, MERGED, blobs)
