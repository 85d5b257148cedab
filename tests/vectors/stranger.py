"""A stranger's verifier: written from docs/protocol with nothing of ours, Python's standard library and keccak.

It is slow, and as plain as it can be: what it cannot compute from the page, the page does not say.
"""

import hashlib
import json
import math
import struct
from fractions import Fraction
from itertools import pairwise
from typing import Any

from eth_hash.auto import keccak

CONTRIBUTION = (
    b"Contribution(bytes32 run,uint32 round,uint16 stage,uint16 replica,bytes32 statement,uint32 loss,"
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
AGREEMENT = b"Agreement(bytes32 run,uint32 round,uint16 replica,uint16 stage,bytes32 recorded)"
EVALUATION_TYPE = keccak(
    b"Evaluation(bytes32 run,uint32 version,uint16 replica,uint16 stage,bytes32 previous,bytes32 activations,"
    b"uint64 sum,uint32 count)"
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
    numbers = struct.pack(">IIBH", fields["loss"], fields["inner_steps"], percent, multiplier)
    return bytes([int(fields["replica"])]) + name + numbers


def contribution_digest(domain: bytes, run: bytes, round: int, stage: int, data: bytes) -> bytes:
    loss, steps, percent, _ = struct.unpack(">IIBH", data[33:])
    words = [run, round, stage, data[0], data[1:33], loss, steps, percent]
    return digest(domain, keccak(keccak(CONTRIBUTION) + b"".join(map(word, words))))


def agreement_digest(domain: bytes, said: dict[str, Any]) -> bytes:
    words = [said[name] for name in ("run", "round", "replica", "stage", "recorded")]
    return digest(domain, keccak(keccak(AGREEMENT) + b"".join(map(word, words))))


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
    leaves = [data[at : at + 1024] for at in range(0, len(data), 1024)]
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
    scales = _scales(data, groups)
    most = (1 << level - 1) - 1
    assert min(codes) >= -most and not any(codes[count:])
    for group, scale in enumerate(scales):
        assert max(map(abs, codes[128 * group :][:128])) == (most if scale else 0)
    return [single(codes[index] * scales[index // 128]) for index in range(count)], data[size:]


def _scales(data: bytes, groups: int) -> list[float]:
    scales = [half(data[at : at + 2]) for at in range(0, 2 * groups, 2)]
    assert all(math.copysign(1, scale) == 1 and scale < math.inf for scale in scales)
    return scales


def _ternary(data: bytes, count: int) -> tuple[list[float], bytes]:
    head = 2 * -(-count // 640)
    size = head + -(-count // 5)
    scales = _scales(data, head // 2)
    digits = [data[at] // 3**index % 3 for at in range(head, size) for index in range(5)]
    assert max(data[head:size]) <= 242 and not any(digits[count:])
    digits = digits[:count]
    assert all(any(digits[640 * group :][:640]) == bool(scale) for group, scale in enumerate(scales))
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
    codes = signed(bits(data[rank:size], 4, 2 * (size - rank)), 4)
    assert -8 not in codes and not any(codes[rank * (rows + columns) :])
    _check_components(exponents, codes, rows, columns)
    total = [[Fraction(0)] * columns for _ in range(rows)]
    for component in range(rank):
        start, weight = component * (rows + columns), Fraction(2) ** exponents[component]
        left, right = codes[start : start + rows], codes[start + rows : start + rows + columns]
        for row in range(rows):
            for column in range(columns):
                total[row][column] += weight * left[row] * right[column]
    return [single(float(value)) + 0.0 for line in total for value in line], data[size:]


def _check_components(exponents: list[int], codes: list[int], rows: int, columns: int) -> None:
    """What is refused of a part's components."""
    live: list[tuple[int, bytes]] = []
    for component, exponent in enumerate(exponents):
        both = codes[component * (rows + columns) :][: rows + columns]
        if not any(both):
            assert not exponent
            continue
        assert len(live) == component, "components of zeros come last"
        assert any(code % 2 for code in both[:rows]) and any(code % 2 for code in both[rows:])
        assert next(code for code in both if code) > 0 and any(both[:rows])
        live.append((-exponent, bytes(code % 256 for code in both)))
    assert all(one < other for one, other in pairwise(live))
    if live:
        highest, lowest = -live[0][0], -live[-1][0]
        assert highest <= 100 and highest - lowest + 6 + math.log2(len(exponents)) <= 52


def _topk(data: bytes, count: int, rank: int) -> tuple[list[float], bytes]:
    lengths = [min(4096, count - start) for start in range(0, count, 4096)]
    kept = [-(-rank * length // 4096) for length in lengths]
    low_bits = math.floor(math.log2(4096 / rank))
    sizes = [-(-(k + ((length - 1) >> low_bits)) // 8) for k, length in zip(kept, lengths, strict=True)]
    mark, head = 4 * len(lengths), 4 * len(lengths) + sum(sizes)
    middle = head + -(-low_bits * sum(kept) // 8)
    end = middle + -(-2 * sum(kept) // 8)
    lows, choices = bits(data[head:middle], low_bits, sum(kept)), bits(data[middle:end], 2, sum(kept))
    for packed, width in ((data[head:middle], low_bits), (data[middle:end], 2)):
        assert not int.from_bytes(packed, "little") >> width * sum(kept), "padding"
    values, at = [0.0] * count, 0
    for chunk, (number, size) in enumerate(zip(kept, sizes, strict=True)):
        low, high = half(data[4 * chunk : 4 * chunk + 2]), half(data[4 * chunk + 2 : 4 * chunk + 4])
        marks = [place for place, bit in enumerate(bits(data[mark : mark + size], 1, 8 * size)) if bit]
        assert len(marks) == number and 0 <= low <= high < math.inf and math.copysign(1, low) == 1
        assert low < high or (not high and math.copysign(1, high) == 1)
        chosen, before = choices[at : at + number], -1
        assert any(one & 1 for one in chosen) == (high > 0) and (not low or any(not one & 1 for one in chosen))
        for index, (where, choice) in enumerate(zip(marks, chosen, strict=True)):
            place = ((where - index) << low_bits) + lows[at + index]
            assert before < place < lengths[chunk]
            before, size_of = place, high if choice & 1 else low
            assert size_of or (choice == 0 and place == index), "no value"
            values[4096 * chunk + place] = (-size_of if choice & 2 else size_of) + 0.0
        at, mark = at + number, mark + size
    return values, data[end:]


MATRICES = {
    *("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "gate_proj", "up_proj", "down_proj", "gate_up_proj"),
    *("qkv_proj", "fc1", "fc2", "dense", "dense_h_to_4h", "dense_4h_to_h", "query_key_value", "c_attn", "c_proj"),
    "c_fc",
}  # but for experts', which end in no `weight`


def reach(inner: dict[str, Any], matrices: int, others: int) -> float:
    """Of a step, where the stage has so many values in its layers' matrices and so many others."""
    if inner["optimiser"] == "adamw":
        return inner["lr"] * math.sqrt(matrices + others)
    size = {"muon": 0.25, "shampoo": 1.0}[inner["optimiser"]]
    return math.hypot(size * inner["matrix_lr"] * math.sqrt(matrices), inner["lr"] * math.sqrt(others))


def policy(
    name: str, steps: list[int], payloads: list[list[float]], reach: float
) -> list[tuple[float, bool, bool, bool]]:
    """Of each contribution u, whether one drops it oneself, whether everybody must, and whether anybody may."""
    norms = [math.sqrt(sum(value * value for value in one)) / count for one, count in zip(payloads, steps, strict=True)]
    most = measure(norms, steps, reach)
    seen = (_against(payloads, bound) if name == "clip+cosine" else set[int]() for bound in (-1e-9, 0.0, 1e-9))
    surely, own, perhaps = seen
    few = [2 * len(one) < len(steps) for one in (surely, own, perhaps)]
    dropped, must, may = own if few[1] else set(), surely if few[2] else set(), perhaps if few[0] else set()
    factors = [min(1.0, most / n) if n else 1.0 for n in norms]
    return [(32768 * f + 1 / 64, at in dropped, at in must, at in may) for at, f in enumerate(factors)]


def _against(payloads: list[list[float]], bound: float) -> set[int]:
    """Whose cosines with more than half of the others are below this."""
    found = set()
    for at, own in enumerate(payloads):
        others = [one for place, one in enumerate(payloads) if place != at and any(one) and any(own)]
        cosines = [
            sum(a * b for a, b in zip(own, one, strict=True)) / math.hypot(*own) / math.hypot(*one) for one in others
        ]
        if 2 * sum(cosine < bound for cosine in cosines) > len(payloads) - 1:
            found.add(at)
    return found


def multiplier(u: float, dropped: bool) -> int:
    """What a proposer seals."""
    return 0 if dropped else math.floor(u)


def may_sign(u: float, must: bool, may: bool, sealed: int) -> bool:
    fits = -1 / 128 <= u - sealed <= 1 + 1 / 128
    return sealed == 0 if must else fits or (may and sealed == 0)


def measure(norms: list[float], steps: list[int], reach: float) -> float:
    """Of a step; `norms` are those of the payloads divided by their steps."""
    if len(norms) < 3:
        return reach
    middle = lower_median(norms)
    taken = {n: sum(count for m, count in zip(norms, steps, strict=True) if m <= n) for n in norms}
    of_steps = min(n for n in norms if 2 * taken[n] >= sum(steps))
    return min(reach, middle, max(of_steps, middle / 2))


def displacement(norms: list[float], steps: list[int], multipliers: list[int], reach: float) -> str:
    """What an audit says of a seal with records."""
    own = [norm / count for norm, count in zip(norms, steps, strict=True)]
    bound = 8 * (measure(own, steps, reach) or reach)
    return "PASS" if max(n * by / 32768 for n, by in zip(own, multipliers, strict=True)) <= bound else "WARN"


def parts(steps: list[int], multipliers: list[int]) -> list[float]:
    """Of each contribution its part of the sum."""
    counted = [count for count, each in zip(steps, multipliers, strict=True) if each]
    if not counted:
        return [0.0] * len(steps)
    total = 32768 * sum(count**3 for count in counted)
    return [
        single(float(Fraction(count * count * each * max(counted), total)))
        for count, each in zip(steps, multipliers, strict=True)
    ]


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
    acc = [0.0] * len(version)
    for gradient, part in zip(gradients, parts(steps, multipliers), strict=True):
        acc = [single(sum_ + single(value * part)) for sum_, value in zip(acc, gradient, strict=True)]
    step = acc
    if mu:
        before = momentum or [0.0] * len(version)
        momentum = [single(single(m * single(mu)) + a) for m, a in zip(before, acc, strict=True)]
        step = momentum
        if nesterov:
            step = [single(a + single(m * single(mu))) for a, m in zip(acc, momentum, strict=True)]
    return [single(v - single(s * single(lr))) for v, s in zip(version, step, strict=True)], momentum


def start(version: list[float], payload: list[float], alpha: float) -> list[float]:
    """One tensor of the weights that a round with delay starts from."""
    return [single(v - single(g * single(alpha))) for v, g in zip(version, payload, strict=True)]


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
        for segment in range(its):
            lot = keccak(seed + replica.to_bytes(2, "big") + segment.to_bytes(2, "big"))
            if Fraction(int.from_bytes(lot[:8], "big"), 2**64) < Fraction(share):
                found.append([replica, segment])
    return seed, found


def evaluators(
    block_hash: bytes, run: bytes, round: int, digests: list[bytes], counted: list[list[int]], replicas: int
) -> tuple[list[int], bytes]:
    seed = keccak(block_hash + run + round.to_bytes(4, "big") + b"".join(digests))
    sound = set(counted[0]).intersection(*counted[1:])
    order = sorted(sound, key=lambda replica: keccak(seed + b"evaluation" + replica.to_bytes(2, "big")))
    return order[:replicas], keccak(seed + b"held out")


def evaluation(fields: dict[str, Any]) -> bytes:
    names = ("run", "version", "replica", "stage", "previous", "activations", "sum", "count")
    return b"".join(word(fields[name]) for name in names)


def may_end(case: dict[str, Any], round: int) -> bool:
    """By a case of stopping.json: whether a seal of the round may end the run."""
    patience, every, window = case["patience"], case["every"], case["window"]
    oldest, losses = round + 1 - window - (2 * patience + 1) * every, []
    candidates = [t for t in range(every, round, every) if t >= oldest]
    for t in candidates if len(candidates) >= 2 * patience else []:
        said = [one for one in case["said"].get(str(t), []) if one and one[2] < case["seal_blocks"][round - 1]]
        if 2 * len(said) > case["drawn"] and (len(said) == case["drawn"] or t - 1 < round - window):
            losses.append(lower_median([Fraction(total, 10**6 * count) for total, count, _ in said]))
    if len(losses) < 2 * patience:
        return False
    before, newest = lower_median(losses[-2 * patience : -patience]), lower_median(losses[-patience:])
    return before - newest < Fraction(case["min_improvement"])


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
    place = permuted(_blake(b"dlx sample order", seed, epoch, window), place, size)
    return [sum(counts[:shard]) + at for shard in shards for at in range(counts[shard])][place]


def permuted(key: bytes, place: int, size: int) -> int:
    rows = next(root for root in range(size + 1) if root * root >= size)
    columns = -(-size // rows)
    while True:
        left, right = divmod(place, columns)
        for turn in range(4):
            left = (left + _keyed(key, 2 * turn, right)) % rows
            right = (right + _keyed(key, 2 * turn + 1, left)) % columns
        place = left * columns + right
        if place < size:
            return place


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


# ---- what weight a stage's members have

FULL, ENOUGH, EPOCH = 65536, 32768, 16


def power(b: int, n: int) -> int:
    r = 1 << 64
    while n > 0 and r > 0:
        if n % 2:
            r = r * b >> 64
        b = b * b >> 64
        n >>= 1
    return r


def faded(x: int, seconds: int, half: int) -> int:
    q = 12786308645202655659 // half
    return x * power((1 << 64) - q + (q * q >> 65), seconds) >> 64


class Weights:
    """Of one stage. Its events are those of weights.json."""

    def __init__(self, horizon: int, timeout: int) -> None:
        self.horizon, self.timeout, self.seals, self.epoch = horizon, timeout, 0, 0
        self.lanes: dict[int, dict[str, Any]] = {}  # by their numbers
        self.absent: dict[int, dict[str, int]] = {}
        self.pool, self.pool_of = [0, 0], (0, 0)  # in 2^-32; of which time, and after how many seals

    def aged(self, x: int, seals: int) -> int:
        return x * power(2**64 - 2**64 // self.horizon, seals) >> 64

    def left(self, number: int, time: int) -> tuple[int, int]:
        """Of an absent weight, in seals and in verdicts, in 2^-32."""
        gone = self.absent.get(number, {"weight": 0, "time": time, "seals": self.seals})
        slow = self.aged(gone["weight"] << 32, self.seals - gone["seals"])
        return faded(slow, time - gone["time"], 64 * self.timeout), slow

    def pools(self, time: int) -> list[int]:
        since, seals = self.pool_of
        fast, slow = (self.aged(each, self.seals - seals) for each in self.pool)
        return [faded(fast, time - since, 64 * self.timeout), slow]

    def lane_of(self, number: int) -> dict[str, Any] | None:
        return next((lane for lane in self.lanes.values() if lane["who"] == number), None)

    def join(self, time: int, number: int) -> None:
        free = next(at for at in range(64) if at not in self.lanes)
        fast, slow = self.left(number, time)
        if number in self.absent:
            self.pool = [max(0, each - its) for each, its in zip(self.pools(time), (fast, slow), strict=True)]
            self.pool_of = time, self.seals
            del self.absent[number]
        self.lanes[free] = {"who": number, "lane": free, "weight": slow >> 32, "pay": 0, "age": 15}

    def leave(self, time: int, number: int) -> None:
        lane = self.lane_of(number)
        assert lane is not None
        del self.lanes[lane["lane"]]
        self.absent[number] = {"weight": lane["weight"], "time": time, "seals": self.seals}
        self.pool = [each + (lane["weight"] << 32) for each in self.pools(time)]
        self.pool_of = time, self.seals

    def seal(self, round: int, records: list[list[int]]) -> None:
        if not records:
            return
        k, horizon = self.seals, self.horizon
        if round // EPOCH > self.epoch:
            self.epoch = round // EPOCH
            for lane in self.lanes.values():
                lane["pay"] = 0
        jitter = k * 0x9E3779B1 % horizon
        for lane in self.lanes.values():
            lane["weight"] -= (lane["weight"] + jitter) // horizon
            lane["age"] = min(15, lane["age"] + 1)
        total, before = sum(steps for _, steps in records), 0
        offset = total * (k % 16) // 16
        for number, steps in records:
            after, gains = before + steps, self.lane_of(number)
            if gains is not None:
                for name, whole in ("weight", FULL // horizon), ("pay", 255):
                    gains[name] += (whole * after + offset) // total - (whole * before + offset) // total
                gains["weight"], gains["age"] = min(65535, gains["weight"]), 0
            before = after
        self.seals += 1

    def judge(self, time: int, signers: list[int], founder: bool) -> dict[str, Any]:
        """What these signatures weigh, and what there is."""
        present = {lane["who"]: lane["weight"] for lane in self.lanes.values()}
        gone = sum(self.left(number, time)[0] >> 32 for number in signers if number not in present)
        fast, slow = (each >> 32 for each in self.pools(time))
        lanes = sum(present.values())
        vacuum = max(0, ENOUGH - lanes - max(fast, gone))
        votes = gone + sum(present.get(number, 0) for number in signers) + (vacuum if founder else 0)
        return {"votes": votes, "total": lanes + max(fast, gone) + vacuum, "pool": [fast, slow], "vacuum": vacuum}

    def is_in_time(self, time: int, signers: list[int], founder: bool, quorum: list[int]) -> bool:
        """Whether these may seal a record of the first of them alone before the timeout."""
        found = self.judge(time, signers, founder)
        lane = self.lane_of(signers[0]) if signers else None
        maker = (self.left(signers[0], time)[0] >> 32 if signers else 0) if lane is None else lane["weight"]
        makers = maker + (found["vacuum"] if founder else 0)
        return bool(signers) and quorum[1] * makers >= quorum[0] * found["total"]

    def alone(self, seals: int) -> list[int]:
        """Of two lanes, of which the first of so many seals counts both and the others the first."""
        for who in (0, 1):
            self.join(0, who)
        for at in range(seals):
            self.seal(at, [[0, 100], [1, 100]] if not at else [[0, 100]])
        return [self.lanes[at][name] for name in ("weight", "age") for at in (0, 1)]

    def seals_with(self, votes: int, total: int, late: int, quorum: list[int]) -> bool:
        silent = faded(total - votes, late, 2 * self.timeout)
        return votes >= max(-(-quorum[0] * (votes + silent) // quorum[1]), -(-total // 3))

    def convicts_with(self, account: int, time: int) -> int:
        """How much weight it takes against the account."""
        lane, slow = self.lane_of(account), self.pools(time)[1] >> 32
        own = self.left(account, time)[1] >> 32 if lane is None else lane["weight"]
        whole = max(ENOUGH, sum(each["weight"] for each in self.lanes.values()) + slow)
        return max(-(-2 * (whole - own) // 3), -(-3 * whole // 5))


# ---- who has which slot


class Slots:
    """Of a run. Its events are those of slots.json; accounts are numbers."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, self.draw, self.round = case, 0, 0
        self.opened: int | None = None
        self.stages = [SlotsOfStage() for _ in range(case["stages"])]
        self.members: dict[int, dict[str, int]] = {}  # all that ever held a slot
        self.freed: dict[tuple[int, int], int] = {}  # since when, by replica and stage
        self.waits: dict[tuple[int, int], tuple[int, int]] = {}  # for whom, until when
        self.broke: dict[int, int] = {}  # the round in which a replica was last complete
        self.whole: dict[int, int] = {}  # or dealt, or became complete

    # ---- what they do

    def see(self, event: dict[str, Any]) -> None:
        now = event["time"]
        match event:
            case {"join": who, "stage": asked, "slot": slot}:
                assert list(self.slot_for(now, who, asked) or ()) == slot
                self.take(now, who, *slot)
            case {"leave": who}:
                self.lose(now, who)
            case {"move": who, "to": replica}:
                member = self.members[who]
                assert not self.is_complete(member["replica"]) and replica < member["replica"]
                assert self.lowest(now, who, member["stage"]) == replica
                self.vacate(now, who)
                self.sit(now, who, replica)
            case {"accuse": who, "forfeit": forfeit}:
                member, stage = self.members[who], self.stages[self.members[who]["stage"]]
                assert self.is_forfeit(who) == forfeit
                member |= {"asked": 2 if forfeit else 1, "asked_at": now, "asked_seals": stage.seals}
            case {"answer": who, "counted_since": counted}:
                member = self.members[who]
                assert self.is_counted_since(who) == counted
                member["asked"] = 0 if member["asked"] == 1 or counted else 3
            case {"evict": who, "until": until}:
                member = self.members[who]
                counted = self.stages[member["stage"]].age[who] < 8
                assert until == (now + self.case["eviction_time"] if counted else 0)
                self.lose(now, who)
                member["asked"] = 0
                if until:
                    self.waits[member["replica"], member["stage"]] = who, until
            case {"deal": replica, "swaps": swaps}:
                assert self.swaps(replica) == swaps
                for number, other in swaps:
                    self.swap(number, replica, other)
            case {"seal": number, "digest": digest, "counted": counted}:
                stage = self.stages[number]
                stage.seal([stage.maker(int(replica)) for replica in counted])
                self.draw ^= int(digest, 16) & (1 << 56) - 1
                if all(one.round > self.round for one in self.stages):
                    self.round, self.opened = self.round + 1, now

    def take(self, now: int, who: int, replica: int, number: int) -> None:
        before, stage = self.members.get(who), self.stages[number]
        if before is None or before["stage"] != number:
            idle = before["idle"] if before else 0
            before = {"idle": idle, "asked": 0, "asked_at": before["asked_at"] if before else 0, "left": -1}
        came = max(0, stage.seals - before["idle"])
        self.members[who] = before | {"stage": number, "holds": 1, "came": came, "took": stage.round}
        self.waits.pop((replica, number), None)
        stage.age[who] = 15
        self.sit(now, who, replica)

    def sit(self, now: int, who: int, replica: int) -> None:
        member = self.members[who]
        self.stages[member["stage"]].sit(who, replica)
        member["replica"] = replica
        if self.is_complete(replica) and (replica not in self.broke or self.round > self.broke[replica] + 1):
            self.whole[replica] = self.round
        complete = sum(map(self.is_complete, range(self.case["max_replicas"])))
        if self.opened is None and complete >= self.case["min_replicas"]:
            self.opened = now
            for stage in self.stages:
                stage.begin()

    def vacate(self, now: int, who: int) -> None:
        replica, number = self.members[who]["replica"], self.members[who]["stage"]
        if self.is_complete(replica):
            self.broke[replica] = self.round
        del self.stages[number].sits[replica]
        self.freed[replica, number] = now
        self.waits.pop((replica, number), None)

    def lose(self, now: int, who: int) -> None:
        member, stage = self.members[who], self.stages[self.members[who]["stage"]]
        self.vacate(now, who)
        member["idle"] = 0 if stage.age.pop(who) < 8 else stage.seals - member["came"]
        member |= {"holds": 0, "asked": 0 if member["asked"] < 2 else 3}
        member["left"] = -1 if self.opened is None else stage.round

    def swap(self, number: int, a: int, b: int) -> None:
        sits = self.stages[number].sits
        sits[a], sits[b] = sits[b], sits[a]
        for replica in (a, b):
            self.stages[number].first.setdefault(replica, None)
            self.members[sits[replica]]["replica"] = replica
            self.whole[replica] = self.round

    # ---- what they may do

    def is_complete(self, replica: int) -> bool:
        return all(replica in stage.sits for stage in self.stages)

    def slot_for(self, now: int, who: int, asked: int) -> tuple[int, int] | None:
        """The slot that somebody without one gets in this stage, or, of 65535, in any."""
        member = self.members.get(who)
        if member is not None and asked in (member["stage"], 65535) and self.may_return(now, who):
            return member["replica"], member["stage"]
        stages = range(len(self.stages)) if asked == 65535 else [asked]
        found = min(((self.lowest(now, who, number), number) for number in stages), default=None)
        if found is None or found[0] == 64:
            return None
        if member is not None and found[1] != member["stage"]:
            assert not self.stays(who), "its old stage has not sealed since"
        return found

    def may_return(self, now: int, who: int) -> bool:
        own = self.members[who]["replica"], self.members[who]["stage"]
        account, until = self.waits.get(own, (-1, 0))
        return account == who and until >= now

    def stays(self, who: int) -> bool:
        """Whether it may take no slot of another stage."""
        return self.stages[self.members[who]["stage"]].round == self.members[who]["left"]

    def lowest(self, now: int, who: int, number: int) -> int:
        """64: none."""
        for replica in range(self.case["max_replicas"]):
            account, until = self.waits.get((replica, number), (who, 0))
            waits = until >= now and account != who
            just = (replica, number) not in self.waits and self.freed.get((replica, number)) == now
            if replica not in self.stages[number].sits and not waits and not just:
                return replica
        return 64

    def is_forfeit(self, who: int) -> bool:
        stage = self.stages[self.members[who]["stage"]]
        return stage.age[who] >= 8 and stage.seals >= self.members[who]["came"] + 8

    def is_counted_since(self, who: int) -> bool:
        member, stage = self.members[who], self.stages[self.members[who]["stage"]]
        return stage.age[who] < min(15, stage.seals - member.get("asked_seals", 0))

    def may_accuse(self, now: int, who: int, by_member: bool) -> bool:
        member, stage, timeout = self.members[who], self.stages[self.members[who]["stage"]], self.case["round_timeout"]
        forfeit, asked = self.is_forfeit(who), member["asked"]
        if self.opened is None or (member["asked_at"] and now <= member["asked_at"] + timeout):
            return False
        if asked and not self.is_counted_since(who) and (asked != 3 or forfeit):
            return False
        idle = stage.idle(who) >= 3 and stage.round >= member["took"] + 3
        late = now - self.opened
        return forfeit or late > 32 * timeout or (by_member and (idle or late > timeout))

    def may_answer(self, who: int) -> bool:
        asked = self.members[who]["asked"]
        return asked in (1, 2) or (asked == 3 and self.is_counted_since(who))

    def may_evict(self, now: int, who: int) -> bool:
        member, stage = self.members[who], self.stages[self.members[who]["stage"]]
        if not member["asked"] or self.is_counted_since(who):
            return False
        lost = member["asked"] != 3 or stage.seals >= member["asked_seals"] + 16
        return lost and now >= member["asked_at"] + self.case["eviction_time"]

    def swaps(self, replica: int) -> list[list[int]]:
        """Of a deal, without the stages that draw the replica itself."""
        found = []
        for number, stage in enumerate(self.stages):
            lot = keccak(b"".join(map(word, (self.draw, self.round, replica, number))))
            held = sorted(stage.sits)
            found.append([number, held[int.from_bytes(lot, "big") % len(held)]])
        return [one for one in found if one[1] != replica]

    def may_deal(self, replica: int) -> bool:
        if self.opened is None or not self.is_complete(replica) or self.round < self.whole.get(replica, 0) + 3:
            return False
        idle = any(stage.idle(stage.sits[replica]) >= 3 for stage in self.stages)
        return idle and bool(self.swaps(replica))

    def state(self, now: int) -> dict[str, str]:
        """After an event: digits of replicas or accounts. What is nobody's is left out."""
        replicas, members = range(self.case["max_replicas"]), self.members
        held = sorted(who for who, member in members.items() if member["holds"])
        left = sorted(set(members) - set(held))

        def shown(numbers: list[int]) -> str:
            return "".join(map(str, numbers))

        if self.opened is None:
            for stage in self.stages:
                stage.begin()  # nobody has begun anything
        makers = ([stage.maker(replica) for replica in replicas] for stage in self.stages)
        free = [self.lowest(now, -1, number) for number in range(len(self.stages))]
        found = {
            "makers": " ".join("".join("-" if who is None else str(who) for who in each) for each in makers),
            "free": "".join("-" if replica == 64 else str(replica) for replica in free),
            "forfeit": shown([who for who in held if self.is_forfeit(who)]),
            "asked_by_members": shown([who for who in held if self.may_accuse(now, who, True)]),
            "asked_by_anyone": shown([who for who in held if self.may_accuse(now, who, False)]),
            "may_answer": shown([who for who in held if self.may_answer(who)]),
            "may_return": shown([who for who in left if self.may_return(now, who)]),
            "stays_in_its_stage": shown([who for who in left if self.stays(who)]),
            "evicted": shown([who for who in held if self.may_evict(now, who)]),
            "dealt": shown([replica for replica in replicas if self.may_deal(replica)]),
        }
        return {what: value for what, value in found.items() if value}


class SlotsOfStage:
    def __init__(self) -> None:
        self.round = self.seals = self.empty = 0  # the next round; seals that count something; empty ones since
        self.sits: dict[int, int] = {}  # by replica
        self.at_seal: dict[int, int] = {}  # likewise, at the newest seal
        self.first: dict[int, int | None] = {}  # who took first what was free then
        self.had: set[int] = set()  # who had a slot of the stage at the newest seal or since
        self.age: dict[int, int] = {}  # of the lane of each member

    def begin(self) -> None:
        self.at_seal, self.first, self.had = dict(self.sits), {}, set(self.sits.values())

    def sit(self, who: int, replica: int) -> None:
        self.sits[replica] = who
        self.first.setdefault(replica, None if who in self.had else who)
        self.had.add(who)

    def maker(self, replica: int) -> int | None:
        if replica in self.at_seal:
            return self.at_seal[replica]
        return self.first.get(replica)

    def idle(self, who: int) -> int:
        return self.age[who] + self.empty

    def seal(self, makers: list[int | None]) -> None:
        self.round += 1
        if not makers:
            self.empty += 1
        else:
            self.seals, self.empty = self.seals + 1, 0
            self.age = {who: 0 if who in makers else min(15, age + 1) for who, age in self.age.items()}
        self.begin()


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


def lower_median(values: list[Any]) -> Any:
    return sorted(values)[(len(values) - 1) // 2]


# ---- who fetches which pieces


def shares(blob: bytes, peers: list[str], pieces: int) -> dict[str, list[int]]:
    order = sorted(peers, key=lambda peer: hashlib.sha256(blob + peer.encode("ascii")).digest())[:8]
    n = len(order)
    found = {peer: [pieces * k // n, pieces * (k + 1) // n] for k, peer in enumerate(order)}
    return {peer: [first, end] for peer, (first, end) in found.items() if first < end}


# ---- what a statement's trace, past and steps must be


def trace_is_true(said: dict[str, Any], stage: int, stages: int, data: bytes) -> bool:
    """By a case of traces.json: whether a trace may be true."""
    n, taken = said["segments"], said["inner_steps"]
    if len(data) != 64 * (n + 1) + 128 * n + 32 * taken + 130:
        return False
    hashes = [data[at : at + 32].hex() for at in range(0, 64 * (n + 1) + 128 * n, 32)]
    ends = ("weights_before", "optimiser_before"), ("change", "optimiser_after")
    if [hashes[:2], hashes[2 * n : 2 * n + 2]] != [[said[name] for name in both] for both in ends]:
        return False
    first, last = stage == 0, stage == stages - 1
    for at in range(2 * (n + 1), len(hashes), 4):
        if [name == "00" * 32 for name in hashes[at : at + 4]] != [first, last, last, first]:
            return False
    losses = []
    for came, passed, norm, loss in struct.iter_unpack("<4d", data[32 * len(hashes) : -130]):
        if not all(math.isfinite(one) and one >= 0 for one in (came, passed, norm, loss)) or loss > 1e9:
            return False
        if (first and came) or passed < came or norm < math.sqrt(passed):
            return False
        losses.append(Fraction(loss))
    mean = float(sum(losses)) / taken * 1e6
    return bool(said["loss"] == min(round(mean), 2**32 - 1))


def recorded(stage: int, said: dict[str, Any], data: bytes) -> dict[str, str]:
    """What a trace says of the pipes to the stages before and after: the sha256 that both ends sign."""
    n, found = said["segments"], {}
    hashes = [data[at : at + 32] for at in range(64 * (n + 1), 64 * (n + 1) + 128 * n, 32)]
    steps = list(struct.iter_unpack("<4d", data[64 * (n + 1) + 128 * n : -130]))
    for side, forth, back, total in ("before", 0, 3, 0), ("after", 2, 1, 1):
        files = b"".join(hashes[at + forth] + hashes[at + back] for at in range(0, 4 * n, 4))
        if any(files):
            told = b"".join(struct.pack("<3d", step[total], step[2], step[3]) for step in steps)
            found[side] = hashlib.sha256(files + told).hexdigest()
    return found


def follows(case: dict[str, Any], said: dict[str, Any]) -> bool:
    """By a case of continuity.json: whether a statement follows from what its account stated before."""
    none, delay, now = "00" * 32, case["delay"], said["round"]
    made = {hashlib.sha256(statement(one)).hexdigest(): one for one in case["statements"]}
    counted = {name: t for t, names in enumerate(case["seals"]) for name in names if name in made}
    p, reset = made.get(said["previous"]), said["flags"] & 2
    if said["flags"] & ~3 or (p is None and said["previous"] != none):
        return False
    resets = [t for name, t in counted.items() if made[name]["flags"] & 2 and now - 63 <= t <= now - 1 - delay]
    if reset and len(resets) >= 4:
        return False
    same = ("run", "stage", "account")
    if p is not None and (p["round"] >= now or any(p[name] != said[name] for name in same)):
        return False
    since = p["round"] if p is not None else 0
    if (p is not None or not reset) and any(since <= t < now and made[name] is not p for name, t in counted.items()):
        return False
    start, folded, state = none, list[str](), (case["unused"], none, none)
    if p is not None and not reset:
        state = p["optimiser_after"], p["change"], p["payload"]
        if delay == 1 and case["alpha"] and p["round"] == now - 1:
            start = p["payload"]
        before, late = made.get(p["previous"]), [p]
        if before is not None and not p["flags"] & 2 and delay == 1 and before["round"] == p["round"] - 1:
            late.insert(0, before)
        names = {id(one): name for name, one in made.items()}
        due = [one for one in late if now - 16 <= one["round"] <= now - 1 - delay]
        folded = [one["payload"] for one in due if names[id(one)] not in case["seals"][one["round"]]]
    weights = case["starts"][start] if start != none else said["base_weights"]
    return bool(
        said["start_payload"] == start
        and said["weights_before"] == weights
        and [said["folded_payload"], said["folded_payload2"]] == [*folded, none, none][:2]
        and (said["optimiser_before"], said["change_before"], said["payload_before"]) == state
    )


def most_steps(delay: int, plan: int, round: int, counted: list[int], multiplier: int) -> int:
    """`counted`: the rounds whose seals have a record of the account, with this multiplier."""
    base = max(0, round - delay)
    if multiplier and any(round - 63 <= t <= base - 1 for t in counted):
        return plan
    return min(plan, max(2, -(-plan // 16)))


# ---- what the ledger is told of a manifest, and the contracts' code


def config(text: str) -> dict[str, Any]:
    """All of a run's config but `outer`."""
    manifest = json.loads(text)
    timing, quorum, share = manifest["timing"], manifest["quorum"], manifest["audit"]["share"]
    adaptive = manifest["adaptive"]
    return {
        "manifest": hashlib.sha256(text.encode()).hexdigest(),
        "stages": len(manifest["stages"]),
        "horizon": horizon(share, manifest["max_replicas"]),
        "quorum_numerator": quorum["numerator"],
        "quorum_denominator": quorum["denominator"],
        "max_inner_steps": adaptive["max_inner_steps"] if adaptive else manifest["plan"]["inner_steps"],
        "bond": manifest["bond"] * 10**9,
        **{name: timing[name] for name in ("min_round_time", "round_timeout", "eviction_time", "start_time")},
        **{name: manifest[name] for name in ("rounds", "min_replicas", "max_replicas", "tokens_per_step", "invited")},
    }


def horizon(share: float, replicas: int) -> int:
    most = 1
    while most * 2 <= 1024 and most * 2 * replicas <= 16_384:
        most *= 2
    return max(8, min(most, 2 ** round(math.log2(8 / share)))) if share else most


def tensors(text: str, stage: int) -> dict[str, list[int]]:
    """Of a stage of a run of the family `llama` without biases, names and shapes."""
    manifest = json.loads(text)
    said, (low, high), last = manifest["model"]["config"], manifest["stages"][stage], len(manifest["stages"]) - 1
    d, f, heads = said["hidden_size"], said["intermediate_size"], said["num_attention_heads"]
    k = said["num_key_value_heads"] * d // heads
    layer = {"self_attn.q_proj": [d, d], "self_attn.k_proj": [k, d], "self_attn.v_proj": [k, d]}
    layer |= {"self_attn.o_proj": [d, d], "mlp.gate_proj": [f, d], "mlp.up_proj": [f, d], "mlp.down_proj": [d, f]}
    layer |= {"input_layernorm": [d], "post_attention_layernorm": [d]}
    found = {f"model.layers.{i}.{name}": shape for i in range(low, high) for name, shape in layer.items()}
    found |= {"model.embed_tokens": [said["vocab_size"], d]} if stage == 0 else {}
    found |= {"model.norm": [d]} if stage == last else {}
    found |= {"lm_head": [said["vocab_size"], d]} if stage == last and not said["tie_word_embeddings"] else {}
    return {f"{name}.weight": shape for name, shape in found.items()}


def unused(optimiser: str, shapes: dict[str, list[int]]) -> str:
    """The hash of a stage's optimiser state of zeros, where no matrix is several in one."""
    state: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        if optimiser == "adamw" or ".layers." not in name or len(shape) == 1:
            state |= {f"exp_avg.{name}": shape, f"exp_avg_sq.{name}": shape, "step": [1]}
            continue
        state[f"{optimiser}.momentum.{name}"] = shape
        if optimiser == "shampoo":
            state |= {f"shampoo.rows.{name}": [1, shape[0], shape[0]]}
            state |= {f"shampoo.columns.{name}": [1, shape[1], shape[1]]}
    zeros = {name: (shape, [0.0] * math.prod(shape)) for name, shape in state.items()}
    return hashlib.sha256(canonical(zeros)).hexdigest()


def code_hash(case: dict[str, Any], code: bytes) -> str:
    """Of a contract's code on a chain, by its part of contracts.json; one place of a library is like the others."""
    blank = bytearray(code)
    for at in case["immutables"]:
        blank[at : at + 32] = bytes(32)
    for places in case["libraries"].values():
        assert len({code[at : at + 20] for at in places}) == 1
        for at in places:
            blank[at : at + 20] = bytes(20)
    return keccak(bytes(blank)).hex()
