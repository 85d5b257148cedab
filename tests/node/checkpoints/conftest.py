"""A copy of the honest history's blobs for each test."""

from tests.blob_folders import folder

__all__ = ["folder"]
