"""Checkpoints that others offer: the list of a pulled folder's files, whose sha256 the ledger takes, and who says what.

Whoever pulls a version writes the same list: weights and provenance are the chain's, and the other files follow from
the manifest (written by one release of `transformers`; another one may write another config.json). So a checkpoint that
is not the version shows, whoever publishes it.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec

from dlx.ground import durable
from dlx.ground.durable import file_hash
from dlx.ground.untrusted import decode_json, printable
from dlx.ledger.client import LedgerClient
from dlx.ledger.view.run_view import RunView
from dlx.node.home.errors import Failure, UsageFailure
from dlx.training.models import weights
from dlx.training.models.model_files import Form, is_model, read_split, split
from dlx.training.models.weights import Dtype
from dlx.training.outer.average import members
from dlx.training.recipe.manifest import Manifest, parse
from dlx.training.recipe.strict import ManifestError

SUMS = "SHA256SUMS"  # what `sha256sum -c` checks
PROVENANCE = "provenance.json"
MANIFEST = "manifest.json"  # the run's, whose sha256 is on the ledger
HELD_OUT = "held_out.json"  # what members had said of the version when it was pulled: not in SUMS, as they may go on
SCORES = "scores.jsonl"  # what accounts had said of it in tasks, likewise
SAFETENSORS, GGUF = FORMATS = ("safetensors", "gguf")  # of the weights
MAX_URI = 2048  # bytes
_MOST_BYTES = 1 << 20  # of SUMS, PROVENANCE or MANIFEST
_BESIDE_WEIGHTS = 256 << 20  # bytes of all other files of a version: its tokenizer above all
_RUN = re.compile("0x[0-9a-f]{64}")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")  # a scheme, and what it is of


def write_sums(folder: Path) -> bytes:
    """Write the list of the folder's files, in the order of their names, and give the sha256 of that list."""
    durable.write_bytes(folder / SUMS, _sums(folder))
    return file_hash(folder / SUMS)


def read_sums(folder: Path, view: RunView, version: int) -> bytes:
    """The sha256 of a pulled folder's list. Raises Failure unless the folder is that version, with the files
    listed, and what its run publishes as that version: the mean, where the manifest has an average."""
    stated = read_provenance(folder)
    if (stated["run"], stated.get("version")) != ("0x" + view.run.hex(), version):
        raise Failure(f"{folder} is not version {version} of run 0x{view.run.hex()}, as its {PROVENANCE} says")
    manifest = run_manifest(folder, view.config.manifest.hex())
    form = read_form(stated)
    check_files(folder, manifest, form)
    if form.merged and manifest.adapter is not None:
        raise Failure(f"{folder} has the whole model, the run publishes its adapter: pull it without --merged")
    mean = members(manifest.average, version)
    if stated.get("average") != (mean if len(mean) > 1 else None):
        raise Failure(f"{folder} has the version itself, the run publishes means: pull it without --sealed")
    if form != Form() or read_split(manifest, folder) != split(manifest, Form()):
        raise Failure(
            f"{folder} has other files than whoever compares: pull it without --dtype, --shard-size and --format"
        )
    return file_hash(folder / SUMS)


def names(folder: Path) -> list[str]:
    """Of all files of a pulled folder, which was checked: what its list names, what was said of it, and SUMS last."""
    listed = [line.partition("  ")[2] for line in (folder / SUMS).read_text().splitlines()]
    return [*listed, *(name for name in (HELD_OUT, SCORES) if (folder / name).exists()), SUMS]


def read_provenance(folder: Path) -> dict[str, Any]:
    """What a pulled folder says of itself, its `run` as 0x and 64 hex digits. Nothing is compared. Raises Failure."""
    try:
        stated = decode_json(_small(folder / PROVENANCE))
    except (OSError, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise _no_version(folder, error) from None
    if not isinstance(stated, dict) or not _RUN.fullmatch(str(stated.get("run"))):
        raise Failure(f"{folder}: its {PROVENANCE} names no run")
    return stated


def run_manifest(folder: Path, digest: str) -> Manifest:
    """A pulled folder's manifest. Raises Failure unless `digest` (hex) is its sha256."""
    try:
        content = _small(folder / MANIFEST)
        if hashlib.sha256(content).hexdigest() != digest:
            raise Failure(f"{folder}: its {MANIFEST} is not the run's")
        return parse(content)
    except (OSError, ManifestError) as error:
        raise _no_version(folder, error) from None


def read_form(stated: dict[str, Any]) -> Form:
    """Of a folder's weights, by its provenance, but for the size of its files. Raises Failure."""
    dtype, format = stated.get("dtype"), stated.get("format")
    if dtype not in get_args(Dtype) or format not in FORMATS:
        raise Failure(f"its {PROVENANCE}: expected a dtype of {', '.join(get_args(Dtype))} and a format of {FORMATS}")
    return Form(dtype, gguf=format == GGUF, merged=stated.get("merged") is True)  # type: ignore[arg-type]


def check_files(folder: Path, manifest: Manifest, form: Form) -> None:
    """Raises Failure unless a pulled folder's files are those that it lists, no links among them. None is read where
    the weights have not the size of those of the manifest's run in that `form`, or all files together are longer than a
    version can be."""
    limit = sum(blob.size for blob in [*manifest.genesis, *manifest.base]) + _BESIDE_WEIGHTS
    alone = manifest.adapter is not None and not form.merged
    if form.merged and manifest.adapter is None:
        raise Failure(f"{folder}: its {PROVENANCE} says that it is merged, and the run trains no adapter")
    if not form.gguf and alone == is_model(manifest, folder):
        raise Failure(
            f"{folder}: has {'a whole model' if alone else 'an adapter alone'}, which its {PROVENANCE} denies"
        )
    try:
        listed, size = _small(folder / SUMS), _size(folder)
        for name, shapes in {} if form.gguf else read_split(manifest, folder).items():
            has, expected = (folder / name).stat().st_size, weights.layout(shapes, form.dtype).size
            if has != expected:
                raise Failure(
                    f"{folder}: its {name} has {has:,} bytes, those of the run by its {MANIFEST} {expected:,}"
                )
        if size > limit:
            raise Failure(f"{folder}: its files have {size:,} bytes, a version by its {MANIFEST} at most {limit:,}")
        if listed != (found := _sums(folder)):
            raise Failure(f"{folder}: its files are not those that its {SUMS} lists: {_differences(listed, found)}")
        if others := sorted(printable(path.name) for path in folder.iterdir() if not _is_plain(path)):
            raise Failure(f"{folder}: no plain file: {', '.join(others[:8])}")
    except (OSError, ValueError) as error:
        raise _no_version(folder, error) from None


def published(view: RunView, version: int) -> list[dict[str, str]]:
    """Who says where the version can be had, oldest first: `account`, `uri`, and `checkpoint`, the sha256 (hex) of the
    list of files there. Anybody's text."""
    return [
        {"account": one.account, "uri": one.uri, "checkpoint": one.folder.hex()}
        for one in view.checkpoints
        if one.round == version
    ]


def publish(
    client: LedgerClient,
    view: RunView,
    version: int | None,
    uri: str,
    folder: Path | None,
    pull: Callable[[int, Path], dict[str, Any]],
) -> dict[str, Any]:
    """Say on the ledger that a version (None: the newest) is to be had at `uri`: what was published, and the
    transaction. The list is that of `folder`, or of one that `pull(version, out)` makes for it.

    Raises UsageFailure for a URI that nobody could follow, Failure where the account may not or the folder is not the
    version, LedgerError.
    """
    if not _URI.fullmatch(uri) or not uri.isprintable() or len(uri.encode()) > MAX_URI:
        raise UsageFailure(f"--uri: expected at most {MAX_URI:,} bytes like https://host/path or ipfs://..., no spaces")
    if client.account != view.creator and view.slot_of(client.account) is None:
        raise Failure(f"account {client.account} may not publish: only the run's creator and its members may")
    chosen = min(map(view.next_round, range(view.config.stages))) if version is None else version
    with tempfile.TemporaryDirectory(prefix="dlx-publish-") as temporary:
        if folder is None:
            folder = Path(temporary) / "checkpoint"
            if pull(chosen, folder)["checkpoint"] is None:
                raise Failure("nobody has the run's tokenizer, without which this is no whole checkpoint")
        sums = read_sums(folder, view, chosen)
    receipt = client.publish_checkpoint(view.run, chosen, sums, uri)
    return {
        "run": "0x" + view.run.hex(),
        "version": chosen,
        "checkpoint": sums.hex(),
        "uri": uri,
        "transaction": "0x" + receipt.tx.hex(),
        "block": receipt.block,
    }


def _sums(folder: Path) -> bytes:
    names = sorted(path.name for path in folder.iterdir() if path.name not in (SUMS, HELD_OUT, SCORES))
    return "".join(f"{_hash(folder / name)}  {name}\n" for name in names).encode()


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if _is_plain(path))


def _is_plain(path: Path) -> bool:
    """Not a pipe, which would never end, nor a link to any file of this machine."""
    return path.is_file() and not path.is_symlink()


def _no_version(folder: Path, error: Exception) -> Failure:
    return Failure(f"{folder} is no folder that `dlx-node pull` wrote ({error})")


def _small(path: Path) -> bytes:
    """Raises OSError for what is no plain file, or too long to be it."""
    if not _is_plain(path):
        raise OSError(f"it has no file {path.name}")
    if path.stat().st_size > _MOST_BYTES:
        raise OSError(f"its {path.name} is too long")
    return path.read_bytes()


def _hash(path: Path) -> str:
    """Of what is no plain file no hash."""
    return file_hash(path).hex() if _is_plain(path) else "no file"


def _differences(listed: bytes, found: bytes) -> str:
    """What of a list the files do not have, have otherwise, or have besides, by the list of what was found."""
    lists = [[line.partition("  ") for line in one.decode(errors="replace").splitlines()] for one in (listed, found)]
    stated, there = ({name: digest for digest, _, name in lines} for lines in lists)
    kinds = {
        "changed": [name for name in there if name in stated and there[name] != stated[name]],
        "missing": [name for name in stated if name not in there],
        "not listed": [name for name in there if name not in stated],
    }
    differing = [f"{kind}: {', '.join(sorted(map(printable, names))[:8])}" for kind, names in kinds.items() if names]
    return "; ".join(differing) or "they are listed in another way"
