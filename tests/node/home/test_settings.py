"""A setting that is declared appears wherever settings do."""

import subprocess
import sys
from pathlib import Path

import pytest

from dlx.node.home.errors import UsageFailure
from dlx.node.home.settings import DEFAULTS, SETTINGS, Settings
from dlx.node.home.values import wrong_mailbox_url

ROOT = Path(__file__).parents[3]

DECLARES_ONE_MORE = """
import contextlib, io, os, sys
from dataclasses import dataclass
from pathlib import Path
from dlx.node.home import settings

@dataclass(frozen=True, kw_only=True)
class More(settings.Settings):
    tea_time: int = settings.setting(17, "Hour of the tea.", metavar="HOUR", wrong=lambda hour: "no" * (hour > 23))

settings.Settings, settings.SETTINGS, settings.DEFAULTS = More, settings.declared(More), More()

from dlx.node.cli import manual
from dlx.node.cli.app import main
from dlx.node.home import config
from dlx.node.home.datadir import DataDir

folder = DataDir(Path(sys.argv[1]) / "node")

def shown(*arguments, **environ):
    os.environ |= environ
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*arguments, *(() if "--help" in arguments else ("--datadir", str(folder.root)))])
    for name in environ:
        del os.environ[name]
    return out.getvalue()

shown("config", "set", "tea_time", "16")
assert config.load(folder, {}, {}).tea_time == 16, "file"
assert config.load(folder, {}, {"DLX_TEA_TIME": "15"}).tea_time == 15, "environment"
assert config.load(folder, {"tea_time": 14}, {"DLX_TEA_TIME": "15"}).tea_time == 14, "option"
assert shown("config", "show", "tea_time").split()[3:5] == ["tea_time", "16"], "config show"
assert "15" in shown("config", "show", "tea_time", DLX_TEA_TIME="15"), "config show"
shown("config", "unset", "tea_time")
assert "# tea_time = 17" in folder.config.read_text(), "its default"
config.write(Path(sys.argv[1]) / "new.toml", {})
assert "# Hour of the tea.\\n# tea_time = 17\\n" in (Path(sys.argv[1]) / "new.toml").read_text(), "the commented file"
helped = " ".join(shown("start", "--help").replace("│", " ").split())
assert "--tea-time HOUR Hour of the tea. (env DLX_TEA_TIME) [default: (17)]" in helped, helped
page = manual.pages()["dlx-node-start.1"]
assert ".B \\\\-\\\\-tea\\\\-time HOUR\\nHour of the tea. (env DLX_TEA_TIME) [default: (17)]" in page, "man page"
table = manual.settings_table(Path("docs/operator.md").read_text())
assert "| `tea_time` | `--tea-time` | `DLX_TEA_TIME` | `17` | Hour of the tea. |" in table, "table"
"""


def test_a_field_more_is_an_option_a_variable_a_key_and_a_line_of_each_document(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DECLARES_ONE_MORE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr


def test_each_default_is_a_value_that_the_setting_takes() -> None:
    for key, setting in SETTINGS.items():
        assert setting.help.endswith(".") and setting.wrong(getattr(DEFAULTS, key)) is None, key


def test_a_mailbox_goes_to_the_ledger_only_as_the_registry_takes_it() -> None:
    fine, long = "https://bucket.example/mine", "https://bucket.example/" + "x" * 256
    assert Settings(mailbox=f"{fine}/").mailbox_read_at == fine
    assert Settings(mailbox=long, mailbox_url=fine).mailbox_read_at == fine
    assert Settings(mailbox="s3://bucket/mine").mailbox_read_at == Settings(mailbox="/a/b").mailbox_read_at == ""
    for wrong in (long, "https://b\u00fccket.example/", "https://bucket.example/a b", "https://bucket.example/a@b"):
        with pytest.raises(UsageFailure, match="at most 256 characters of ASCII"):
            assert Settings(mailbox=wrong).mailbox_read_at
        assert wrong_mailbox_url(wrong)
