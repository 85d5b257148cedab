"""Evidence on disk, and that no honest script of an account leaves any."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from dlx.ledger.bonds import NoContradiction, SignedSeal, TwoSeals, TwoStatements, contradict
from dlx.ledger.typed import Contribution, Seal
from dlx.node.home import evidence as store
from dlx.node.home.datadir import DataDir
from dlx.node.home.errors import Failure
from dlx.node.home.keys.slashing_protection import Contradiction, SignedStatements, SlashingProtection
from tests.node.made_statements import ACCOUNT, DOMAIN, KEY, RUN, contribution, digest, seal


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    folder = DataDir(tmp_path)
    first, second = (replace(contribution(), payload=digest(n)).sign(DOMAIN, KEY) for n in (1, 2))
    made = TwoStatements(first, second)
    place = folder.state / RUN.hex() / "stage-0" / "evidence"
    for _ in range(2):
        store.keep(place, ACCOUNT, made)
    (place / ".9-0123456789abcdef.tmp").write_bytes(b"of a write that was killed")
    ((path, found),) = store.kept(folder, pytest.fail)
    assert found == made and found.offender(DOMAIN) == ACCOUNT
    assert path.name.startswith(f"4-{ACCOUNT}-")
    said = list[str]()
    (place / "0-junk").write_bytes(b"junk")
    assert [one for one, _ in store.kept(folder, said.append)] == [path] and "0-junk holds no evidence" in said[0]
    path.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(Failure, match="holds no evidence"):
        store.read(path)


class Honest:
    """One account on machines that restart, move with what it signed, meet reorgs and try rounds again. It asks its
    guard for whatever its node's rules could ask for, and remembers what left the machine."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random, self.machine = folder, Random(seed), 0
        self.contributions: list[Contribution] = []
        self.seals: list[Seal] = []
        self.refused = 0

    def play(self, moves: int) -> None:
        for _ in range(moves):
            move = self.random.choice(
                (self.contribute, self.contribute, self.attest, self.attest, self.attest, self.move)
            )
            move()

    @contextmanager
    def guard(self) -> Iterator[SlashingProtection]:
        """Opened for one signature: the node may be killed after each."""
        path = self.folder / f"machine-{self.machine}.sqlite"
        with closing(SlashingProtection(path, KEY, DOMAIN)) as guard, suppress(Contradiction):
            self.refused += 1
            yield guard
            self.refused -= 1

    def contribute(self) -> None:
        """A round that was trained, maybe again: after a restart, on a base that a reorg changed, by another plan."""
        round, pick = self.random.randrange(3), self.random.randrange
        again = replace(
            contribution(round=round, stage=pick(2), payload=pick(4)),
            base_weights=digest(pick(2)), plan=digest(pick(2)), replica=pick(2), compute_ms=1 + pick(3),
        )  # fmt: skip
        with self.guard() as guard:
            self.contributions.append(guard.sign_contribution(again).contribution)

    def attest(self) -> None:
        """Any proposer's choice of records and multipliers, after whatever seal the chain has now. What follows is a
        function of these, but for a bit that flips."""
        pick = self.random.randrange
        made = seal(round=pick(3), stage=pick(2), multipliers=tuple(32768 - pick(2) for _ in range(1 + pick(2))))
        previous, plan = digest(pick(2)), replace(made.outcome.plan, rank=pick(2))
        weights = digest(hash((previous, made.records)) % 2**64 + (self.random.random() < 0.1))
        made = replace(made, previous=previous, outcome=replace(made.outcome, weights=weights, plan=plan))
        with self.guard() as guard:
            guard.sign_seal(made)
            self.seals.append(made)

    def move(self) -> None:
        """To another machine, maybe one where it was before, with what it signed."""
        with closing(SignedStatements(self.folder / f"machine-{self.machine}.sqlite", ACCOUNT)) as here:
            entries = here.entries()
        self.machine = self.random.randrange(3)
        with closing(SignedStatements(self.folder / f"machine-{self.machine}.sqlite", ACCOUNT)) as there:
            there.merge(entries)


@pytest.mark.parametrize("seed", range(4))
def test_no_honest_script_leaves_evidence(tmp_path: Path, seed: int) -> None:
    honest = Honest(tmp_path, seed)
    honest.play(150)
    assert honest.contributions and honest.seals and honest.refused, "the script met its guard"
    for one, other in combinations(honest.contributions, 2):
        signed = [each.sign(DOMAIN, KEY) for each in (one, other)]
        with pytest.raises(NoContradiction):
            TwoStatements(*signed).offender(DOMAIN)
    for first, second in combinations(honest.seals, 2):
        assert not contradict(first, second)
        with pytest.raises(NoContradiction):
            TwoSeals(SignedSeal(first, bytes(65)), SignedSeal(second, bytes(65))).offender(DOMAIN)


def test_a_machine_without_its_record_is_what_evidence_is_of(tmp_path: Path) -> None:
    """So a record is part of the account: without it, it may have said something else already."""
    signed = []
    for machine, payload in enumerate((1, 2)):
        with closing(SlashingProtection(tmp_path / str(machine), KEY, DOMAIN)) as guard:
            signed.append(guard.sign_contribution(contribution(payload=payload)))
    assert TwoStatements(*signed).offender(DOMAIN) == ACCOUNT
