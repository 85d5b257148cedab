"""Expected failures: each becomes one clear line on stderr and an exit code, never a traceback."""

from dlx.ground.errors import DlxError


class Failure(DlxError):
    """Something went wrong that a user can understand: the message says what, and what to do."""


class UsageFailure(Failure):
    """The command, an environment variable or the configuration asks for something impossible."""

    exit_code = 2


class NotReady(Failure):
    """Something the command needs is not there yet: a key, a running node, a ledger."""

    exit_code = 3
