"""Text of strangers before it reaches a terminal or a log."""


def printable(hostile: str, most: int = 200) -> str:
    """Somebody's text as one line that cannot steer a terminal, at most so many characters of it.

    Examples:
        >>> printable("fine"), printable("\\x1b[31mred\\n"), printable("12345", 3)
        ('fine', '\ufffd[31mred\ufffd', '123...')
    """
    plain = "".join(one if one.isprintable() else "\ufffd" for one in hostile[:most])
    return plain if len(hostile) <= most else plain + "..."
