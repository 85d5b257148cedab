"""The base of every error that a user can understand. All else that is raised is a fault of ours, or the machine's."""


class DlxError(Exception):
    """Something went wrong that is no fault of the program: the message says in one line what, and what to do.

    `exit_code` is what `dlx-node` ends with: 1 failed, 2 asked for wrongly, 3 something is not ready yet.
    """

    exit_code = 1


def cause(error: Exception) -> Exception:
    """What went wrong inside the task groups that wrap it: a fault of ours before what people can understand, and that
    before what came of it."""
    found = leaves(error)
    ours = (one for one in found if not isinstance(one, DlxError | OSError))
    clear = (one for one in found if isinstance(one, DlxError))
    return next(ours, None) or next(clear, None) or found[0]


def leaves(error: Exception) -> list[Exception]:
    """The errors themselves, without the task groups that wrap them."""
    if isinstance(error, ExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]
