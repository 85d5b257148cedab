"""When to look at the chain again, where the chain node does not tell: no look is to find nothing."""

QUICK = 0.4  # seconds between two looks at least
RARE = 30.0  # and at most
NOTICE = 4  # looks in the time that the run gives to answer an accusation, or to a round


def next_look(spacing: float | None, since_block: float, is_awaited: bool, notice: float) -> float:
    """Seconds after the last look.

    `spacing`: seconds between the newest blocks, None where that is not known yet; `since_block`: since we saw the
    newest; `is_awaited`: whether anything here waits for the chain; `notice`: seconds that the run gives to answer.
    A block that is late is looked for eight times in the time of one.
    """
    if spacing is None:
        return QUICK
    due = max(QUICK, spacing / 8, spacing - since_block)
    return due if is_awaited else max(due, min(RARE, notice / NOTICE))
