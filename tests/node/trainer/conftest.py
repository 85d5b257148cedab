"""Real training processes, on the tiny run of the training tests."""

from tests.training.conftest import blobs, corpus, data_manifest, dataset, one_thread, tiny_run

__all__ = ["blobs", "corpus", "data_manifest", "dataset", "one_thread", "tiny_run"]
