"""A stranger's verifier: written from docs/protocol with nothing of ours, Python's standard library and keccak.

It is slow, and as plain as it can be: what it cannot compute from the page, the page does not say.
"""

import hashlib
import json
import math
import struct
from fractions import Fraction
from typing import Any

from eth_hash.auto import keccak

CONTRIBUTION = (
    b"Contribution(bytes32 run,uint32 round,uint16 stage,uint16 replica,bytes32 payload,bytes32 statement,uint32 loss,"
    b"uint32 innerSteps,uint8 exchange)"
)
SEAL = (
    b"Seal(bytes32 run,uint16 stage,uint32 round,bytes32 previous,bytes32 weights,bytes32 momentum,bytes32 weightsRoot,"
    b"bytes32 momentumRoot,bytes11 plans,bytes records)"
)
REPORT = b"Report(bytes32 run,uint32 round,uint16 stage,uint64 made,bytes32[] holding,bytes32[] missing)"
VERDICT = (
    b"Verdict(bytes32 run,uint16 stage,uint32 round,address account,bytes32 statement,uint8 finding,bytes32 report)"
)
SITE = b"SiteMember(bytes32 run,address account)"
REGISTRATION = b"Registration(address account,uint256 nonce)"
DOMAIN = b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"
WORDS = [  # of the statement, in its order
    "run", "round", "stage", "replica", "account", "base_weights", "payload", "payload_size", "payload_root", "plan",
    "inner_steps", "loss", "previous", "start_payload", "folded_payload", "folded_payload2", "weights_before",
    "optimiser_before", "optimiser_after", "change_before", "payload_before", "change", "trace",
    "segments", "compute_ms", "exchange_ms", "kept", "flags",
]  # fmt: skip

Tensor = tuple[list[int], list[float]]  # shape, and the values in order


# ---- section 2 and 4: what is signed


def word(value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return value.to_bytes(32, "big")
    data = value if isinstance(value, bytes) else bytes.fromhex(value.removeprefix("0x"))
    return data.rjust(32, b"\0")


def separator(name: bytes, version: bytes, chain: int, contract: str) -> bytes:
    return keccak(keccak(DOMAIN) + keccak(name) + keccak(version) + word(chain) + word(contract))


def digest(domain: bytes, struct_hash: bytes) -> bytes:
    return keccak(b"\x19\x01" + domain + struct_hash)


def run_id(chain: int, ledger: str, creator: str, manifest: bytes) -> bytes:
    return keccak(word(chain) + word(ledger) + word(creator) + manifest)


def statement(fields: dict[str, int | str]) -> bytes:
    return b"".join(map(word, (fields[name] for name in WORDS)))


def exchange(compute_ms: int, exchange_ms: int) -> int:
    if not compute_ms or not exchange_ms:
        return 0
    return min(255, max(1, (200 * exchange_ms + compute_ms) // (2 * compute_ms)))


def record(fields: dict[str, int | str], name: bytes, multiplier: int) -> bytes:
    percent = exchange(int(fields["compute_ms"]), int(fields["exchange_ms"]))
    payload = bytes.fromhex(str(fields["payload"]))
    numbers = struct.pack(">IIBH", fields["loss"], fields["inner_steps"], percent, multiplier)
    return bytes([int(fields["replica"])]) + payload + name + numbers


def contribution_digest(domain: bytes, run: bytes, round: int, stage: int, data: bytes) -> bytes:
    loss, steps, percent, _ = struct.unpack(">IIBH", data[65:])
    words = [run, round, stage, data[0], data[1:33], data[33:65], loss, steps, percent]
    return digest(domain, keccak(keccak(CONTRIBUTION) + b"".join(map(word, words))))


def verdict_digest(
    domain: bytes, run: bytes, stage: int, round: int, account: str, name: str, finding: int, report: str
) -> bytes:
    words: list[int | str | bytes] = [run, stage, round, account, name, finding, report]
    return digest(domain, keccak(keccak(VERDICT) + b"".join(map(word, words))))


def seal_digest(domain: bytes, packed: bytes) -> bytes:
    run, stage, round = packed[:32], packed[32:34], packed[34:38]
    fixed = b"".join(packed[at : at + 32] for at in range(38, 198, 32))
    words = run + word(stage) + word(round) + fixed + packed[198:209].ljust(32, b"\0") + keccak(packed[209:])
    return digest(domain, keccak(keccak(SEAL) + words))


def report_digest(
    domain: bytes, run: bytes, round: int, stage: int, made: int, holding: list[str], missing: list[str]
) -> bytes:
    lists = b"".join(keccak(b"".join(bytes.fromhex(one) for one in names)) for names in (holding, missing))
    return digest(domain, keccak(keccak(REPORT) + run + word(round) + word(stage) + word(made) + lists))


def site_digest(domain: bytes, run: bytes, account: str) -> bytes:
    return digest(domain, keccak(keccak(SITE) + run + word(account)))


def registration_digest(domain: bytes, account: str, nonce: int) -> bytes:
    return digest(domain, keccak(keccak(REGISTRATION) + word(account) + word(nonce)))


# ---- section 9: files and payloads


def single(value: float) -> float:
    """Rounded to float32. Sums and products of two float32 in float64, rounded so, are the single IEEE operations."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def half(data: bytes) -> float:
    return float(struct.unpack("<e", data)[0])


def canonical(tensors: dict[str, Tensor]) -> bytes:
    header, body = {}, b""
    for name in sorted(tensors):
        shape, values = tensors[name]
        data = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def merkle_root(data: bytes) -> bytes:
    leaves = [data[at : at + 4096] for at in range(0, len(data), 4096)]
    return _tree([hashlib.sha256(b"\0" + leaf).digest() for leaf in leaves]) if leaves else hashlib.sha256().digest()


def _tree(nodes: list[bytes]) -> bytes:
    if len(nodes) == 1:
        return nodes[0]
    split = 1 << (len(nodes) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + _tree(nodes[:split]) + _tree(nodes[split:])).digest()


def bits(data: bytes, width: int, count: int) -> list[int]:
    """Numbers that fill bytes from their lowest bits up."""
    number = int.from_bytes(data, "little")
    return [(number >> width * index) & (1 << width) - 1 for index in range(count)]


def signed(codes: list[int], width: int) -> list[int]:
    return [code - (1 << width) if code >> width - 1 else code for code in codes]


def decode(codec: str, level: int, rank: int, shapes: dict[str, list[int]], payload: bytes) -> dict[str, Tensor]:
    found, rest = {}, payload
    for name in sorted(shapes):
        shape = shapes[name]
        count = math.prod(shape)
        if codec == "topk":
            values, rest = _topk(rest, count, rank)
        elif codec == "ternary":
            values, rest = _ternary(rest, count)
        elif codec == "lowrank" and _factored(name, shape, rank):
            values, rest = _lowrank(rest, shape, rank)
        else:
            values, rest = _int4(rest, count, level)
        found[name] = (shape, values)
    assert not rest
    return found


def _int4(data: bytes, count: int, level: int) -> tuple[list[float], bytes]:
    groups = -(-count // 128)
    size = groups * (2 + 16 * level)
    codes = signed(bits(data[2 * groups : size], level, 128 * groups), level)
    scales = [half(data[2 * group : 2 * group + 2]) for group in range(groups)]
    return [single(codes[index] * scales[index // 128]) for index in range(count)], data[size:]


def _ternary(data: bytes, count: int) -> tuple[list[float], bytes]:
    head = 2 * -(-count // 640)
    size = head + -(-count // 5)
    scales = [half(data[at : at + 2]) for at in range(0, head, 2)]
    digits = [data[head + index // 5] // 3 ** (index % 5) % 3 for index in range(count)]
    return [(0.0, scales[index // 640], -scales[index // 640])[digit] for index, digit in enumerate(digits)], data[
        size:
    ]


def _factored(name: str, shape: list[int], rank: int) -> bool:
    if len(shape) != 2 or rank > min(shape):
        return False
    if name.split(".")[-2] in ("embed_tokens", "embed_positions", "embed_in", "wte", "wpe", "lm_head", "gate"):
        return False
    return rank + -(-rank * sum(shape) // 2) < -(-math.prod(shape) // 128) * 66


def _lowrank(data: bytes, shape: list[int], rank: int) -> tuple[list[float], bytes]:
    rows, columns = shape
    exponents = signed(list(data[:rank]), 8)
    size = rank + -(-rank * (rows + columns) // 2)
    codes = signed(bits(data[rank:size], 4, rank * (rows + columns)), 4)
    total = [[Fraction(0)] * columns for _ in range(rows)]
    for component in range(rank):
        start, weight = component * (rows + columns), Fraction(2) ** exponents[component]
        left, right = codes[start : start + rows], codes[start + rows : start + rows + columns]
        for row in range(rows):
            for column in range(columns):
                total[row][column] += weight * left[row] * right[column]
    return [single(float(value)) + 0.0 for line in total for value in line], data[size:]


def _topk(data: bytes, count: int, rank: int) -> tuple[list[float], bytes]:
    lengths = [min(4096, count - start) for start in range(0, count, 4096)]
    kept = [-(-rank * length // 4096) for length in lengths]
    low_bits = math.floor(math.log2(4096 / rank))
    sizes = [-(-(k + ((length - 1) >> low_bits)) // 8) for k, length in zip(kept, lengths, strict=True)]
    mark, head = 4 * len(lengths), 4 * len(lengths) + sum(sizes)
    middle = head + -(-low_bits * sum(kept) // 8)
    end = middle + -(-2 * sum(kept) // 8)
    lows, choices = bits(data[head:middle], low_bits, sum(kept)), bits(data[middle:end], 2, sum(kept))
    values, at = [0.0] * count, 0
    for chunk, (number, size) in enumerate(zip(kept, sizes, strict=True)):
        low, high = half(data[4 * chunk : 4 * chunk + 2]), half(data[4 * chunk + 2 : 4 * chunk + 4])
        marks = [place for place, bit in enumerate(bits(data[mark : mark + size], 1, 8 * size)) if bit]
        assert len(marks) == number
        for index, where in enumerate(marks):
            place, choice = ((where - index) << low_bits) + lows[at + index], choices[at + index]
            size_of = high if choice & 1 else low
            values[4096 * chunk + place] = (-size_of if choice & 2 else size_of) + 0.0
        at, mark = at + number, mark + size
    return values, data[end:]


def outer(
    version: list[float],
    momentum: list[float] | None,
    gradients: list[list[float]],
    steps: list[int],
    multipliers: list[int],
    lr: float,
    mu: float,
    nesterov: bool,
) -> tuple[list[float], list[float] | None]:
    """One tensor of V[t+1], and of the momentum."""
    counted = [count for count, each in zip(steps, multipliers, strict=True) if each]
    total = 32768 * sum(count**3 for count in counted)
    parts = [
        single(count * count * each * max(counted) / total) for count, each in zip(steps, multipliers, strict=True)
    ]
    acc = [0.0] * len(version)
    for gradient, part in zip(gradients, parts, strict=True):
        acc = [single(sum_ + single(value * part)) for sum_, value in zip(acc, gradient, strict=True)]
    step = acc
    if mu:
        before = momentum or [0.0] * len(version)
        momentum = [single(single(m * single(mu)) + a) for m, a in zip(before, acc, strict=True)]
        step = momentum
        if nesterov:
            step = [single(a + single(m * single(mu))) for a, m in zip(acc, momentum, strict=True)]
    return [single(v - single(s * single(lr))) for v, s in zip(version, step, strict=True)], momentum


def mean(versions: list[list[float]]) -> list[float]:
    """One tensor of the published average."""
    found = versions[0]
    for number, version in enumerate(versions[1:], 2):
        part = single(1 / number)
        found = [single(x + single(single(v - x) * part)) for x, v in zip(found, version, strict=True)]
    return found


def members(versions: int, every: int, version: int) -> list[int]:
    """Whose mean is published as that version."""
    earlier = [one for one in range(1, version) if one % every == 0]
    return [*earlier[-(versions - 1) :], version]


# ---- the draw


def draw(
    block_hash: bytes, run: bytes, round: int, digests: list[bytes], share: float, segments: list[int]
) -> tuple[bytes, list[list[int]]]:
    seed = keccak(block_hash + run + round.to_bytes(4, "big") + b"".join(digests))
    found = []
    for replica, its in enumerate(segments):
        lot = keccak(seed + replica.to_bytes(2, "big"))
        if Fraction(int.from_bytes(lot[:8], "big"), 2**64) < Fraction(share):
            found.append([replica, int.from_bytes(lot[8:16], "big") % its])
    return seed, found


# ---- who trains on what


def samples(seed: int, counts: list[int], positions: list[int]) -> list[int]:
    return [_sample(seed, counts, position) for position in positions]


def _sample(seed: int, counts: list[int], position: int) -> int:
    epoch, place = divmod(position, sum(counts))
    key = _blake(b"dlx shard order", seed, epoch)
    order = sorted(range(len(counts)), key=lambda shard: (_keyed(key, 0, shard), shard))
    for window in range(-(-len(order) // 4)):
        shards = order[4 * window : 4 * window + 4]
        size = sum(counts[shard] for shard in shards)
        if place < size:
            break
        place -= size
    rows = next(root for root in range(size + 1) if root * root >= size)
    columns, key = -(-size // rows), _blake(b"dlx sample order", seed, epoch, window)
    while True:
        left, right = divmod(place, columns)
        for turn in range(4):
            left = (left + _keyed(key, 2 * turn, right)) % rows
            right = (right + _keyed(key, 2 * turn + 1, left)) % columns
        place = left * columns + right
        if place < size:
            break
    return [sum(counts[:shard]) + at for shard in shards for at in range(counts[shard])][place]


def _blake(purpose: bytes, *numbers: int) -> bytes:
    return hashlib.blake2b(purpose + b"".join(one.to_bytes(8, "big") for one in numbers), digest_size=32).digest()


def _keyed(key: bytes, number: int, value: int) -> int:
    digest = hashlib.blake2b(value.to_bytes(8, "big") + bytes([number]), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "big")


def deals(replicas: int, delay: int, rounds: list[dict[str, Any]]) -> list[list[list[int]]]:
    """Of every round, each replica's positions, one by one."""
    found: list[list[list[int]]] = []
    for number, round in enumerate(rounds):
        decided = rounds[: max(0, number - delay)]
        used = {one for lots, was in zip(found, decided, strict=False) for r, n in was["taken"] for one in lots[r][:n]}
        used |= {one for lots in found[len(decided) :] for lot in lots for one in lot}
        first = next(([r for r, _ in was["taken"]] for was in reversed(decided) if was["taken"]), [])
        need, k = round["need"], len(first)
        free = [one for one in range(10_000) if one not in used]
        order = [*first, *[None] * (delay * k), *[r for r in range(replicas) if r not in first]]
        lots = {replica: free[at * need : (at + 1) * need] for at, replica in enumerate(order)}
        found.append([lots[replica] for replica in range(replicas)])
    return found


# ---- how many inner steps


class Pace:
    """Of one member. Its events are those of pace.json."""

    def __init__(self, delay: int, grace: float, account: str) -> None:
        self.delay, self.grace, self.account = delay, grace, account
        self.opens: dict[int, float] = {}
        self.came: dict[tuple[int, str], tuple[float, int]] = {}
        self.seals: dict[int, list[str]] = {}
        self.own: dict[int, tuple[float, float]] = {}

    def see(self, name: str, *said: Any) -> None:
        match name, said:
            case "opened", (round, now):
                first = round if self.opens else max(0, round - self.delay)
                self.opens |= {at: now for at in range(first, round + 1) if at not in self.opens}
            case "came", (round, account, steps, now):
                self.came.setdefault((round, account), (now, steps))
            case "sealed", (seals,):
                self.seals = {int(round): accounts for round, accounts in seals.items()}
            case "trained", (round, steps, seconds, None):
                fixed, step = self.speed()
                scale = seconds / (fixed + steps * step)
                self.own[round] = fixed * scale, step * scale
            case "trained", (round, steps, seconds, step):
                self.own[round] = max(0.0, seconds - steps * step), step

    def speed(self) -> tuple[float, float]:
        last = [self.own[round] for round in sorted(self.own)[-5:]]
        return lower_median([one[0] for one in last]), lower_median([one[1] for one in last])

    def steps(self, round: int, plan: int, members: list[str], now: float) -> int:
        fewest = -(-plan // 16)
        if not self.own:
            return max(fewest, 2)
        fixed, step = self.speed()
        own, left = fixed + plan * step, {}
        for one in members:
            laps = self.laps(one, round)
            if one == self.account or not laps:
                continue
            parts = [sum(fixed + n * step for n in taken) / own for _, taken in laps]
            seconds = lower_median([lap / part for (lap, _), part in zip(laps, parts, strict=True)])
            done = now
            if round - 1 in self.opens and (round - 1, one) not in self.came:
                done = max(now, self.begins(one, round - 1, now) + seconds)
            left[one] = self.begins(one, round, done) + seconds - now, 1 / max(parts)
        order = sorted([*((seconds, one) for one, (seconds, _) in left.items()), (own, self.account)])
        chosen = order[(len(order) - 1) // 2][1]
        if chosen == self.account:
            return plan
        seconds, blur = left[chosen]
        if own <= seconds + max(0.05 * seconds + blur, min(own / 4, self.grace / 2) if self.delay else 0):
            return plan
        return max(fewest, min(plan, int((seconds - fixed) / step)))

    def laps(self, account: str, round: int) -> list[tuple[float, list[int]]]:
        found, newest = [], self.seals[max(self.seals)] if self.seals else [account]
        for at in range(max(0, round - 5), round):
            if at not in self.opens or (at, account) not in self.came or account not in self.seals.get(at, newest):
                continue
            (when, steps), opens = self.came[at, account], self.opens[at]
            done, before = self.came.get((at - 1, account), (opens, 0))
            if done <= opens:
                found.append((max(0.0, when - opens), [steps]))
            elif at - 1 in self.opens:
                counts = at - 1 >= max(0, round - 5) and account in self.seals.get(at - 1, newest)
                begun = self.begins(account, at - 1, opens)
                found.append((max(0.0, when - begun), [before, steps] if counts else [steps]))
        return found

    def begins(self, account: str, round: int, otherwise: float) -> float:
        return max(self.came.get((round - 1, account), (otherwise, 0))[0], self.opens.get(round, otherwise))


def lower_median(values: list[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


# ---- who fetches which pieces


def shares(blob: bytes, peers: list[str], pieces: int) -> dict[str, list[int]]:
    order = sorted(peers, key=lambda peer: hashlib.sha256(blob + peer.encode("ascii")).digest())[:8]
    n = len(order)
    found = {peer: [pieces * k // n, pieces * (k + 1) // n] for k, peer in enumerate(order)}
    return {peer: [first, end] for peer, (first, end) in found.items() if first < end}
