"""Parts of a node that lies, for tests."""

from dlx.ground.blobs import BlobStore


class Unchecked(BlobStore):
    """Whose blobs are all as good as any: an honest node serves none that does not match its name."""

    def sound(self, hash_: bytes) -> bool:
        return self.has(hash_)
