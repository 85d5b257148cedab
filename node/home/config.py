"""The node's settings and where each comes from: flag, DLX_* environment, config.toml, embedded chain, default."""

from __future__ import annotations

import ipaddress
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec

from dlx.ground import durable
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import UsageFailure
from dlx.node.home.hours import wrong_hours
from dlx.training.models.placement import MOST_RANKS, MOST_THREADS, Checkpoint, Placement, wrong_address, wrong_device


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every field is a key of config.toml, a flag (--rpc-url) and an environment variable (DLX_RPC_URL)."""

    network: str = "devnet"
    rpc_url: tuple[str, ...] = ("http://127.0.0.1:8545",)
    chain_id: int = 31337
    ledger: str = ""
    max_fee: float = 100.0
    max_tip: float = 30.0
    daily_budget: float = 0.05
    listen: tuple[str, ...] = ("/ip4/127.0.0.1/tcp/4650",)  # the same after a restart, as others remember it
    announce: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    http_host: str = "127.0.0.1"
    http_port: int = 0
    log_format: Literal["text", "json"] = "text"
    password_file: str = ""
    site: str = ""
    private_data: str = ""
    device: str = "auto"
    threads: int | str = "auto"
    compile: bool = False
    checkpoint_activations: Checkpoint = "none"
    ranks: int = 1
    devices: tuple[str, ...] = ()
    machines: int = 1
    rendezvous: str = ""
    tensor_parallel: int = 1
    disk_quota: int = 0
    disk_floor: int = 1 << 30
    data_cache: int = 64 * 10**9
    mirror_data: bool = False
    audit_share: float = 0.05
    up_limit: int = 0
    down_limit: int = 0
    schedule: tuple[str, ...] = ()
    when_idle: bool = False
    resting: Literal["keep", "leave"] = "keep"

    @property
    def placement(self) -> Placement:
        """Where and how to train."""
        threads = self.threads if isinstance(self.threads, int) else 0
        return Placement(
            device=self.device, threads=threads, compile=self.compile, checkpoint=self.checkpoint_activations,
            ranks=self.ranks, devices=self.devices, machines=self.machines, rendezvous=self.rendezvous,
            tensor_parallel=self.tensor_parallel,
        )  # fmt: skip


HELP: dict[str, str] = {
    "network": "Name of the network; it only chooses the default data folder, ~/.dlx/<network>.",
    "rpc_url": "JSON-RPC endpoints of the chain that carries the ledger; the first that is well is asked.",
    "chain_id": "Chain id that the endpoints must answer with.",
    "ledger": "Address of the TrainingLedger contract.",
    "max_fee": "Most that a unit of gas may cost, in gwei, base fee and tip together; above it nothing is signed.",
    "max_tip": "Most of that which may be a tip, in gwei.",
    "daily_budget": "Most that transactions may cost in 24 hours, in ETH; 0: any sum, as always on chain 31337.",
    "listen": "Multiaddrs that the node listens on.",
    "announce": "Multiaddrs that others should dial, where they differ from those it listens on.",
    "bootstrap": "Multiaddrs (with /p2p/...) of peers to start from, beside those on the ledger.",
    "http_host": "Loopback address of the node's HTTP endpoint.",
    "http_port": "Port of the node's HTTP endpoint; 0 takes a free one.",
    "log_format": "Format of the log lines: text or json.",
    "password_file": "File whose first line is the password of the folder's keys.",
    "site": "Name of the site whose other machines this node shares a replica with; its key is in the folder.",
    "private_data": "Folder of prepared data to train on instead of the run's, which has to allow it; never served.",
    "disk_quota": "Bytes (or 20GB, 1.5TiB) that blobs may take; 0: any number. Old payloads and versions give way.",
    "disk_floor": "Bytes (or 20GB, 512MiB) that blobs leave free on the disk; 0: none.",
    "data_cache": "Bytes (or 20GB, 1.5TiB) of training data that stay here after their round; older shards give way.",
    "mirror_data": "Fetch all of the run's training data and first weights, and keep them for others.",
    "audit_share": "Part of the seconds trained that checking others' drawn work may take, 0 to 1; alarms go beyond.",
    "up_limit": "Bytes a second (or 2MB, 500kB) to send to peers beyond this machine's own networks; 0: any number.",
    "down_limit": "Bytes a second (or 2MB, 500kB) to receive from them; 0: any number.",
    "schedule": "Hours in which to work, local time, such as 22:00-06:00; outside of them the node rests.",
    "when_idle": "Rest while other programs take a quarter of this machine's cores, or of an NVIDIA GPU (nvidia-smi), "
    "or somebody sits at it (logind's hint, xprintidle); elsewhere than on Linux only the cores are looked at.",
    "resting": "What a resting node does: keep (the slot, by the fewest inner steps that count) or leave (it).",
    "device": "What to train on: auto (a GPU, if one is here), cpu, cuda, cuda:N or mps.",
    "threads": "CPU threads to train with: a number, or auto (the cores that the node may use).",
    "ranks": "Processes that share the stage, each with its part of every parameter: on the CPU, or cuda:0, cuda:1 ...",
    "devices": "The devices of the ranks, cuda:0,cuda:1, where they are others; as many ranks as devices.",
    "machines": "Machines of this site that share the stage: this one, and as many others that run `dlx-node rank`.",
    "rendezvous": "HOST:PORT of this machine for them to come to, open to nobody else.",
    "tensor_parallel": "Ranks that compute each matrix product together, next to each other; it divides their number.",
    "compile": "Train with compiled layers (torch.compile): faster after some minutes; a CPU needs a C++ compiler.",
    "checkpoint_activations": "What to compute again in the backward pass, to save memory: none, layers (all but their "
    "inputs; about a third more time) or selective (all but products of matrices and attention).",
}


def load(datadir: DataDir, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Settings of a data folder. `flags` holds the command line's values; None means not given.

    Raises UsageFailure naming the source and the key of a value that cannot be.
    """
    return Settings(**{key: value for key, (value, _) in sourced(datadir, flags, environ).items()})


def sourced(datadir: DataDir, flags: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    """Of every setting that is not its default: its value, and the source that it comes from. Raises as `load`."""
    return _merged(
        (str(datadir.contracts), _embedded_chain(datadir.contracts)),
        (str(datadir.config), _config_file(datadir.config)),
        ("environment", _environment(environ)),
        ("command line", flags),
    )


def of_flags(flags: Mapping[str, Any]) -> Settings:
    """Settings of a command that has no data folder. Raises UsageFailure."""
    return Settings(**{key: value for key, (value, _) in _merged(("command line", flags)).items()})


def write(path: Path, given: Mapping[str, Any]) -> bool:
    """Write a commented config.toml with the given keys set; False, and nothing done, if there is one already."""
    lines = [
        "# Settings of this dlx-node. A flag or a DLX_* environment variable goes before a line here;",
        "# a line that is commented out shows the default.",
    ]
    defaults = Settings()
    for key in Settings.__struct_fields__:
        value = given.get(key)
        shown = getattr(defaults, key) if value is None else _checked("command line", key, value)
        lines += ["", f"# {HELP[key]}", f"{'# ' if value is None else ''}{key} = {_toml(shown)}"]
    try:
        with path.open("x") as file:
            file.write("\n".join(lines) + "\n")
    except FileExistsError:
        return False
    return True


def change(path: Path, key: str, text: str | None) -> None:
    """Set a key of config.toml to what `text` means in an environment variable; None: to its default. Comments and
    other keys stay. Raises UsageFailure for a key or value that cannot be, or a file that is laid out otherwise."""
    if key not in Settings.__struct_fields__:
        raise UsageFailure(f"{key}: unknown key; the keys are {', '.join(Settings.__struct_fields__)}")
    before, default = _config_file(path), getattr(Settings(), key)
    if text is None:
        line, meant = f"# {key} = {_toml(default)}", {name: value for name, value in before.items() if name != key}
    else:
        value = _checked("config set", key, _split(text) if isinstance(default, tuple) else text, is_text=True)
        line = f"{key} = {_toml(value)}"
        meant = before | tomllib.loads(line)
    lines = path.read_text().splitlines() if path.is_file() else []
    places = [at for at, one in enumerate(lines) if re.match(rf"(# *)?{key} *=", one)]
    # Where it is set, else where its default is commented out.
    at = next((at for at in places if not lines[at].startswith("#")), places[0] if places else None)
    changed = [*lines, "", f"# {HELP[key]}", line] if at is None else [*lines[:at], line, *lines[at + 1 :]]
    content = "\n".join(changed) + "\n"
    try:
        found: dict[str, Any] | None = tomllib.loads(content)
    except tomllib.TOMLDecodeError:
        found = None
    if found != meant:
        raise UsageFailure(f"{path} sets {key} over several lines: edit it by hand")
    durable.write_bytes(path, content.encode(), path.stat().st_mode & 0o777 if path.exists() else durable.SECRET)


def _merged(*sources: tuple[str, Mapping[str, Any]]) -> dict[str, tuple[Any, str]]:
    """What each source says, the later ones before the earlier."""
    values: dict[str, tuple[Any, str]] = {}
    for source, given in sources:
        for key, value in given.items():
            if value is not None:
                values[key] = _checked(source, key, value, is_text=source == "environment"), source
    return values


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def shown_urls(urls: Sequence[str]) -> str:
    """The URLs without user, path and query, which hold the API keys of hosted endpoints: fit for logs and status."""
    parts = [urlsplit(url) for url in urls]
    return ", ".join(f"{one.scheme}://{one.netloc.rpartition('@')[2]}" for one in parts)


def ledger_options(settings: Settings) -> str:
    """The options by which a command on any machine finds the ledger, without what only we may know."""
    url = quote(shown_urls(settings.rpc_url[:1]))
    return f"--rpc-url {url} --chain-id {settings.chain_id} --ledger {settings.ledger}"


def _embedded_chain(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
        return {key: found[key] for key in ("rpc_url", "chain_id", "ledger")}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageFailure(f"{path} is damaged ({error!r}): delete it, `dlx-node chain` writes it again") from error


def _config_file(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageFailure(f"{path} is not valid TOML: {error}") from error
    unknown = sorted(set(found) - set(Settings.__struct_fields__))
    if unknown:
        known = ", ".join(Settings.__struct_fields__)
        raise UsageFailure(f"{path}: unknown key {', '.join(map(repr, unknown))}; the keys are {known}")
    return found


def _environment(environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in Settings.__struct_fields__:
        value = environ.get(f"DLX_{key.upper()}")
        if value is not None:
            found[key] = _split(value) if isinstance(getattr(Settings(), key), tuple) else value
    return found


def _checked(source: str, key: str, value: Any, is_text: bool = False) -> Any:
    """The value in its field's type, or one line that names where it came from."""
    name = f"DLX_{key.upper()}" if source == "environment" else key
    try:
        meant = _meant(key, value)
        # The environment knows only text, so there "8545" is a number; in the file it is a mistake.
        result = msgspec.convert(meant, _TYPES[key], strict=not is_text)
    except msgspec.ValidationError as error:
        choices = get_args(_TYPES[key]) if get_origin(_TYPES[key]) is Literal else ()
        why = f"expected {' or '.join(choices)}" if choices else _PLAIN.get(_TYPES[key], str(error))
        raise UsageFailure(f"{source}: {name}: {why} (got {value!r})") from None
    wrong = _RULES[key](result) if key in _RULES else None
    if wrong:
        raise UsageFailure(f"{source}: {name}: {wrong} (got {value!r})")
    return result


def _meant(key: str, value: Any) -> Any:
    """What text stands for where another kind is wanted."""
    if key in _SIZES and isinstance(value, str):
        return _bytes(value)
    if key == "threads" and isinstance(value, str) and re.fullmatch(r"\d{1,9}", value, re.ASCII):
        return int(value)
    if key == "checkpoint_activations" and isinstance(value, bool | str):  # it was a switch once
        return {"true": "layers", "false": "none"}.get(str(value).lower(), value)
    if key in ("rpc_url", "devices", "schedule") and isinstance(value, str | list):
        return [one for part in ([value] if isinstance(value, str) else value) for one in _split(part)]
    return value


def _split(text: str) -> list[str]:
    return text.replace(",", " ").split() if isinstance(text, str) else [text]


def _bytes(text: str) -> int:
    """The number of bytes that "20GB" or "1.5 TiB" means; -1 for what means none."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?) ?(?:([kKMGT])(i?))?B?", text.strip(), re.ASCII)
    if found is None:
        return -1
    number, letter, binary = found.groups()
    power = " KMGT".index(letter.upper()) if letter else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


def _wrong_size(size: int) -> str | None:
    return None if 0 <= size < 2**63 else "expected a number of bytes, or text such as 20GB or 512MiB"


def _wrong_threads(count: int | str) -> str | None:
    fine = count == "auto" or (isinstance(count, int) and 0 < count <= MOST_THREADS)
    return None if fine else f"expected auto, or a number from 1 to {MOST_THREADS}"


def _wrong_network(name: str) -> str | None:
    plain = name.replace("-", "").replace("_", "").isalnum() and name.isascii() and len(name) <= 32
    return None if plain else "expected letters, digits, - and _ only, at most 32"


def _wrong_urls(urls: tuple[str, ...]) -> str | None:
    try:
        parts = [urlsplit(url) for url in urls]
        fine = all(
            one.scheme in ("http", "https", "ws", "wss") and one.hostname and (one.port is None or one.port > 0)
            for one in parts
        )
    except ValueError:
        fine = False
    return (
        None
        if fine and 0 < len(urls) <= 16
        else "expected 1 to 16 URLs that begin with http://, https://, ws:// or wss://"
    )


def _wrong_address(address: str) -> str | None:
    if address == "":
        return None
    try:
        fine = address.startswith("0x") and len(bytes.fromhex(address[2:])) == 20
    except ValueError:
        fine = False
    return None if fine else "expected an address of 0x and 40 hex digits"


def _wrong_multiaddrs(addresses: tuple[str, ...]) -> str | None:
    if len(addresses) > 16 or any(len(address) > 256 for address in addresses):
        return "expected at most 16 multiaddrs of at most 256 characters"
    if not all(map(_is_multiaddr, addresses)):
        return "expected multiaddrs such as /ip4/203.0.113.7/tcp/4001"
    return None


def _is_multiaddr(text: str) -> bool:
    """Of plain TCP, as `p2p.addresses` takes them, which is slow to import."""
    found = re.fullmatch(r"/(ip4|ip6|dns[46]?)/([^/]+)/tcp/(\d{1,5})(/p2p/[^/]+)?", text, re.ASCII)
    if found is None or int(found[3]) > 65535:
        return False
    try:
        return found[1].startswith("dns") or ipaddress.ip_address(found[2]).version == int(found[1][2])
    except ValueError:
        return False


def _wrong_bootstrap(addresses: tuple[str, ...]) -> str | None:
    if wrong := _wrong_multiaddrs(addresses):
        return wrong
    named = all("/p2p/" in address for address in addresses)
    return None if named else "expected multiaddrs that end in /p2p/ and the peer's id"


_TYPES = get_type_hints(Settings)
_PLAIN = {bool: "expected true or false", int: "expected a whole number", float: "expected a number"}
_SIZES = ("disk_quota", "disk_floor", "data_cache", "up_limit", "down_limit")
_RULES: dict[str, Callable[[Any], str | None]] = {
    "network": _wrong_network,
    "rpc_url": _wrong_urls,
    "chain_id": lambda number: None if 0 < number < 2**63 else "expected a positive number",
    "ledger": _wrong_address,
    "max_fee": lambda fee: None if 0 < fee <= 1e6 else "expected gwei, above 0 and at most 1,000,000",
    "max_tip": lambda fee: None if 0 <= fee <= 1e6 else "expected gwei, from 0 to 1,000,000",
    "daily_budget": lambda sum_: None if 0 <= sum_ <= 1e6 else "expected ETH, from 0 to 1,000,000",
    "listen": lambda addresses: _wrong_multiaddrs(addresses) or (None if addresses else "expected at least one"),
    "announce": _wrong_multiaddrs,
    "bootstrap": _wrong_bootstrap,
    "http_host": lambda host: None if is_loopback(host) else "expected a loopback address such as 127.0.0.1",
    "device": wrong_device,
    "ranks": lambda count: None if 0 < count <= MOST_RANKS else f"expected a number from 1 to {MOST_RANKS}",
    "machines": lambda count: None if 0 < count <= MOST_RANKS else f"expected a number from 1 to {MOST_RANKS}",
    "rendezvous": wrong_address,
    "tensor_parallel": lambda count: None if 0 < count <= MOST_RANKS else f"expected a number from 1 to {MOST_RANKS}",
    "devices": lambda devices: next(filter(None, map(wrong_device, devices)), None),
    "threads": _wrong_threads,
    **dict.fromkeys(_SIZES, _wrong_size),
    "schedule": wrong_hours,
    "audit_share": lambda share: None if 0 <= share <= 1 else "expected a number from 0 to 1",
    "http_port": lambda port: None if 0 <= port < 65536 else "expected a port from 0 to 65535",
}


def _toml(value: Any) -> str:
    """A TOML value; JSON's strings, numbers and lists of strings are TOML's too."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
