"""A fork server for tests: `python -m tests.ground.forked FD`. Its forks run the Python text asked for."""

import sys
from collections.abc import Sequence

from dlx.ground import forking


def _become(request: bytes, descriptors: Sequence[int]) -> None:
    forking.redirect(*descriptors)
    exec(request.decode())


if __name__ == "__main__":
    forking.serve(int(sys.argv[1]), lambda: None, _become)
