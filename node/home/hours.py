"""Hours of the day in which a node works: "22:00-06:00", in this machine's local time."""

from __future__ import annotations

import re
from collections.abc import Sequence

DAY = 24 * 60  # minutes
_HOURS = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})", re.ASCII)


def wrong_hours(windows: Sequence[str]) -> str | None:
    """What is wrong with such a setting; None: nothing."""
    try:
        for window in windows:
            minutes(window)
    except ValueError as error:
        return str(error)
    return None


def minutes(window: str) -> tuple[int, int]:
    """From which minute of the day, and until before which, perhaps of the next. Raises ValueError."""
    found = _HOURS.fullmatch(window)
    hours = [int(one) for one in found.groups()] if found else []
    if not hours or hours[0] > 23 or hours[2] > 24 or max(hours[1], hours[3]) > 59 or hours[2:] > [24, 0]:
        raise ValueError("expected hours such as 22:00-06:00")
    start, end = hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]
    if start == end % DAY:
        raise ValueError("expected hours that begin and end at different times")
    return start, end % DAY


def is_within(windows: Sequence[str], minute: int) -> bool:
    """Whether a minute of the day lies in one of the windows; without any, always."""
    return not windows or any(_in(*minutes(window), minute) for window in windows)


def _in(start: int, end: int, minute: int) -> bool:
    return start <= minute < end if start < end else minute >= start or minute < end
