"""The node process and its faces: command line, configuration, round protocol, audit, HTTP."""

from functools import cache


@cache
def version() -> str:
    """The installed version of dlx-node."""
    from importlib.metadata import version as installed  # slow to import, seldom needed

    return installed("dlx-node")
