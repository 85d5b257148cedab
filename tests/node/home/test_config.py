import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlx.ground import durable
from dlx.ledger.transactions.fees import Limits
from dlx.node.home import config
from dlx.node.home.datadir import DataDir, NotPrivate
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.ledgers import limits_of
from dlx.node.home.settings import Settings
from dlx.training.models.placement import Placement


def test_flag_beats_environment_beats_file_beats_embedded_chain_beats_default(folder: DataDir) -> None:
    assert config.load(folder, {}, {}).chain_id == 31337
    folder.chain.mkdir()
    ledger, campaigns = "0x" + "11" * 20, "0x" + "22" * 20
    found = {"rpc_url": "http://127.0.0.1:1", "chain_id": 1, "ledger": ledger, "campaigns": campaigns}
    folder.contracts.write_text(json.dumps(found))
    loaded = config.load(folder, {}, {})
    assert (loaded.chain_id, loaded.ledger, loaded.campaigns) == (1, ledger, campaigns)
    folder.config.write_text("chain_id = 2\n")
    assert config.load(folder, {}, {}).chain_id == 2
    assert config.load(folder, {}, {"DLX_CHAIN_ID": "3"}).chain_id == 3
    assert config.load(folder, {"chain_id": 4}, {"DLX_CHAIN_ID": "3"}).chain_id == 4
    assert config.load(folder, {"chain_id": None}, {"DLX_CHAIN_ID": "3"}).chain_id == 3


@pytest.mark.parametrize(
    ("flags", "environ", "text"),
    [
        ({"rpc_url": ["https://a/key", "http://b:1"]}, {}, ""),
        ({"rpc_url": ["https://a/key,http://b:1"]}, {}, ""),
        ({}, {"DLX_RPC_URL": "https://a/key,http://b:1"}, ""),
        ({}, {}, 'rpc_url = ["https://a/key", "http://b:1"]'),
        ({}, {}, 'rpc_url = "https://a/key, http://b:1"'),
    ],
)
def test_several_endpoints_are_named_in_every_way(folder: DataDir, flags: dict, environ: dict, text: str) -> None:
    folder.config.write_text(text)
    found = config.load(folder, flags, environ).rpc_url
    assert found == ("https://a/key", "http://b:1") and config.redacted_urls(found) == "https://a, http://b:1"


def test_lists_come_from_the_environment_separated_by_commas_or_spaces(folder: DataDir) -> None:
    found = config.load(folder, {}, {"DLX_ANNOUNCE": "/ip4/10.0.0.1/tcp/1,/ip4/10.0.0.2/tcp/2 /dns/a/tcp/3"})
    assert found.announce == ("/ip4/10.0.0.1/tcp/1", "/ip4/10.0.0.2/tcp/2", "/dns/a/tcp/3")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('rpc = "http://x"', "'rpc'"),
        ('chain_id = "31337"', "chain_id"),
        ("chain_id = 0", "chain_id"),
        ('log_format = "xml"', "log_format"),
        ('http_host = "0.0.0.0"', "http_host"),
        ("http_port = 65536", "http_port"),
        ("disk_quota = -1", "disk_quota"),
        ("max_fee = 0", "max_fee"),
        ("max_tip = -1", "max_tip"),
        ("daily_budget = nan", "daily_budget"),
        (
            'disk_quota = "plenty"',
            "disk_quota: expected a number of bytes, or text such as 20GB or 512MiB (got 'plenty')",
        ),
        ('disk_floor = "1XB"', "disk_floor"),
        ('ledger = "0x12"', "ledger"),
        ('rpc_url = "127.0.0.1:8545"', "rpc_url"),
        ('listen = "/ip4/127.0.0.1/tcp/0"', "listen"),
        ("listen = []", "listen"),
        ('listen = ["/ip4/1.2.3.4/tcp/1", "here"]', "(got '/ip4/1.2.3.4/tcp/1', 'here')"),
        ('network = "../x"', "network"),
        ('device = "gpu"', "device: expected auto, cpu, cuda, cuda:N or mps (got 'gpu')"),
        ('device = "cuda:"', "device"),
        ("threads = 0", "threads: expected auto, or a number from 1 to 1024 (got 0)"),
        ('threads = "all"', "threads"),
        ("threads = true", "threads"),
        ("machines = 65", "machines: expected a number from 1 to 64 (got 65)"),
        ('rendezvous = "10.0.0.1"', "rendezvous: expected HOST:PORT (got '10.0.0.1')"),
        ("tensor_parallel = 0", "tensor_parallel: expected a number from 1 to 64 (got 0)"),
        ("ranks = 0", "ranks: expected a number from 1 to 64 (got 0)"),
        ('devices = ["cuda:0", "gpu"]', "devices: expected auto, cpu, cuda, cuda:N or mps"),
        ('compile = "yes"', "compile"),
        ('checkpoint_activations = "some"', "checkpoint_activations"),
        ("checkpoint_activations = []", "checkpoint_activations"),
        ("chain_id = = 1", "TOML"),
    ],
)
def test_a_wrong_config_file_is_refused_by_file_and_key(folder: DataDir, text: str, named: str) -> None:
    folder.config.write_text(text + "\n")
    with pytest.raises(UsageFailure) as caught:
        config.load(folder, {}, {})
    assert str(folder.config) in str(caught.value) and named in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_config_file_is_read_and_changed_as_an_editor_wrote_it(folder: DataDir, encoding: str) -> None:
    folder.config.write_text("# Grüße\r\nchain_id = 5\r\n", encoding=encoding, newline="")
    assert config.load(folder, {}, {}).chain_id == 5
    config.change(folder.config, "chain_id", "6")
    assert folder.config.read_bytes() == "# Grüße\nchain_id = 6\n".encode()


def test_a_config_file_in_another_encoding_says_which_are_read(folder: DataDir) -> None:
    folder.config.write_bytes("# Grüße\n".encode("cp1252"))
    with pytest.raises(UsageFailure, match=r"config\.toml: is neither UTF-8, nor .*: save it as UTF-8 text"):
        config.load(folder, {}, {})


def test_a_wrong_environment_variable_is_named(folder: DataDir) -> None:
    with pytest.raises(UsageFailure, match="DLX_HTTP_PORT"):
        config.load(folder, {}, {"DLX_HTTP_PORT": "many"})


def test_a_word_that_is_none_of_several_is_refused_with_all_of_them(folder: DataDir) -> None:
    with pytest.raises(UsageFailure, match="checkpoint_activations: expected none or layers or selective"):
        config.load(folder, {"checkpoint_activations": "some"}, {})


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("123", 123), ("1000B", 1000), ("20GB", 20_000_000_000), ("20 GiB", 20 << 30), ("1.5TiB", 3 << 39),
     ("512M", 512_000_000), ("3kB", 3000)],
)  # fmt: skip
def test_sizes_are_bytes_or_have_a_unit(folder: DataDir, text: str, size: int) -> None:
    assert config.load(folder, {"disk_quota": text}, {"DLX_DISK_FLOOR": text}).disk_quota == size
    folder.config.write_text(f'disk_floor = "{text}"\n')
    assert config.load(folder, {}, {}).disk_floor == size
    folder.config.write_text(f"disk_floor = {size}\n")
    assert config.load(folder, {}, {}).disk_floor == size


def test_where_to_train_is_named_in_every_way(folder: DataDir) -> None:
    assert config.load(folder, {}, {}).placement == Placement()
    wanted = Placement(device="cuda:1", threads=3, compile=True, checkpoint="selective")
    folder.config.write_text('device = "cuda:1"\nthreads = 3\ncompile = true\ncheckpoint_activations = "selective"\n')
    assert config.load(folder, {}, {}).placement == wanted
    environ = {"DLX_DEVICE": "cpu", "DLX_THREADS": "5", "DLX_COMPILE": "false", "DLX_CHECKPOINT_ACTIVATIONS": "true"}
    assert config.load(folder, {}, environ).placement == Placement(device="cpu", threads=5, checkpoint="layers")
    flags = {"device": "mps", "threads": "auto", "checkpoint_activations": "none"}
    assert config.load(folder, flags, environ).placement == Placement(device="mps")
    shared = config.load(folder, flags | {"devices": ["cuda:0,cuda:2", "cuda:3"], "ranks": 3}, environ).placement
    assert shared == Placement(device="mps", ranks=3, devices=("cuda:0", "cuda:2", "cuda:3"))


def test_limits_of_fees_are_exact_and_the_embedded_chain_has_no_budget(folder: DataDir) -> None:
    folder.config.write_text("chain_id = 10\nmax_fee = 0.1\nmax_tip = 3\ndaily_budget = 0.07\n")
    assert limits_of(config.load(folder, {}, {})) == Limits(10**8, 3 * 10**9, 7 * 10**16)
    assert limits_of(config.load(folder, {"daily_budget": 0.0}, {})).budget is None
    assert limits_of(config.load(folder, {}, {"DLX_CHAIN_ID": "31337"})).budget is None


def test_the_written_file_reads_back_and_is_never_overwritten(folder: DataDir) -> None:
    given = {"rpc_url": "http://127.0.0.1:9", "listen": ["/ip4/127.0.0.1/tcp/7"], "http_port": 9}
    assert config.write(folder.config, given)
    assert config.load(folder, {}, {}) == Settings(
        rpc_url=("http://127.0.0.1:9",), listen=("/ip4/127.0.0.1/tcp/7",), http_port=9
    )
    before = folder.config.read_bytes()
    assert not config.write(folder.config, {"http_port": 1})
    assert folder.config.read_bytes() == before


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=80))
def test_any_password_file_name_survives_the_config_file(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = DataDir(tmp_path_factory.mktemp("node"))
    config.write(folder.config, {"password_file": name})
    assert config.load(folder, {}, {}).password_file == name


def test_no_key_of_a_hosted_endpoint_is_shown() -> None:
    assert config.redacted_urls(["https://me:secret@rpc.example:8545/v2/KEY?x=KEY"]) == "https://rpc.example:8545"


def test_the_folder_is_the_flag_or_dlx_home_or_the_networks() -> None:
    assert DataDir.locate(Path("/a"), "devnet", {"DLX_HOME": "/b"}).root == Path("/a")
    assert DataDir.locate(None, "devnet", {"DLX_HOME": "/b"}).root == Path("/b")
    assert DataDir.locate(None, "main", {}).root == Path.home() / ".dlx" / "main"


def test_the_folder_is_its_owners_only(folder: DataDir) -> None:
    for path in (folder.root, folder.keystore, folder.blobs, folder.state, folder.logs):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_secrets_that_others_can_read_are_refused(folder: DataDir, mode: int) -> None:
    key = folder.keystore / "key"
    durable.create(key, b"x")
    durable.create(folder.node_key, b"x")
    folder.check_secrets()
    for path in (key, folder.node_key):
        os.chmod(path, mode)
        with pytest.raises(Failure) as caught:
            folder.check_secrets()
        assert str(caught.value).endswith(f"mode is {mode:04o}: run `chmod 600 {path}`")
        os.chmod(path, 0o600)


def test_a_file_system_without_modes_is_said_where_chmod_would_mend_nothing(
    folder: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.create()
    folder.node_key.write_text("")
    monkeypatch.setattr(durable, "keeps_modes", lambda place: False)
    with pytest.raises(NotPrivate, match=r"its mode is 0644: move it .* chmod changes nothing$"):
        folder.check_secrets()


def test_an_existing_secret_is_never_replaced(folder: DataDir) -> None:
    durable.create(folder.node_key, b"first")
    with pytest.raises(FileExistsError):
        durable.create(folder.node_key, b"second")
    assert folder.node_key.read_text() == "first"
    assert [path.name for path in folder.root.iterdir() if path.is_file()] == ["node.key"]


def test_blobs_of_all_nodes_in_the_folder_are_found(folder: DataDir) -> None:
    kept = [folder.root / name / "blobs" for name in ("nodes/a", "stages/0", "stages/1")]
    for path in kept:
        path.mkdir(parents=True)
    assert folder.blob_folders == [folder.blobs, *kept]
