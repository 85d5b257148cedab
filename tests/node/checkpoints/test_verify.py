"""A pulled folder against the ledger; following a run; what a run that starts from a version says and proves."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from dlx.ledger.abi import checksum
from dlx.ledger.errors import LedgerUnavailable
from dlx.ledger.typed import Domain
from dlx.ledger.view.run_view import RunView
from dlx.node.audit.manifest import audit_lineage, is_here
from dlx.node.audit.report import Report
from dlx.node.audit.sources.blobs import Blobs, Folder
from dlx.node.checkpoints.pull import Beside, follow, pull
from dlx.node.checkpoints.verify import verify
from dlx.node.cli.runs.verify import _report
from dlx.node.home import citation
from dlx.node.home.datadir import DataDir
from dlx.node.home.diagnostics import Diagnosis
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.runs.create import _lineage
from dlx.node.runs.listing import read_provenance, read_sums, write_sums
from dlx.training.data.vocabulary import Vocabulary
from dlx.training.models.model_files import Form
from dlx.training.recipe.draft import DraftModel
from dlx.training.recipe.manifest import Lineage, canonical_bytes, parse
from tests.history_builder import USAGE, History
from tests.node.command import dlx
from tests.training.models.test_gguf import bpe

pytest_plugins = ["tests.history_builder"]


@pytest.fixture(scope="module")
def pulled(honest_history: History, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("verify") / "model"
    client, view = honest_history.client(), honest_history.view()
    sources = [Folder(honest_history.blobs, own=False)]
    pull(client.domain, view, 3, out, sources, lambda *what: None, lambda line: None)
    return out


@pytest.fixture
def folder(pulled: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(pulled, tmp_path / "model"))


@pytest.fixture
def findings(honest_history: History, tmp_path: Path) -> Callable[..., list[Diagnosis]]:
    def go(folder: Path, blobs: bool = True) -> list[Diagnosis]:
        work = tmp_path / f"work {blobs}"
        work.mkdir(exist_ok=True)
        sources = [Folder(honest_history.blobs, own=False)] if blobs else []
        some = Blobs(sources, work, lambda *what: None)
        domain, view = honest_history.client().domain, honest_history.view()
        return list(verify(folder, read_provenance(folder), domain, view, some))

    return go


@pytest.fixture
def found(findings: Callable[..., list[Diagnosis]]) -> Callable[..., dict[str, str]]:
    """Check -> verdict; `blobs`: whether the run's tokenizer and data manifest can be had."""

    def go(folder: Path, blobs: bool = True) -> dict[str, str]:
        return {one.check: one.verdict for one in findings(folder, blobs)}

    return go


def test_a_folder_that_was_pulled_is_what_it_says(folder: Path, found: Callable[..., dict[str, str]]) -> None:
    fine = dict.fromkeys(("files", "ledger", "manifest", "weights", "config"), "PASS")
    assert found(folder) == fine
    assert found(folder, blobs=False) == fine | {"config": "WARN"}, "its tokenizer and template could be anybody's"
    settings, generation = (
        json.loads((folder / f"{one}_config.json").read_text()) for one in ("tokenizer", "generation")
    )
    assert settings["chat_template"] == USAGE.chat_templates["default"] and generation["temperature"] == 0.5
    card, stated = (folder / "README.md").read_text(), json.loads((folder / "provenance.json").read_text())
    assert f"dlx:{stated['chain_id']}/{stated['ledger']}/{stated['run']}@3" in card
    assert "dlx-node verify . " in card and "not stated" in card and stated["stages"][1]["weights"] in card


@pytest.mark.parametrize(
    ("file", "check"),
    [
        ("model.safetensors", "weights"),
        ("manifest.json", "manifest"),
        ("config.json", "config"),
        ("README.md", "config"),
        ("tokenizer.json", "config"),
        ("tokenizer_config.json", "config"),
        ("generation_config.json", "config"),
        ("code.py", "config"),
    ],
)
def test_a_changed_file_is_found_though_the_list_was_made_anew(
    folder: Path, found: Callable[..., dict[str, str]], file: str, check: str
) -> None:
    content = bytearray((folder / file).read_bytes()) if (folder / file).exists() else bytearray(b"x")
    content[-1] ^= 1
    (folder / file).write_bytes(content)
    assert "FAIL" in (found(folder).get("files"), found(folder)["manifest"]), "the list no longer fits"
    write_sums(folder)
    verdicts = found(folder)
    assert verdicts[check] == "FAIL" and verdicts.get("files") != "FAIL"


@pytest.mark.parametrize(
    ("file", "size"), [("model.safetensors", 1 << 36), ("model.safetensors", 1000), ("x", 1 << 36)]
)
def test_files_of_another_size_than_a_version_has_are_found_unread(
    folder: Path, found: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch, file: str, size: int
) -> None:
    with (folder / file).open("ab") as opened:
        opened.truncate(size)
    monkeypatch.setattr("dlx.node.runs.listing.file_hash", lambda path: pytest.fail(f"{path} is read"))
    assert found(folder) == {"manifest": "PASS", "files": "FAIL"}
    (folder / "manifest.json").unlink()
    assert found(folder) == {"manifest": "FAIL"}


def test_a_false_manifest_does_not_decide_how_much_is_read(
    honest_history: History, folder: Path, found: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = honest_history.manifest
    huge = [msgspec.structs.replace(blob, size=1 << 40) for blob in manifest.genesis]
    (folder / "manifest.json").write_bytes(canonical_bytes(msgspec.structs.replace(manifest, genesis=huge)))
    with (folder / "model.safetensors").open("ab") as file:
        file.truncate(1 << 36)
    monkeypatch.setattr("dlx.node.runs.listing.file_hash", lambda path: pytest.fail(f"{path} is read"))
    assert found(folder) == {"manifest": "FAIL"}


def test_what_is_wrong_with_the_files_is_named_and_a_pipe_among_them_is_no_wait(
    folder: Path, findings: Callable[..., list[Diagnosis]], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "README.md").unlink()
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("/etc")
    os.mkfifo(folder / "a\x1b[31mpipe")
    last = findings(folder)[-1]
    assert (last.check, last.verdict) == ("files", "FAIL")
    assert "changed: config.json, tokenizer.json; missing: README.md; not listed: a\ufffd[31mpipe" in last.text
    with pytest.raises(typer.Exit) as ended:
        _report(findings(folder), True)
    assert ended.value.exit_code == 1 and json.loads(capsys.readouterr().out)["cite"] is None


def test_lists_that_are_pipes_or_name_a_pipe_are_findings(
    folder: Path, findings: Callable[..., list[Diagnosis]]
) -> None:
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    write_sums(folder)
    assert "no plain file: tokenizer.json" in findings(folder)[-1].text, "though the list has it"
    for name in ("SHA256SUMS", "manifest.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        assert f"it has no file {name}" in findings(folder)[-1].text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 100_000, "no folder that `dlx-node pull` wrote"),
        (" " * (1 << 21), "its provenance.json is too long"),
        ("[]", "names no run"),
        ("{}", "names no run"),
        ('{"run": null}', "names no run"),
        ('{"run": 5}', "names no run"),
        ('{"run": "0x\x1b[31m"}', "no folder that `dlx-node pull` wrote"),
        ('{"run": "0x\\u001b[31m"}', "names no run"),
        (json.dumps({"run": "0x" + "ab" * 8}), "names no run"),
    ],
)
def test_a_provenance_that_names_no_run_is_a_finding_without_asking_the_chain(
    content: str, said: str, folder: Path
) -> None:
    (folder / "provenance.json").write_text(content)
    (only,) = json.loads(dlx("verify", folder, "--json", code=1).stdout)["findings"]
    assert said in only["said"] and (only["check"], only["verdict"]) == ("ledger", "FAIL")
    assert "FAIL  ledger" in dlx("verify", folder, code=1).stdout


def test_a_run_that_the_ledger_does_not_have_is_a_finding(
    honest_history: History, folder: Path, tmp_path: Path
) -> None:
    stated = json.loads((folder / "provenance.json").read_text())
    (folder / "provenance.json").write_text(json.dumps(stated | {"run": "0x" + "ab" * 32}))
    reach = ("--rpc-url", honest_history.rpc_url, "--chain-id", stated["chain_id"], "--ledger", stated["ledger"])
    home = ("--datadir", tmp_path / "home", "--offline", "--json")
    DataDir(tmp_path / "home").create()
    (only,) = json.loads(dlx("verify", folder, *reach, *home, code=1).stdout)["findings"]
    assert f"the ledger {stated['ledger']} has no run 0x{'ab' * 32}" in only["said"] and only["verdict"] == "FAIL"


def test_a_provenance_without_ledger_and_a_name_that_steers_terminals_are_findings(
    honest_history: History, folder: Path, tmp_path: Path
) -> None:
    (folder / "a\x1b[31m.py").write_text("")
    write_sums(folder)
    work = tmp_path / "work"
    work.mkdir()
    blobs = Blobs([Folder(honest_history.blobs, own=False)], work, lambda *what: None)
    stated = read_provenance(folder)
    found = list(verify(folder, stated, honest_history.client().domain, honest_history.view(), blobs))
    assert found[-1].verdict == "FAIL" and found[-1].text.endswith(": a\ufffd[31m.py")
    with pytest.raises(typer.Exit) as ended:
        _report(found, True, {key: stated[key] for key in ("run", "version")})
    assert ended.value.exit_code == 1


def test_what_cannot_be_compared_is_not_cited(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated = json.loads((folder / "provenance.json").read_text())
    open_ = Diagnosis("weights", "WARN", "says to be a mean")
    for findings, code in ([], 4), ([Diagnosis("files", "PASS", ""), open_], 4), ([Diagnosis("files", "PASS", "")], 0):
        with pytest.raises(typer.Exit) as ended:
            _report(findings, True, stated)
        said = json.loads(capsys.readouterr().out)
        assert (ended.value.exit_code, said["established"], said["cite"] is not None) == (code, code == 0, code == 0)


@pytest.mark.parametrize(
    ("key", "value"), [("version", 2), ("version", 99), ("version", True), ("loss", 0.1), ("stages", [])]
)
def test_a_provenance_that_the_ledger_does_not_have_is_found(
    folder: Path, found: Callable[..., dict[str, str]], key: str, value: Any
) -> None:
    stated = json.loads((folder / "provenance.json").read_text())
    (folder / "provenance.json").write_text(json.dumps(stated | {key: value}))
    write_sums(folder)
    assert "FAIL" in found(folder).values()


def test_each_version_is_given_once_and_the_last_one_always(honest_history: History) -> None:
    whole = honest_history.view()

    class Reader:
        """Sees one more round with each look."""

        def __init__(self) -> None:
            self.looks = 0

        def view(self) -> Any:
            self.looks += 1
            if self.looks % 3:
                raise LedgerUnavailable("no answer")
            return Seen(whole, min(self.looks // 6, 3))

    class Seen:
        def __init__(self, view: RunView, sealed: int) -> None:
            self._view, self._sealed = view, sealed

        def __getattr__(self, name: str) -> Any:
            return getattr(self._view, name)

        def next_round(self, stage: int) -> int:
            return self._sealed

        @property
        def finished(self) -> bool:
            return self._sealed == 3

    def versions(every: int) -> list[int]:
        reader, said = Reader(), list[str]()
        found = [version for _, version in follow(reader, [], every, said.append, lambda seconds: None)]  # type: ignore[arg-type]
        assert len(said) == reader.looks // 3, "a silent chain node is waited for, and told once"
        return found

    assert versions(1) == [0, 1, 2, 3]
    assert versions(2) == [0, 2, 3]


# ---- lineage


def test_a_run_from_a_pulled_folder_says_which_version_it_starts_from(folder: Path) -> None:
    stated, said = json.loads((folder / "provenance.json").read_text()), list[str]()
    draft: Any = msgspec.defstruct("Drafted", [("model", DraftModel)])(DraftModel(source=str(folder)))
    lineage = _lineage(draft, said.append)
    assert lineage == Lineage(**{key: stated[key] for key in Lineage.__struct_fields__})
    said.clear()
    (folder / "provenance.json").write_text(json.dumps(stated | {"dtype": "float16"}))
    assert _lineage(draft, said.append) is None and "bytes" in said[-1], "rounded, as it says"
    (folder / "provenance.json").write_text(json.dumps(stated))
    (folder / "model.safetensors").write_bytes(b"other weights")
    assert _lineage(draft, said.append) is None and "warning" in said[-1]
    (folder / "provenance.json").unlink()
    assert _lineage(draft, said.append) is None, "of an unknown origin, and silent about it"


def test_the_audit_compares_the_first_weights_with_the_version_that_is_named(honest_history: History) -> None:
    domain, view, manifest = honest_history.client().domain, honest_history.view(), honest_history.manifest
    lineage = Lineage(domain.chain_id, domain.ledger, "0x" + view.run.hex(), 3)
    assert is_here(lineage, domain) and not is_here(lineage, Domain(5, domain.ledger))
    right = [
        msgspec.structs.replace(first, sha256=honest_history.versions[stage, 3].hex())
        for stage, first in enumerate(manifest.genesis)
    ]
    child = msgspec.structs.replace(manifest, lineage=lineage, genesis=right)
    assert parse(canonical_bytes(child)) == child

    def verdict(child: Any, parent: RunView | None, other: Any = manifest) -> list[str]:
        report = Report(view.run)
        audit_lineage(report, child, parent, other)
        return [name for name, count in report.counts().items() for _ in range(count)]

    assert verdict(child, view) == ["PASS"]
    assert verdict(manifest, view) == []
    another = msgspec.structs.replace(child, genesis=right[::-1])
    assert verdict(another, view) == ["FAIL"]
    assert verdict(another, view, None) == ["WARN"], "perhaps cut in other stages"
    assert verdict(child, None) == ["SKIP"]
    later = msgspec.structs.replace(child, lineage=msgspec.structs.replace(lineage, version=4))
    assert verdict(later, view) == ["FAIL"]


# ---- citations


def test_a_citation_is_read_as_it_is_written() -> None:
    cited = citation.Citation(10, checksum(b"\xab" * 20), "0x" + "cd" * 32, 100)
    assert citation.parse(str(cited)) == cited
    assert citation.parse(str(cited._replace(version=None))).version is None


@pytest.mark.parametrize("text", ["dlx:", "dlx:1/0x12/abcdef", "dlx:1/0x" + "1" * 40 + "/abc", "dlx:x", "dlx:1/2/3@-1"])
def test_what_is_no_citation_is_refused(text: str) -> None:
    with pytest.raises(UsageFailure, match="dlx:CHAIN/LEDGER/RUN@VERSION"):
        citation.parse(text)


@pytest.mark.parametrize("form", [Form("bfloat16"), Form("float16", 20_000), Form("float32", 20_000)], ids=str)
def test_a_folder_in_another_form_is_compared_with_the_sealed_weights(
    form: Form, honest_history: History, found: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    client, view, out = honest_history.client(), honest_history.view(), tmp_path / "formed"
    sources = [Folder(honest_history.blobs, own=False)]
    told = pull(client.domain, view, 3, out, sources, lambda *what: None, lambda line: None, form=form)
    assert told["dtype"] == form.dtype and f"llama, {form.dtype}" in (out / "README.md").read_text()
    assert set(found(out).values()) == {"PASS"}
    assert found(out, blobs=False)["weights"] == ("PASS" if form.dtype == "float32" else "WARN")
    with pytest.raises(Failure, match=r"pull it without --dtype"):
        read_sums(out, view, 3)
    index = out / "model.safetensors.index.json"
    for file in [path.name for path in out.glob("model*")]:
        folder = Path(shutil.copytree(out, tmp_path / f"with other {file}"))
        content = bytearray((folder / file).read_bytes())
        content[-1] ^= 1
        (folder / file).write_bytes(content)
        write_sums(folder)
        assert "FAIL" in found(folder).values(), file
    if index.exists():
        places = json.loads(index.read_text())
        places["weight_map"]["model.norm.weight"] = "../x.safetensors"
        index.write_text(json.dumps(places))
        assert found(out)["files"] == "FAIL"


def test_a_gguf_file_is_compared_with_the_sealed_weights(
    honest_history: History,
    found: Callable[..., dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pulled() -> None:
        client, sources = honest_history.client(), [Folder(honest_history.blobs, own=False)]
        view, form = honest_history.view(), Form("bfloat16", gguf=True)
        pull(client.domain, view, 3, tmp_path / "gguf", sources, lambda *what: None, lambda line: None, form=form)

    with pytest.raises(Failure, match=r"GGUF: tokenizer\.json cuts text in none of the ways"):
        pulled()
    within = Vocabulary.parse(bpe(rest={"post_processor": None}).content, 0, "test")  # the model has 256 rows
    beside = Beside(within, USAGE, True)
    for module in ("pull", "verify"):
        monkeypatch.setattr(f"dlx.node.checkpoints.{module}.read_beside", lambda *what: beside)
    pulled()
    names = {"README.md", "SHA256SUMS", "manifest.json", "model.gguf", "provenance.json"}
    assert {path.name for path in (tmp_path / "gguf").iterdir()} == names
    assert "llama-cli -m model.gguf" in (tmp_path / "gguf" / "README.md").read_text()
    assert set(found(tmp_path / "gguf").values()) == {"PASS"}
    shutil.rmtree(tmp_path / "work True")
    with (tmp_path / "gguf" / "model.gguf").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
    write_sums(tmp_path / "gguf")
    assert found(tmp_path / "gguf")["weights"] == "FAIL"
    assert found(tmp_path / "gguf", blobs=False)["weights"] == "WARN"


def test_another_hash_of_the_model_is_found(folder: Path, found: Callable[..., dict[str, str]]) -> None:
    stated = json.loads((folder / "provenance.json").read_text())
    for change, check in (({"model": "0" * 64}, "weights"), ({"dtype": "float64"}, "files"), ({"dtype": []}, "files")):
        (folder / "provenance.json").write_text(json.dumps(stated | change))
        write_sums(folder)
        assert found(folder)[check] == "FAIL"
