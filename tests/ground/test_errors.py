import errno
from pathlib import Path

import pytest

from dlx.ground import durable
from dlx.ground.errors import DlxError, in_words


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/d/blobs"), "/d/blobs: No space left on device"),
        (OSError(errno.ENOSPC, "No space left on device", b"/d/\xff"), "/d/\ufffd: No space left on device"),
        (OSError(errno.EPIPE, "Broken pipe"), "Broken pipe"),
        (OSError("of our own"), "of our own"),
        (DlxError("two\nlines \x1b[2J"), "two lines \ufffd[2J"),
    ],
)
def test_an_error_is_one_line_and_names_the_file(error: Exception, said: str) -> None:
    assert in_words(error) == said


def test_a_full_disk_is_told_with_its_folder(tmp_path: Path) -> None:
    """What was written already goes; other errors stay as they are."""
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space left on device") as told, durable.draft(tmp_path):
        raise full
    assert told.value.filename == str(tmp_path) and not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="other") as told, durable.naming(tmp_path):
        raise OSError(errno.EIO, "other")
    assert told.value.filename is None
