"""A pulled folder in other places, and the weights of a version from there: honest, false, cut short and endless."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fsspec import register_implementation
from fsspec.implementations.memory import MemoryFileSystem

from dlx.node.audit.sources.blobs import Folder
from dlx.node.checkpoints import elsewhere
from dlx.node.checkpoints.pull import pull
from dlx.node.home import remote
from dlx.node.home.errors import Failure, UsageFailure
from dlx.training.models.model_files import Form
from tests.blob_folders import copied
from tests.history_builder import History
from tests.node.command import dlx

pytest_plugins = ["tests.history_builder"]
MODEL = "model.safetensors"


class Server:
    """Keeps what is PUT with the token, and gives it back."""

    def __init__(self) -> None:
        files: dict[str, bytes] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))  # also of an empty file
                right = self.headers.get("Authorization") == "Bearer secret"
                if right:
                    files[self.path] = content
                self.send_response(201 if right else 403, None)
                self.end_headers()

            def do_GET(self) -> None:
                found = files.get(self.path)
                self.send_response(200 if found is not None else 404)
                self.end_headers()
                self.wfile.write(found or b"")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.files, self._http = files, ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/models/3"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="module")
def pulled(honest_history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("elsewhere") / "model"
    client, sources = honest_history.client(), [Folder(honest_history.blobs, own=False)]
    pull(client.domain, honest_history.view(), 3, out, sources, lambda *what: None, lambda line: None)
    return out


@pytest.fixture
def weightless(honest_history: History, tmp_path: Path) -> Path:
    """All blobs of the run but any version's weights and payloads."""
    folder = copied(honest_history, tmp_path / "blobs")
    gone = [digest for (_, version), digest in honest_history.versions.items() if version]
    gone += [payload for each in honest_history.payloads.values() for payload in each]
    for digest in gone:
        (folder / digest.hex()).unlink(missing_ok=True)
    return folder


@pytest.fixture
def taken(honest_history: History, weightless: Path, tmp_path: Path) -> Callable[[str], tuple[Path, list[str]]]:
    """`taken(uri)`: version 3 where nobody has its weights but that place; the folder, and what was said."""

    def go(uri: str) -> tuple[Path, list[str]]:
        client, said, out = honest_history.client(), list[str](), tmp_path / "taken"
        sources = [Folder(weightless, own=False)]
        pull(client.domain, honest_history.view(), 3, out, sources, said.append, lambda line: None, wanted=uri)
        return out, said

    return go


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_goes_to_a_folder_a_server_and_a_bucket_and_comes_back(
    pulled: Path, server: Server, taken: Callable[[str], tuple[Path, list[str]]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("dlx.node.home.remote.require", lambda *extras: None)
    register_implementation("s3", MemoryFileSystem, clobber=True)
    monkeypatch.setenv(remote.TOKEN, "secret")
    odd = tmp_path / "a b%20c#d?e::f"
    for place in (
        str(tmp_path / "copy"),
        str(odd),
        (tmp_path / "it s").as_uri(),
        server.url,
        f"{server.url}/",
        "s3://bucket/models",
    ):
        made = elsewhere.push(pulled, place, lambda line: None)
        assert made["files"] == len(_files(pulled))
        out, said = taken(place)
        assert not said and _files(out) == _files(pulled)
        shutil.rmtree(out)
    for copy in ("copy", odd, "it s"):
        assert _files(tmp_path / copy) == _files(pulled)
    assert {path.rpartition("/")[2]: content for path, content in server.files.items()} == _files(pulled)
    assert [*server.files][-1].endswith("/SHA256SUMS"), "whoever finds the list finds all"


def test_the_hub_gets_one_commit(pulled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: dict[str, Any] = {}
    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", lambda self, **given: called.update(given))
    elsewhere.push(pulled, "hf://owner/name/v3", lambda line: None)
    assert (called["repo_id"], called["path_in_repo"], called["folder_path"]) == ("owner/name", "v3", pulled)
    assert set(called["allow_patterns"]) == set(_files(pulled))


def _fails(**given: Any) -> None:
    raise RuntimeError("no repository\nof that name")


def test_what_refuses_a_push_is_named_in_one_line(
    pulled: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(remote.TOKEN, raising=False)
    with pytest.raises(Failure, match=r"^http://.*: 403 Forbidden$"):
        elsewhere.push(pulled, server.url, lambda line: None)
    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", lambda self, **given: _fails())
    with pytest.raises(Failure, match=r"^hf://owner/name: no repository of that name$"):
        elsewhere.push(pulled, "hf://owner/name", lambda line: None)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").touch()
    with pytest.raises(UsageFailure, match="name a new or an empty folder"):
        elsewhere.push(pulled, str(tmp_path / "mine"), lambda line: None)
    for to, said in (
        ("https://[", "expected a folder, or an address"),
        ("file://host/x", "a folder of this machine"),
        ("ftp://host/x", "expected a folder, or an address"),
        ("https://host/x?signature=1", "without"),
        ("https://me:word@host/x", "no user and no password"),
        ("hf://owner", "expected hf://OWNER/REPOSITORY"),
    ):
        with pytest.raises(UsageFailure, match=said):
            elsewhere.push(pulled, to, lambda line: None)


def test_false_weights_are_named_and_not_kept(
    pulled: Path, taken: Callable[[str], tuple[Path, list[str]]], weightless: Path, honest_history: History,
    tmp_path: Path,
) -> None:  # fmt: skip
    copy = Path(shutil.copytree(pulled, tmp_path / "copy"))
    content = bytearray((copy / MODEL).read_bytes())
    content[-1] ^= 1
    (copy / MODEL).write_bytes(content)
    with pytest.raises(Failure):  # and nobody else has them
        taken(str(copy))
    for stage in range(2):
        name = honest_history.versions[stage, 3].hex()
        shutil.copy(honest_history.blobs / name, weightless / name)
    for wrong, message in (
        (bytes(content), "other weights than stage"),
        (bytes(content[:-9]), f"expected {len(content):,} bytes, got {len(content) - 9:,}"),
        (bytes(content) + b"more", f"expected {len(content):,} bytes, got more"),
        (b"\xff" * len(content), "not the canonical file"),
    ):
        (copy / MODEL).write_bytes(wrong)
        out, said = taken(str(copy))
        assert len(said) == 1 and message in said[0] and "others are asked" in said[0]
        assert _files(out) == _files(pulled)
        shutil.rmtree(out)


def test_the_ledgers_addresses_are_strangers() -> None:
    """None of them makes this machine read its own files, use its own keys, or speak plainly."""
    named = ["file:///etc", "https://host/v/", "s3://bucket/x", "http://10.0.0.1/x", "hf://owner/name", "ipfs://x"]
    named += ["https://[", "https://host/\x1b[31m", "not an address"]
    found = elsewhere.offered(elsewhere.PUBLISHED, [{"uri": uri} for uri in named])
    assert found == ["https://host/v", "hf://owner/name"]


def test_the_command_compares_a_folder_before_it_goes_anywhere(pulled: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pulled, tmp_path / "model"))
    dlx("push", folder, tmp_path / "to")
    assert _files(tmp_path / "to") == _files(pulled)
    with (folder / "config.json").open("a") as file:
        file.write(" ")
    assert "changed: config.json" in dlx("push", folder, tmp_path / "other", code=1).stderr
    assert not (tmp_path / "other").exists()


def test_nothing_but_what_was_listed_goes_anywhere(pulled: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pulled, tmp_path / "model"))
    (tmp_path / "secret").write_text("word")
    (folder / "held_out.json").symlink_to(tmp_path / "secret")
    assert "no plain file: held_out.json" in dlx("push", folder, tmp_path / "to", code=1).stderr
    (folder / "held_out.json").unlink()
    (folder / MODEL).rename(tmp_path / MODEL)
    (folder / MODEL).symlink_to(tmp_path / MODEL)
    assert f"changed: {MODEL}" in dlx("push", folder, tmp_path / "to", code=1).stderr
    assert not (tmp_path / "to").exists()
    folder = Path(shutil.copytree(pulled, tmp_path / "more"))
    for name in ("scores.jsonl", "came-later"):
        (folder / name).write_text("")
    elsewhere.push(folder, str(tmp_path / "to"), lambda line: None)
    assert _files(tmp_path / "to") == _files(pulled) | {"scores.jsonl": b""}


def test_the_token_goes_over_https_or_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with_token = ("https://host/x", "http://localhost:1/x", "http://127.0.0.1/x", "http://[::1]/x", "s3://bucket/x")
    monkeypatch.setattr("dlx.node.home.remote.require", lambda *extras: None)
    assert elsewhere.destination("http://host/x") == "http://host/x"
    monkeypatch.setenv(remote.TOKEN, "secret")
    assert tuple(map(elsewhere.destination, with_token)) == with_token
    for plain in ("http://host/x", "http://10.0.0.1/x", "http://localhost.example.org/x", "http://127.0.0.1@x/y"):
        with pytest.raises(UsageFailure, match=r"plain text|no user"):
            elsewhere.destination(plain)


def test_a_model_in_several_files_comes_back(
    honest_history: History, taken: Callable[[str], tuple[Path, list[str]]], pulled: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    small, out = Form(shard_bytes=20_000), tmp_path / "small"
    client, sources = honest_history.client(), [Folder(honest_history.blobs, own=False)]
    pull(client.domain, honest_history.view(), 3, out, sources, lambda *what: None, lambda line: None, form=small)
    assert len([*out.glob("model-*")]) > 2
    monkeypatch.setattr("dlx.node.checkpoints.elsewhere.Form", lambda: small)
    copy, said = taken(str(out))
    assert not said and _files(copy) == _files(pulled)


def test_a_pushed_run_is_its_adapter_unless_the_whole_model_is_asked_for(
    pulled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[bool]()
    monkeypatch.setattr("dlx.node.cli.models.have", lambda stack, chosen, *rest: (asked.append(rest[-1]), [pulled])[1])
    run = "0x" + "1" * 64
    dlx("push", run, tmp_path / "a")
    dlx("push", run, tmp_path / "b", "--merged")
    assert asked == [False, True]
    assert "as it was pulled" in dlx("push", pulled, tmp_path / "c", "--merged", code=2).stderr
