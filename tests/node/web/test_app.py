"""The page as it is served: who may what, what comes as it happens, and that a file has the same."""

from __future__ import annotations

import hashlib
import html
import io
import json
import re
import socket
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from dlx.node.audit.sources.places import Places
from dlx.node.cli.listening import listen_options
from dlx.node.home.program import Called
from dlx.node.web.app import Page
from dlx.node.web.audits.process import Task, Where
from dlx.node.web.audits.runner import Auditing
from dlx.node.web.guard import Guard
from dlx.node.web.reading.reader import Reader
from dlx.node.web.render import render
from dlx.training.data.shards import Counted
from tests.history_builder import History
from tests.node.command import dlx
from tests.node.stated_run import RUN, STEPS, SilentClient, StatedRun
from tests.node.web.served import served
from tests.patience import PATIENCE, until

pytest_plugins = ["tests.history_builder"]
TOKEN = "a token of some length"


@pytest.fixture(scope="module")
def site(honest_history: History) -> Iterator[httpx.Client]:
    """The page of a real run on loopback, where whoever comes may act."""
    with _site(honest_history, None) as client:
        yield client


@pytest.fixture(scope="module")
def guarded(honest_history: History) -> Iterator[httpx.Client]:
    """The same with a token."""
    with _site(honest_history, TOKEN) as client:
        yield client


@contextmanager
def _site(history: History, token: str | None) -> Iterator[httpx.Client]:
    places = Places(nodes=(history.blobs,))
    reader = Reader(history.client(), (history.blobs,), f"--rpc-url {history.rpc_url} --ledger {history.ledger}")
    auditing = Auditing(Where((history.rpc_url,), history.ledger, places=places))
    with (
        closing(reader),
        served(Page(reader, Guard(token), auditing, places)) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE) as client,
    ):
        yield client
        auditing.stop()


def test_the_process_of_an_audit_reads_what_it_was_told(tmp_path: Path) -> None:
    places = Places((tmp_path / "own",), (tmp_path / "node",), ("/ip4/127.0.0.1/tcp/1",))
    own = Called(tmp_path / "my node", ("--chain-id", "5"))
    task = Task(Where(("http://127.0.0.1:9",), "0x" + "11" * 20, 5, tmp_path, places, called=own), bytes(32), 3)
    assert Task.of_line(task.line().decode()) == task


def run_of(history: History) -> str:
    return "/runs/0x" + history.run.hex()


def events(client: httpx.Client, path: str) -> Iterator[tuple[str, str]]:
    """(name, data) of a stream, until it ends."""
    with client.stream("GET", path) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        name, data = "", []
        for line in stream.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data.append(line[6:])
            elif not line and name:
                yield name, "\n".join(data)
                name, data = "", []


def test_a_real_run_is_read_page_by_page(site: httpx.Client, honest_history: History) -> None:
    at = run_of(honest_history)
    link = f'<a href="{at}">honest</a>'  # other tests' runs may be newer, and fill pages
    pages = range(0, 500, 50)
    until("the run is in the list", lambda: any(link in site.get(f"/?from={first}").text for first in pages))
    for path in (at, at[:14], f"{at}?from=1&by=bytes", f"{at}/rounds/2", f"{at}/versions/3", f"{at}/audit"):
        page = site.get(path)
        assert page.status_code == 200 and "honest" in page.text, path
    assert "drawn" in site.get(f"{at}/rounds/0").text, "the manifest is here"
    assert honest_history.versions[1, 3].hex() in site.get(f"{at}/versions/3").text
    nowhere = "/runs/0x" + "77" * 32
    for path in (f"{at}/rounds/3", f"{at}/versions/4", nowhere, "/runs/abcdef12", "/elsewhere", "/runs/x"):
        missing = site.get(path)
        assert missing.status_code == 404 and "<h1>" in missing.text, path


def test_a_browser_may_run_and_load_nothing_else(site: httpx.Client, honest_history: History) -> None:
    for path in ("/", run_of(honest_history), "/elsewhere", "/static/page.js"):
        headers = site.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "same-origin"
    assert site.get("/", headers={"Host": "evil.example"}).status_code == 400, "a name pointed at 127.0.0.1"


def test_another_site_cannot_have_the_browser_act(site: httpx.Client, honest_history: History) -> None:
    at = run_of(honest_history)
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
        assert site.post(f"{at}/audit", headers=headers).status_code == 403
        assert site.get(f"{at}/versions/3/model.tar", headers=headers).status_code == 403
    assert "Start the audit" in site.get(f"{at}/audit").text, "none was started"


def test_with_a_token_everybody_reads_and_who_has_it_acts(guarded: httpx.Client, honest_history: History) -> None:
    at = run_of(honest_history)
    assert guarded.get(at).status_code == 200
    assert guarded.get("/", headers={"Host": "page.example"}).status_code == 200
    part = f"{at}/versions/3/stage-0.safetensors"
    for path in (part, f"{at}/versions/3/model.tar"):
        assert guarded.get(path).status_code == 403
        assert guarded.get(path, headers={"Authorization": "Bearer wrong token given"}).status_code == 403
    assert guarded.post(f"{at}/audit").status_code == 403
    assert "enter it" in guarded.get(f"{at}/audit").text and "<form" not in guarded.get(f"{at}/audit").text
    assert guarded.get(part, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert guarded.post("/token", data={"token": "wrong"}).status_code == 403
    assert guarded.post("/token", data={"token": TOKEN}, headers={"Origin": "https://evil.example"}).status_code == 403
    entered = guarded.post("/token", data={"token": TOKEN})
    cookie = entered.headers["set-cookie"]
    assert entered.status_code == 303 and "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
    assert guarded.get(part).status_code == 200, "the browser keeps it"


def test_off_loopback_takes_a_token(tmp_path: Path) -> None:
    for bind in ("0.0.0.0:0", "[::]:0", "page.example:80"):
        said = dlx("web", "--bind", bind, code=2).stderr
        assert "others could reach that, so name a --token-file" in said
    assert "expected HOST:PORT" in dlx("web", "--bind", "8080", code=2).stderr
    token = tmp_path / "token"
    token.write_text("short\n")
    token.chmod(0o600)
    assert "needs 16 to 256" in dlx("web", "--bind", "0.0.0.0:0", "--token-file", token, code=2).stderr
    token.chmod(0o644)
    assert "chmod 600" in dlx("web", "--bind", "0.0.0.0:0", "--token-file", token, code=1).stderr


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_token_is_the_same_in_whatever_an_editor_makes_of_it(tmp_path: Path, encoding: str) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\r\n", encoding=encoding, newline="")
    token.chmod(0o600)
    assert listen_options("0.0.0.0:0", token) == ("0.0.0.0", 0, TOKEN)


def test_a_stages_weights_are_downloaded_only_as_the_ledger_has_them(
    site: httpx.Client, honest_history: History, tmp_path: Path
) -> None:
    name = honest_history.versions[1, 2]
    got = site.get(f"{run_of(honest_history)}/versions/2/stage-1.safetensors")
    assert hashlib.sha256(got.content).digest() == name and "attachment" in got.headers["content-disposition"]
    assert site.get(f"{run_of(honest_history)}/versions/2/stage-2.safetensors").status_code == 404
    (tmp_path / name.hex()).write_bytes(b"x" * len(got.content))
    reader = Reader(honest_history.client(), (tmp_path,), "")
    with (
        served(Page(reader, Guard(None))) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE) as client,
    ):
        with pytest.raises(httpx.RemoteProtocolError):  # cut off before its end
            client.get(f"{run_of(honest_history)}/versions/2/stage-1.safetensors")
    reader.close()


def test_a_version_is_downloaded_as_the_folder_that_pull_writes(site: httpx.Client, honest_history: History) -> None:
    got = site.get(f"{run_of(honest_history)}/versions/3/model.tar")
    assert got.status_code == 200, got.text
    with tarfile.open(fileobj=io.BytesIO(got.content)) as archive:
        names = {member.name for member in archive.getmembers()}
        assert {"model-3/model.safetensors", "model-3/SHA256SUMS", "model-3/provenance.json"} <= names
        sums = archive.extractfile("model-3/SHA256SUMS").read().decode()
        for line in sums.splitlines():
            digest, _, file = line.partition("  ")
            assert hashlib.sha256(archive.extractfile(f"model-3/{file}").read()).hexdigest() == digest


def test_an_audit_is_started_by_a_button_and_its_checks_stream_in(site: httpx.Client, honest_history: History) -> None:
    at = run_of(honest_history)
    started = site.post(f"{at}/audit", headers={"Sec-Fetch-Site": "same-origin"})
    assert started.status_code == 303 and started.headers["location"] == f"{at}/audit"
    told = list(events(site, f"{at}/audit/events"))
    assert [name for name, _ in told[-3:]] == ["state", "act", "done"] and len(told) > 3, "as it went, and its end"
    assert f'action="{at}/audit"' in told[-2][1] and "Audit again" in told[-2][1], (
        "in place of the button that stops it"
    )
    last = " ".join(re.sub("<[^>]*>", " ", told[-3][1]).split())
    assert "Verdict: ledger PASS , outer steps PASS" in last and "replay 2 6 - - -" in last
    assert "that honest inner steps produced the payloads" in last, "and what it did not establish"
    assert "Audit again" in site.get(f"{at}/audit").text and "PASS" in site.get(f"{at}/audit").text


def test_level_3_is_asked_for_by_the_same_button(site: httpx.Client, honest_history: History) -> None:
    at = run_of(honest_history)
    assert 'name="level" value="3"' in site.get(f"{at}/audit").text
    assert site.post(f"{at}/audit", data={"level": "3"}).status_code == 303
    told = list(events(site, f"{at}/audit/events"))
    last = " ".join(re.sub("<[^>]*>", " ", told[-3][1]).split())
    assert "that honest inner steps produced what was not replayed" in last, "nothing of this run was drawn"


def test_an_audit_that_runs_is_stopped_and_leaves_nothing(
    honest_history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C does, and the button; a second one is not begun beside it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with socket.socket() as deaf:  # a chain node that takes connections and says nothing
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        auditing = Auditing(Where((url,), honest_history.ledger))
        assert auditing.start(RUN, 2) and auditing.busy() == RUN
        assert not auditing.start(b"\2" * 32, 2)
        deaf.settimeout(60)
        deaf.accept()[0].close()  # it looks
        auditing.stop(b"\2" * 32)
        assert auditing.busy() == RUN, "that is another run's"
        auditing.stop(RUN)
        state = auditing.state(RUN)
        assert auditing.busy() is None and state.done and state.error == "it was stopped"
    assert list(tmp_path.iterdir()) == []


def test_another_sites_page_can_not_stop_an_audit(site: httpx.Client, honest_history: History) -> None:
    stop = f"{run_of(honest_history)}/audit/stop"
    assert site.post(stop, headers={"Sec-Fetch-Site": "same-site"}).status_code == 403
    assert site.get(stop).status_code == 405 and site.post(stop).status_code == 303


def test_what_nobody_would_ask_is_refused_in_a_line_and_runs_nothing(guarded: httpx.Client) -> None:
    run, far = f"/runs/0x{RUN.hex()}", "9" * 5000
    given = {"Authorization": f"Bearer {TOKEN}"}
    for path in (f"{run}/rounds/{far}", f"{run}/versions/{far}", f"{run}/versions/1/stage-{far}.safetensors",
                 f"{run}/versions/{far}/model.tar", f"{run}/rounds/-1", f"{run}/rounds/x", "/static/..%2fapp.py",
                 "/static/%2e%2e/guard.py", "/runs/%00", "/runs/..%2f..%2fetc"):  # fmt: skip
        found = guarded.get(path, headers=given)
        assert found.status_code == 404 and "default-src 'none'" in found.headers["content-security-policy"], path[:80]
    for body in ("a=1&" * 20, b"\xff\xfe", "token=%ff%00", "token=" + "a" * 5000):
        found = guarded.post("/token", content=body)
        assert found.status_code in (400, 403, 413) and "content-security-policy" in found.headers
    guarded.cookies.clear()
    wrong = guarded.get(f"{run}/versions/1/stage-0.safetensors", headers={"Authorization": b"Bearer \xff\xfe"})
    assert wrong.status_code == 403


def test_a_fault_of_its_own_is_no_page_without_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(first: int) -> None:
        raise RuntimeError("a secret")

    reader = Reader(SilentClient(StatedRun()), (), "")
    monkeypatch.setattr(reader, "runs_page", fail)
    with (
        served(Page(reader, Guard(None))) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE) as client,
    ):
        found = client.get("/")
    assert found.status_code == 500 and "default-src 'none'" in found.headers["content-security-policy"]
    assert "secret" not in found.text


def test_many_who_listen_leave_the_page_readable() -> None:
    reader = Reader(SilentClient(StatedRun()), (), "")
    with (
        served(Page(reader, Guard(None))) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE) as client,
    ):
        port, path = httpx.URL(url).port, f"/runs/0x{RUN.hex()}/events"
        asked = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(100)]
        for one in asked:
            one.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        codes = [int(one.recv(64).split()[1]) for one in asked]
        assert codes.count(200) == 64 and codes.count(503) == 36
        assert client.get("/").status_code == 200
        for one in asked:
            one.close()
        until = time.monotonic() + 60
        while True:
            with client.stream("GET", path) as again:
                if again.status_code == 200 or time.monotonic() > until:
                    break
        assert again.status_code == 200, "who hung up takes no place"


def test_a_reorg_is_told_to_who_looks() -> None:
    stated = StatedRun(min_replicas=1)
    stated.join(0)
    stated.open()
    before = stated.block
    stated.seal(0, {0: STEPS})
    reader = Reader(SilentClient(stated), (), "")
    at = f"/runs/0x{RUN.hex()}"
    with (
        served(Page(reader, Guard(None))) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE) as client,
    ):
        assert client.get(f"{at}/rounds/0").status_code == 200
        with client.stream("GET", f"{at}/events") as other:
            lines = other.iter_lines()
            with reader._lock:
                stated.take_back(before)
            told = next(line for line in lines if line.startswith("data"))
        assert told == "data: No round is sealed any more: the chain took it back"
        assert client.get(f"{at}/rounds/0").status_code == 404 and client.get(at).status_code == 200


def test_a_new_seal_is_told_to_who_looks() -> None:
    stated = StatedRun(min_replicas=1)
    stated.join(0)
    stated.open()
    stated.seal(0, {0: STEPS})
    reader = Reader(SilentClient(stated), (), "")
    with (
        served(Page(reader, Guard(None))) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE) as client,
    ):
        with client.stream("GET", f"/runs/0x{RUN.hex()}/events") as other:
            lines = other.iter_lines()
            with reader._lock:  # as another process would
                stated.seal(1, {0: STEPS})
            assert next(line for line in lines if line.startswith("data")) == "data: Round 1 sealed by 2 of 2 stages"


def test_the_file_has_the_numbers_of_the_history(honest_history: History, tmp_path: Path) -> None:
    where = ("--rpc-url", honest_history.rpc_url, "--ledger", honest_history.ledger, honest_history.run.hex())
    file = tmp_path / "run.html"
    found = json.loads(dlx("history", *where, "--html", file, "--json").stdout)
    page = file.read_text()
    assert "<script" not in page and "<link" not in page and "default-src 'none'; style-src 'sha256-" in page
    seals = page[page.index('id="seals"') :]
    rows = [
        [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall("<t[hd].*?</t[hd]>", row)]
        for row in re.findall('<tr><th scope="row">.*?</tr>', seals)
    ]
    assert sorted(rows) == sorted(
        [
            *(str(one) for one in (row["round"], stage["stage"], stage["weights"], stage["contributions"])),
            *(str(one) for one in (stage["signers"], stage["tokens"], stage["transaction"], stage["block"])),
        ]
        for row in found["rounds"]
        for stage in row["stages"]
    )
    assert len(rows) == 6
    grid = re.findall(r'<tr><th scope="row">(\d+)</th><td class="n thin">([\d.]+)</td>', page)
    assert grid == [(str(row["round"]), f"{row['loss']:.4f}") for row in reversed(found["rounds"])]
    dlx("history", *where, "--html", file, "--last", 1)
    assert len(re.findall(r'<tr><th scope="row">\d+</th><td class="n thin">[\d.]+</td>', file.read_text())) == 1


def test_what_is_not_there_leads_back(site: httpx.Client, honest_history: History) -> None:
    run = f"/runs/0x{honest_history.run.hex()}"
    below = site.get(f"{run}/rounds/999")
    assert below.status_code == 404 and f'href="{run}"' in below.text and 'href="/"' in below.text
    for path in ("/nowhere", "/runs/0x" + "ab" * 32, "/runs/nonsense"):
        found = site.get(path)
        assert found.status_code == 404 and 'href="/">all runs' in found.text, path
    assert "Not Found" not in site.get("/nowhere").text, "the framework's words"


def test_the_sources_of_a_mixture_have_their_tokens_on_the_page(honest_history: History) -> None:
    reader = Reader(honest_history.client(), (honest_history.blobs,), "--datadir x")
    with closing(reader):
        assert reader.run_page(honest_history.run).sources == [], "its data is no mixture"
        with reader._open(honest_history.run) as one:
            one.data = msgspec.structs.replace(one.data, sources=[Counted("books", 1234567), Counted("<b>", 8)])
        page = reader.run_page(honest_history.run)
        shown = render("run.html", page=page, source=page.source, live=True, can_audit=False)
    assert "books (1,234,567 tokens), &lt;b&gt; (8 tokens)" in shown
