"""Is this machine fit to run a node? What `dlx-node doctor` finds, check by check, each with the command that mends it.

`quick` asks neither network nor keys and imports nothing heavy: `start` runs it before anything else.
"""

from __future__ import annotations

import os
import platform
import pwd
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from dlx.ground.limits import cores, free_memory
from dlx.ground.machine import nearest, network_disk
from dlx.node import version
from dlx.node.home import extras
from dlx.node.home.config import redacted_urls
from dlx.node.home.datadir import DataDir, NotPrivate
from dlx.node.home.diagnostics import FAIL, PASS, WARN, Diagnosis
from dlx.node.home.errors import Failure, UsageFailure
from dlx.node.home.formatting import size
from dlx.node.home.program import line
from dlx.node.home.settings import Settings

if TYPE_CHECKING:
    from dlx.ledger.client import LedgerClient
    from dlx.ledger.view.run_view import RunView
    from dlx.node.home.keys.identity import Account
    from dlx.training.recipe.manifest import Manifest

CLOCK_BEHIND, CLOCK_AHEAD = 5.0, 60.0  # s between this clock and the newest block's time that are worth a warning
_PYTHON = (3, 11)
_LOOKED_AT = 10_000  # files, at most, whose owner is looked at


def quick(folder: DataDir, settings: Settings) -> Iterator[Diagnosis]:
    """What can be told of this machine and folder at once."""
    yield _versions()
    yield _place(folder)
    yield _owner(folder)
    yield _secrets(folder, settings)
    yield _room(folder, settings)
    yield _threads(folder, settings)


def keys(folder: DataDir, settings: Settings) -> tuple[Diagnosis, Account | None]:
    """Whether the password opens the folder's keys; and the account. Takes a second."""
    from dlx.node.home.keys import identity

    try:
        account = identity.load_account(folder, settings)
        peer_id = identity.load_node_key(folder, settings).peer_id
    except NotPrivate as error:
        return Diagnosis("password", FAIL, error.problem, error.mend), None
    except (identity.WrongPassword, UsageFailure) as error:  # the latter: there is no password, or not in that file
        return Diagnosis("password", FAIL, str(error), _set(folder, "password_file", "FILE")), None
    except Failure as error:
        return Diagnosis("password", FAIL, str(error), "restore the folder's keys from a backup"), None
    return Diagnosis("password", PASS, f"opens account {account.address} and the key of peer {peer_id}"), account


def endpoints(client: LedgerClient, folder: DataDir, settings: Settings) -> Iterator[Diagnosis]:
    """Each chain node: whether it answers, by which chain id, and how old its newest block is by this clock."""
    from dlx.ledger.errors import LedgerError, WrongLedger

    other = _set(folder, "rpc_url", "URL")
    for url, rpc in zip(settings.rpc_url, client.rpc.with_patience(3.0).each(), strict=True):
        name = redacted_urls([url])
        try:
            found, head = rpc.chain_id(), rpc.head()
        except WrongLedger as error:
            yield Diagnosis("chain", FAIL, str(error), f"{other}, or {_set(folder, 'chain_id', 'NUMBER')}")
            continue
        except LedgerError as error:
            yield Diagnosis("chain", FAIL, str(error), f"start `chain` there, or {other}")
            continue
        yield Diagnosis("chain", PASS, f"{name} answers for chain {found}, block {head.number:,}")
        yield clock(time.time(), head.time)


def clock(now: float, block_time: float) -> Diagnosis:
    """Nothing of the protocol depends on this machine's clock; logs and a person's reading of them do."""
    age, mend = now - block_time, "timedatectl set-ntp true"
    if age < -CLOCK_BEHIND:
        return Diagnosis(
            "clock", WARN, f"{-age:.0f} s behind the newest block: the node goes by the chain's time", mend
        )
    if age > CLOCK_AHEAD:
        text = f"the newest block is {age:.0f} s old: this clock is ahead, or the chain stands still"
        return Diagnosis("clock", WARN, f"{text}; the node goes by the chain's time", mend)
    return Diagnosis("clock", PASS, f"agrees with the newest block's time, {max(0.0, age):.0f} s ago")


def contracts(client: LedgerClient, folder: DataDir) -> Diagnosis:
    """Whether this version's ledger is at the address."""
    from dlx.ledger.errors import LedgerError, LedgerUnavailable

    try:
        client.connect()
    except LedgerUnavailable as error:
        mend = f"wait until the chain node has synced, or {_set(folder, 'ledger', 'ADDRESS')}"
        return Diagnosis("ledger", FAIL, str(error), mend)
    except LedgerError as error:
        mend = f"{_set(folder, 'ledger', 'ADDRESS')}: `chain` and `deploy` print it"
        return Diagnosis("ledger", FAIL, str(error), mend)
    return Diagnosis("ledger", PASS, f"{client.ledger} has this version's contracts")


def no_ledger(folder: DataDir) -> Diagnosis:
    return Diagnosis("ledger", FAIL, "no ledger is set", _set(folder, "ledger", "ADDRESS"))


def funds(
    client: LedgerClient, folder: DataDir, settings: Settings, account: str, replicas: int, rounds: int
) -> Diagnosis:
    """Whether the account can pay a slot, and its part of the seals of so many rounds, at the present price of gas."""
    from dlx.ledger.client import most_gas
    from dlx.ledger.errors import LedgerError
    from dlx.ledger.transactions.fees import FeeTooHigh, eth, price
    from dlx.node.home.ledgers import limits_of

    try:
        balance, head = client.balance(account), client.rpc.head()
        now = price(client.rpc, head, limits_of(settings))
        pays = str(client.rpc.call("web3_clientVersion")).startswith("dlx-chain/")
    except FeeTooHigh as error:
        return Diagnosis("funds", FAIL, str(error), _set(folder, "max_fee", "GWEI"))
    except LedgerError as error:
        return Diagnosis("funds", FAIL, str(error), _set(folder, "rpc_url", "URL"))
    if balance == 0 and pays:
        return Diagnosis("funds", PASS, "none yet: this chain's faucet pays the first ones at `start`")
    joining = (most_gas("register") + most_gas("joinRun")) * now.max_fee
    each = most_gas("seal", replicas) * min(now.max_fee, (head.base_fee or 0) + now.tip) // max(1, replicas)
    lasts = max(0, balance - joining) // each if each else rounds
    text, mend = f"{eth(balance)} ETH", f"send ETH to {account}"
    if balance < joining:
        return Diagnosis("funds", FAIL, f"{text}; to register and join may take {eth(joining)}", mend)
    verdict = PASS if lasts >= rounds else WARN
    return Diagnosis("funds", verdict, f"{text} last for about {lasts:,} rounds", "" if verdict == PASS else mend)


def machine(
    folder: DataDir, settings: Settings, manifest: Manifest, view: RunView, stage: int | None
) -> list[Diagnosis]:
    """This machine's memory and disk against what `run plan` says of a stage; None: of the one that takes most.
    Nothing where `device` is FAIL. Raises UsageFailure for a stage that the run has not."""
    from dlx.node.runs.upkeep import upkeep
    from dlx.training.balance.costs import costs
    from dlx.training.models.placement import PlacementError, settle

    try:
        settled = settle(settings.placement)
    except PlacementError:
        return []
    planned = costs(manifest, settled, settled.ranks)
    replicas = max(1, len(view.complete_replicas()))
    chosen = [cost for cost in planned if stage in (None, cost.stage)]
    if not chosen:
        raise UsageFailure(f"--stage {stage}: the run has stages 0 to {len(planned) - 1}")
    memory = max(cost.memory.host for cost in chosen) * settled.ranks
    disk = max(upkeep(manifest, cost, replicas).disk for cost in chosen)
    available = free_memory()
    what = "the largest stage" if stage is None else f"stage {stage}"
    text = f"{what} takes {size(memory)} of main memory; {size(available)} are free"
    enough = available >= memory
    less = _set(folder, "checkpoint_activations", "layers")
    mend = "" if enough else f"free memory, ask for a smaller --stage, or {less}"
    found = [Diagnosis("memory", PASS if enough else WARN, text, mend)]
    if settled.device.startswith("cuda"):
        found.append(_device_memory(settled.device, what, max(cost.memory.device for cost in chosen), less))
    free = shutil.disk_usage(nearest(folder.root)).free - settings.disk_floor + _held(folder.blobs)
    text = f"{what} takes up to {size(disk)} of the disk; {size(max(0, free))} may be had"
    found.append(Diagnosis("plan", PASS if free >= disk else WARN, text, "" if free >= disk else _MORE_ROOM))
    return found


def device(folder: DataDir, settings: Settings) -> Diagnosis:
    """Whether torch can use the devices that the settings name, or a GPU that is here. Imports torch, which takes
    seconds, and raises MissingExtra or ImportError where that cannot be."""
    from dlx.training.models.placement import PlacementError, settle, unused_gpu

    try:
        settled = settle(settings.placement)
    except PlacementError as error:
        return Diagnosis("device", FAIL, str(error), _set(folder, "device", "auto"))
    if settings.device == "auto" and settled.device == "cpu" and (why := unused_gpu()):
        return Diagnosis("device", WARN, f"{settled}: {why}", _GPU)
    return Diagnosis("device", PASS, str(settled))


def arithmetic() -> Diagnosis:
    """Whether this machine computes the network's bits."""
    from dlx.training import selftest

    try:
        selftest.run()
    except selftest.SelfTestError as error:
        return Diagnosis(
            "self-test", FAIL, str(error), "pip install --force-reinstall -c requirements/constraints.txt numpy"
        )
    return Diagnosis("self-test", PASS, "computes the bits that all others do")


_GPU = "install a torch that fits the GPU and its driver (https://pytorch.org/get-started)"
_MORE_ROOM = "make room, or name a folder on another disk by --datadir"


def _versions() -> Diagnosis:
    python = platform.python_version_tuple()
    here = {name: _installed(name) for name in ("libp2p", "web3", "torch")}
    text = ", ".join([f"dlx-node {version()}", f"python {platform.python_version()}", *map(" ".join, here.items())])
    if (int(python[0]), int(python[1])) < _PYTHON:
        return Diagnosis("versions", FAIL, text, "install Python 3.11 or newer")
    try:
        extras.require("train")
    except extras.MissingExtra as error:
        return Diagnosis("versions", FAIL, f"{text}: {error}", extras.install("train"))
    return Diagnosis("versions", PASS, text)


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def _place(folder: DataDir) -> Diagnosis:
    kind = network_disk(folder.root)
    if kind is None:
        return Diagnosis("folder", PASS, f"{folder.root}, on a disk of this machine")
    text = (
        f"{folder.root} is on {kind}, another machine's disk: SQLite may lose there what was signed, and locks may not"
    )
    return Diagnosis("folder", WARN, f"{text} keep a second node out", "move the folder to a disk of this machine")


def _owner(folder: DataDir) -> Diagnosis:
    """Whether all that lies there is whose the folder is. What another user wrote, such as root in one command, the
    node can neither change nor remove."""
    if not folder.root.is_dir():
        return Diagnosis("owner", PASS, f"{folder.root} is not made yet")
    owner = folder.root.stat().st_uid
    foreign = [(path, uid) for path, uid in islice(_owned(folder.root), _LOOKED_AT) if uid != owner]
    if foreign:
        (first, other), more = foreign[0], f", and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
        text = f"{first} is {_user(other)}'s{more}, the folder is {_user(owner)}'s"
        return Diagnosis("owner", FAIL, text, f"sudo chown -R {_user(owner)} {shlex.quote(str(folder.root))}")
    if os.geteuid() != owner:
        text = f"{folder.root} is {_user(owner)}'s, and this is {_user(os.geteuid())}: what it writes there is lost to"
        return Diagnosis("owner", WARN, f"{text} {_user(owner)}", f"run the command as {_user(owner)}")
    return Diagnosis("owner", PASS, f"all in {folder.root} is {_user(owner)}'s")


def _owned(folder: Path) -> Iterator[tuple[Path, int]]:
    """All that lies in it, and whose it is. What may not be looked into, or is gone by then, is left out, and so is
    what a disk of its own has there."""
    for name, folders, files in os.walk(folder):
        for path in (Path(name, one) for one in (*folders, *files) if one != "lost+found"):
            with suppress(FileNotFoundError):
                yield path, path.lstat().st_uid


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _secrets(folder: DataDir, settings: Settings) -> Diagnosis:
    """Whether the keys are there, and nobody else's to read."""
    from dlx.node.home.keys import identity

    if not folder.node_key.exists() or not folder.keystore.is_dir() or not any(folder.keystore.iterdir()):
        return Diagnosis("keys", FAIL, f"{folder.root} lacks a node key or an account", identity.making(folder))
    try:
        folder.check_secrets()
    except NotPrivate as error:
        return Diagnosis("keys", FAIL, error.problem, error.mend)
    return Diagnosis("keys", PASS, f"in {folder.keystore}, readable by their owner only")


def _room(folder: DataDir, settings: Settings) -> Diagnosis:
    free = shutil.disk_usage(nearest(folder.root)).free
    text = f"{size(free)} free, of which disk_floor leaves {size(settings.disk_floor)}"
    return Diagnosis("disk", PASS, text) if free > settings.disk_floor else Diagnosis("disk", FAIL, text, _MORE_ROOM)


def _threads(folder: DataDir, settings: Settings) -> Diagnosis:
    wanted, here = settings.placement.threads or cores(), cores()
    text = f"{wanted} of {here} cores"
    mend = "" if wanted <= here else _set(folder, "threads", here)
    return Diagnosis("threads", WARN if mend else PASS, text, mend)


def _device_memory(device: str, what: str, needed: int, less: str) -> Diagnosis:
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    text = f"{what} takes {size(needed)} of {device}; {size(free)} are free"
    mend = "" if free >= needed else f"{less}, or share the stage by --devices"
    return Diagnosis("device memory", PASS if free >= needed else WARN, text, mend)


def _held(blobs: Path) -> int:
    """Bytes of the disk that the node's blobs already take."""
    return sum(path.stat().st_size for path in blobs.glob("*") if path.is_file())


def _set(folder: DataDir, key: str, value: object) -> str:
    return line("config", "set", key, value, folder=folder.root)
