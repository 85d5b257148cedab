"""Files named by their sha256, on disk and between peers."""

from p2p.exchange import BlobError, BlobExchange, BlobNotFound, BlobTimeout, BlobTooLarge
from p2p.store import BlobStore

__all__ = ["BlobError", "BlobExchange", "BlobNotFound", "BlobStore", "BlobTimeout", "BlobTooLarge"]
