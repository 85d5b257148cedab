"""What a neighbour may send over a pipe: kinds of messages, their sizes, and how far it may run ahead of us.

`pipeline`, `private` and the slot's barrier say in which order. Here is what follows of it for whoever has to take the
messages in: nothing but what it asked for, and no more activations than one forward one backward has under way.
"""

from typing import NamedTuple

from dlx.training.recipe.manifest import Manifest
from dlx.training.recipe.recipe import activation_bytes, embedding_bytes

AGREE = ("barrier", "release")  # kinds that say what was recorded of a link
RECORDED = 32 + 65  # bytes: what a stage recorded of the link, and its member's signature


class Incoming(NamedTuple):
    """A kind of message: as many of them may have come as we sent of the kind `after`, and `ahead` more."""

    sizes: tuple[int, ...]  # bytes
    after: str
    ahead: int


def incoming(manifest: Manifest, stage: int, link: str) -> dict[str, Incoming]:
    """By kind, what the neighbour of `stage` at `link` ("previous" or "next") may send."""
    tensor, embedding = (activation_bytes(manifest),), (embedding_bytes(manifest),)
    if link == "next":
        found = {
            "gradient": Incoming(tensor, "activation", 0),
            "total": Incoming((16,), "norm", 0),
            "release": Incoming((RECORDED,), "barrier", 0),
        }
    else:
        under_way = min(len(manifest.stages) - stage + 1, manifest.data.micro_batches)
        found = {
            "activation": Incoming(tensor, "gradient", under_way),
            "norm": Incoming((8,), "total", 1),
            "barrier": Incoming((RECORDED,), "release", 1),
        }
    if embedding_bytes(manifest):
        tied = {"next": Incoming(embedding, "embedding", 0), "previous": Incoming(embedding, "tied gradient", 1)}
        found["tied gradient" if link == "next" else "embedding"] = tied[link]
    if manifest.data.private:
        found["data"] = Incoming((0, 32), "data", 0 if link == "next" else 2)  # 2: a hash, and last words
    return found
