"""The ways in which an action of the round machine can go wrong."""


class ActionFailed(Exception):
    """What was asked could not be done now; the message says why in one line. It is asked for again after a while."""


class LocalFault(ActionFailed):
    """This machine is at fault (its disk, its memory, its training process): it says nothing about what was asked."""


class BadPayload(Exception):
    """The bytes are what their name says and can never count: `reason` is a short metric label."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason


class BadStatement(Exception):
    """A statement that does not follow from what its account stated before, or contradicts itself: `reason` is a short
    metric label."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Differs(Exception):
    """Recomputed from inputs that are what their names say, a version is not what its seal says."""
