"""The node's settings. Each is declared once, as a field of `Settings`.

The command's options, the DLX_* environment, config.toml, `config show`, the man pages and the table in
docs/operator.md are made from these fields. A new setting is a new field, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from dlx.node.home import values
from dlx.node.home.errors import UsageFailure
from dlx.node.home.hours import wrong_hours
from dlx.training.models.placement import Checkpoint, Placement, wrong_address, wrong_device

_T = TypeVar("_T")


def _as_given(value: Any) -> Any:
    return value


def _never_wrong(value: Any) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All that is declared of a setting."""

    key: str  # in config.toml
    type: Any
    default: Any
    help: str
    metavar: str | None = None  # what the help calls the value; None: its type
    secret: bool = False  # a URL that may hold a key: shown without user, path and query
    parse: Callable[[Any], Any] = _as_given  # what a text means where another type is wanted
    wrong: Callable[[Any], str | None] = _never_wrong  # why a value of the type cannot be
    section: str = ""  # the heading in docs/operator.md that has more

    @property
    def option(self) -> str:
        return f"--{self.key.replace('_', '-')}"

    @property
    def environment(self) -> str:
        return f"DLX_{self.key.upper()}"

    @property
    def is_list(self) -> bool:
        return isinstance(self.default, tuple)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that a value can be; empty where it is something else."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def option_type(self) -> Any:
        """What the command line takes. Text, where the value's type is not one that it knows."""
        if self.is_list:
            return list[str]
        return self.type if self.type in (bool, int, float) and self.parse is _as_given else str

    def text(self, value: Any) -> str:
        """A value as people write it."""
        if value in ((), [], ""):
            return "none"
        if self.is_list:
            return " ".join(value)
        if isinstance(value, bool):
            return "on" if value else "off"
        if self.parse is values.size:
            return values.size_text(value)
        if self.parse is values.size_or_off:
            return values.size_text(value) if value else "off"
        return str(value).removesuffix(".0") if self.type is float else str(value)


def setting(default: _T, help: str, **more: Any) -> _T:
    """A field that declares a setting: `more` is what `Setting` has beside key and type."""
    made: _T = field(default=default, metadata={"help": help, **more})
    return made


def declared(settings: type) -> dict[str, Setting]:
    """Key -> what a class of settings declares."""
    types = get_type_hints(settings)
    return {
        one.name: Setting(key=one.name, type=types[one.name], default=one.default, **one.metadata)
        for one in fields(settings)
    }


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The value of each setting."""

    network: str = setting(
        "devnet",
        "Name of the network; it only chooses the default data folder, ~/.dlx/<network>.",
        wrong=values.wrong_network,
    )
    rpc_url: tuple[str, ...] = setting(
        ("http://127.0.0.1:8545",),
        "JSON-RPC endpoints of the chain that carries the ledger; the first that is well is asked.",
        metavar="URL",
        secret=True,
        parse=values.split_all,
        wrong=values.wrong_urls,
        section="Several chain nodes",
    )
    chain_id: int = setting(31337, "Chain id that the endpoints must answer with.", wrong=values.wrong_chain)
    rpc_timeout: float = setting(
        10.0,
        "Seconds that a chain node may take for an answer; what is asked again anyway waits for half of that.",
        wrong=values.wrong_timeout,
    )
    ledger: str = setting("", "Address of the TrainingLedger contract.", wrong=values.wrong_contract)
    campaigns: str = setting(
        "",
        "Address of the Campaigns contract, which pays for work; `dlx-node deploy` prints it.",
        wrong=values.wrong_contract,
    )
    max_fee: float = setting(
        100.0,
        "Most that a unit of gas may cost, in gwei, base fee and tip together; above it nothing is signed.",
        wrong=values.wrong_fee,
        section="What transactions may cost",
    )
    max_tip: float = setting(30.0, "Most of that which may be a tip, in gwei.", wrong=values.wrong_tip)
    daily_budget: float = setting(
        0.05,
        "Most that transactions may cost in 24 hours, in ETH; 0: any sum, as always on chain 31337.",
        wrong=values.wrong_budget,
    )
    listen: tuple[str, ...] = setting(
        ("/ip4/0.0.0.0/tcp/4650", "/ip6/::/tcp/4650"),  # the same after a restart, as others remember it
        "Multiaddrs that the node listens on.",
        metavar="MULTIADDR",
        wrong=values.wrong_listen,
    )
    announce: tuple[str, ...] = setting(
        (),
        "Multiaddrs that others should dial, where they differ from those it listens on.",
        metavar="MULTIADDR",
        wrong=values.wrong_multiaddrs,
    )
    bootstrap: tuple[str, ...] = setting(
        (),
        "Multiaddrs (with /p2p/...) of peers to start from, beside those on the ledger.",
        metavar="MULTIADDR",
        wrong=values.wrong_bootstrap,
    )
    http_host: str = setting("127.0.0.1", "Loopback address of the node's HTTP endpoint.", wrong=values.wrong_host)
    http_port: int = setting(0, "Port of the node's HTTP endpoint; 0 takes a free one.", wrong=values.wrong_port)
    log_format: Literal["text", "json"] = setting("text", "Format of the log lines: text or json.")
    password_file: str = setting("", "File whose first line is the password of the folder's keys.")
    site: str = setting(
        "",
        "Name of the site whose other machines this node shares a replica with; its key is in the folder.",
        section="A site",
    )
    private_data: str = setting(
        "",
        "Folder of prepared data to train on instead of the run's, which has to allow it; never served.",
        section="Data",
    )
    device: str = setting(
        "auto",
        "What to train on: auto (a GPU, if one is here), cpu, cuda, cuda:N or mps.",
        wrong=wrong_device,
        section="Devices",
    )
    threads: int | str = setting(
        "auto",
        "CPU threads to train with: a number, or auto (the cores that the node may use).",
        parse=values.number_or_word,
        wrong=values.wrong_threads,
    )
    compile: bool = setting(
        False, "Train with compiled layers (torch.compile): faster after some minutes; a CPU needs a C++ compiler."
    )
    checkpoint_activations: Checkpoint = setting(  # noqa: RUF009
        "none",
        "What to compute again in the backward pass, to save memory: none, layers (all but their inputs; about a third "
        "more time) or selective (all but products of matrices and attention).",
        parse=values.checkpointing,
        section="Models",
    )
    ranks: int = setting(
        1,
        "Processes that share the stage, each with its part of every parameter: on the CPU, or cuda:0, cuda:1 ...",
        wrong=values.wrong_count,
        section="A stage on several GPUs or machines",
    )
    devices: tuple[str, ...] = setting(
        (),
        "The devices of the ranks, cuda:0,cuda:1, where they are others; as many ranks as devices.",
        metavar="DEVICES",
        parse=values.split_all,
        wrong=values.wrong_devices,
    )
    machines: int = setting(
        1,
        "Machines of this site that share the stage: this one, and as many others that run `dlx-node rank`.",
        wrong=values.wrong_count,
    )
    rendezvous: str = setting(
        "",
        "HOST:PORT of this machine for them to come to, open to nobody else.",
        metavar="HOST:PORT",
        wrong=wrong_address,
    )
    tensor_parallel: int = setting(
        1,
        "Ranks that compute each matrix product together, next to each other; it divides their number.",
        wrong=values.wrong_count,
    )
    disk_quota: int = setting(
        0,
        "Bytes (or 20GB, 1.5TiB) that blobs may take; 0: any number. Old payloads and versions give way.",
        parse=values.size,
        wrong=values.wrong_size,
        section="What it takes of the disk",
    )
    disk_floor: int = setting(
        1 << 30,
        "Bytes (or 20GB, 512MiB) that blobs leave free on the disk; 0: none.",
        parse=values.size,
        wrong=values.wrong_size,
    )
    data_cache: int = setting(
        64 * 10**9,
        "Bytes (or 20GB, 1.5TiB) of training data that stay here after their round; older shards give way.",
        parse=values.size,
        wrong=values.wrong_size,
    )
    mirror_data: bool = setting(
        False, "Fetch all of the run's training data and first weights, and keep them for others."
    )
    audit_share: float = setting(
        0.1,
        "Part of the seconds trained that checking others' drawn work may take, 0 to 1; alarms go beyond. A run's"
        " audit.share takes about as much.",
        wrong=values.wrong_share,
    )
    seal_empty_rounds: bool = setting(
        False,
        "As a founder, seal rounds empty of a stage where it holds no slot and whose members seal nothing. That uses up"
        " the run's rounds, also while honest members are away.",
        section="Create a run",
    )
    up_limit: int = setting(
        0,
        "Bytes a second (or 2MB, 500kB) to send to peers beyond this machine's own networks; 0: any number.",
        parse=values.size,
        wrong=values.wrong_size,
    )
    down_limit: int = setting(
        0,
        "Bytes a second (or 2MB, 500kB) to receive from them; 0: any number.",
        parse=values.size,
        wrong=values.wrong_size,
    )
    relay: int = setting(
        4 * 10**6,
        "Bytes a second (or 2MB, 500kB) to carry for members that cannot be reached, if this node can be; off: none.",
        parse=values.size_or_off,
        wrong=values.wrong_size,
        section="Relays",
    )
    router: bool = setting(
        True,
        "Ask the router to forward the port, where peers cannot connect and the node listens to others.",
        section="At home",
    )
    mailbox: str = setting(
        "",
        "Folder, or address of https or s3, to publish to for members that cannot connect to this node.",
        metavar="TO",
        wrong=values.wrong_mailbox,
        section="A mailbox",
    )
    mailbox_url: str = setting(
        "",
        "Address of https at which others read it, which goes to the ledger; where they publish to one, it is that.",
        metavar="URL",
        wrong=values.wrong_mailbox_url,
    )
    mailbox_mirror: bool = setting(
        False, "Publish all that this node serves there, for members that can connect to nobody."
    )
    mailboxes: tuple[str, ...] = setting(
        (),
        "Others' mailboxes to read beside those on the ledger: folders, or addresses of https, http or s3.",
        metavar="FROM",
        wrong=values.wrong_mailboxes,
    )
    schedule: tuple[str, ...] = setting(
        (),
        "Hours in which to work, local time, such as 22:00-06:00; outside of them the node rests.",
        metavar="HOURS",
        parse=values.split_all,
        wrong=wrong_hours,
        section="Rest",
    )
    when_idle: bool = setting(
        False,
        "Rest while other programs take a quarter of this machine's cores, or of an NVIDIA GPU (nvidia-smi), or "
        "somebody sits at it (logind's hint, xprintidle); elsewhere than on Linux only the cores are looked at.",
    )
    resting: Literal["keep", "leave"] = setting(
        "keep", "What a resting node does: keep (the slot, by the fewest inner steps that count) or leave (it)."
    )

    @property
    def mailbox_read_at(self) -> str:
        """Where others read the node's mailbox; empty where it has none that everybody can read. Raises UsageFailure
        for what cannot go to the ledger."""
        url = self.mailbox_url or (self.mailbox if self.mailbox.startswith("https://") else "")
        if wrong := values.wrong_mailbox_url(url):
            raise UsageFailure(f"--mailbox: {wrong}, or --mailbox-url besides")
        return url.rstrip("/")

    @property
    def placement(self) -> Placement:
        """Where and how to train."""
        threads = self.threads if isinstance(self.threads, int) else 0
        return Placement(
            device=self.device, threads=threads, compile=self.compile, checkpoint=self.checkpoint_activations,
            ranks=self.ranks, devices=self.devices, machines=self.machines, rendezvous=self.rendezvous,
            tensor_parallel=self.tensor_parallel,
        )  # fmt: skip


SETTINGS = declared(Settings)
DEFAULTS = Settings()
