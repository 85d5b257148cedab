"""The fork server of training, checking and evaluating processes: has torch and the model classes loaded.

Run as `python -m dlx.node.trainer.server FD`; see `ground.forking`. Nothing here computes with a tensor. A request is a
byte that says which kind of process is wanted, with its channel, standard output and standard error as descriptors.
"""

import sys
from collections.abc import Sequence

from dlx.ground import forking
from dlx.node.trainer.spawn import CHECKER, EVALUATOR, TRAINER


def main(descriptor: int) -> None:
    """Serves until standard input closes."""
    forking.serve(descriptor, _load, _become)


def _load() -> None:
    from dlx.node.trainer import checking, evaluating, process  # noqa: F401
    from dlx.training.models.stages import preload

    preload()


def _become(kind: bytes, descriptors: Sequence[int]) -> None:
    from dlx.node.trainer import checking, evaluating, process

    channel, out, err = descriptors
    forking.redirect(out, err)
    {CHECKER: checking, EVALUATOR: evaluating, TRAINER: process}[kind].main(channel)


if __name__ == "__main__":
    main(int(sys.argv[1]))
