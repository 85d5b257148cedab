"""Log lines of one shape: time, level, what happened, then key=value fields; as text or as JSON objects.

log = logs.get("round")
log.info("round sealed", round=3, loss=2.71)
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import sys
import time
from pathlib import Path
from typing import Any, Literal

from dlx.ground.untrusted import printable

_FILE_BYTES = 10 * 1024 * 1024
_FILES_KEPT = 4


class Log:
    """A named logger whose lines carry fields. Never give it a secret."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, **fields: Any) -> None:
        self._logger.debug(message, extra={"fields": fields})

    def info(self, message: str, **fields: Any) -> None:
        self._logger.info(message, extra={"fields": fields})

    def warning(self, message: str, **fields: Any) -> None:
        self._logger.warning(message, extra={"fields": fields})

    def error(self, message: str, **fields: Any) -> None:
        self._logger.error(message, extra={"fields": fields})

    def exception(self, message: str, **fields: Any) -> None:
        """An error with the traceback of the exception being handled: only for what nobody expected."""
        self._logger.exception(message, extra={"fields": fields})


def get(name: str) -> Log:
    """The log of one part of the node: `dlx.<name>`."""
    return Log(f"dlx.{name}")


def setup(style: Literal["text", "json"], folder: Path | None, level: str = "INFO") -> None:
    """Send our lines to stderr and, given a folder, to node.log in it; of the libraries' only the warnings."""
    formatter = _Json() if style == "json" else _Text()
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handlers.append(_File(folder / "node.log"))
    for handler in handlers:
        handler.setFormatter(formatter)
    logging.basicConfig(handlers=handlers, level=logging.WARNING, force=True)
    logging.getLogger("dlx").setLevel(level)


class _File(logging.handlers.RotatingFileHandler):
    """While the disk is full, lines are missing in the file. That is said once, on stderr."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=_FILE_BYTES, backupCount=_FILES_KEPT, encoding="utf-8")
        self._failed = self._told = False

    def emit(self, record: logging.LogRecord) -> None:
        self._failed = False
        super().emit(record)
        self._told = self._failed

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            return super().handleError(record)
        self._failed = True
        if self._told:
            return
        with contextlib.suppress(OSError):  # stderr may be a file on the same disk
            print(f"dlx-node: {self.baseFilename}: {error.strerror}: lines are missing there", file=sys.stderr)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_shown(value)}" for key, value in _fields(record).items() if value is not None)
        name = "" if record.name.startswith("dlx") else f"{record.name}: "
        line = f"{_stamp(record)} {record.levelname:<7} {name}{_on_one_line(record.getMessage())}{fields}"
        if not record.exc_info:
            return line
        return "\n".join([line, *map(printable, self.formatException(record.exc_info).splitlines())])


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        own: dict[str, Any] = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            own["traceback"] = self.formatException(record.exc_info)
        return json.dumps(own | _fields(record) | own, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return {key: value.hex() if isinstance(value, bytes) else value for key, value in fields.items()}


def _stamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    # Quoted when it could pass for something else: what a peer sent must not make a second line or field.
    return text if text.isprintable() and text and not set(text) & set(' "=') else json.dumps(text)


def _on_one_line(message: str) -> str:
    return message if message.isprintable() else json.dumps(message)
