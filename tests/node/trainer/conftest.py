"""Real training processes, on the tiny run of the training tests."""

from tests.forks import fork_server
from tests.training.conftest import blobs, corpus, data_manifest, dataset, one_thread, tiny_run

__all__ = ["blobs", "corpus", "data_manifest", "dataset", "fork_server", "one_thread", "tiny_run"]
