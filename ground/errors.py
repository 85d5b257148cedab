"""The base of every error that a user can understand. All else that is raised is a fault of ours, or the machine's."""


class DlxError(Exception):
    """Something went wrong that is no fault of the program: the message says in one line what, and what to do.

    `exit_code` is what `dlx-node` ends with: 1 failed, 2 asked for wrongly, 3 something is not ready yet.
    """

    exit_code = 1


def cause(error: Exception) -> Exception:
    """What went wrong inside the task groups that wrap it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
