"""What stays on disk: what the manifest's retention says, and nothing of refused or superseded rounds."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlx.ground.blobs import BlobStore, Kind
from dlx.ledger.typed import Contribution
from dlx.node.daemon.data import retention as module
from dlx.node.daemon.data.retention import Retention, drop_other_stages, kept_rounds, kept_stage, kept_versions
from dlx.node.round.rules.plans import RESET_WINDOW
from dlx.training.balance.history import history
from dlx.training.recipe.recipe import Retention as Terms
from tests.node.daemon.data.test_versions import STAGE, FakeView, name, version_bytes
from tests.node.made_statements import contribution
from tests.node.round.simulation import make_rules

RUN = b"\x01" * 32


class View(FakeView):
    """Each round counts one payload, with its statement."""

    def _seal(self, round: int) -> Any:
        record = SimpleNamespace(statement=name(statement_bytes(round)))
        return SimpleNamespace(records=(record,))


def payload_bytes(round: int) -> bytes:
    return f"payload of round {round}".encode()


def statement_bytes(round: int) -> bytes:
    return replace(contribution(round), payload=name(payload_bytes(round))).encode()


def retention(store: BlobStore, payloads: Any = "run", **rules: Any) -> Retention:
    return Retention(store, Terms(payloads=payloads, versions=3, every=10), make_rules(**rules), RUN, STAGE)


def keep(kept: Retention, view: FakeView, adopted: int, own: tuple[bytes, ...] = ()) -> None:
    seen: Any = view
    kept.keep(seen, adopted, own)


def put(store: BlobStore, *versions: int) -> None:
    for number in versions:
        store.put(version_bytes(number), Kind.VERSION)
        if number:
            store.put(version_bytes(number, "momentum"), Kind.VERSION)


def versions_in(store: BlobStore, upto: int, what: str = "weights") -> list[int]:
    return [number for number in range(upto + 1) if store.has(name(version_bytes(number, what)))]


def payloads_in(store: BlobStore, upto: int) -> list[int]:
    """Each with its statement."""
    found = [round for round in range(upto) if store.has(name(payload_bytes(round)))]
    assert {*found} <= {*statements_in(store, upto)}
    return found


def statements_in(store: BlobStore, upto: int) -> list[int]:
    return [round for round in range(upto) if store.has(name(statement_bytes(round)))]


def test_old_versions_go_and_every_tenth_stays(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    for number in range(27):
        put(store, number)
        keep(retention(store), View(number), number)
    assert versions_in(store, 26) == [0, 10, 20, 24, 25, 26]
    assert versions_in(store, 26, "momentum") == [10, 20, 24, 25, 26]


def test_a_restart_and_a_jump_leave_nothing_old(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    put(store, 23, 24)
    keep(retention(store), View(24), 24)
    store.close()
    store = BlobStore(tmp_path)
    put(store, 98, 99)
    keep(retention(store), View(99), 99)
    assert versions_in(store, 99) == [98, 99]


def test_a_version_that_an_empty_seal_repeats_is_not_dropped(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    put(store, *range(5))
    for adopted in range(4, 10):
        keep(retention(store), View(adopted, empty=set(range(4, 9))), adopted)  # versions 4 to 9 are the same
    assert 4 in versions_in(store, 4)


def test_payloads_stay_for_the_whole_run_or_for_the_last_rounds_with_a_version_below_them(tmp_path: Path) -> None:
    for payloads, expected in (("run", list(range(26))), (4, list(range(20, 26)))):
        store = BlobStore(tmp_path / str(payloads))
        for round in range(26):
            put(store, round)
            store.put(payload_bytes(round), Kind.PAYLOAD)
            store.put(statement_bytes(round), Kind.PAYLOAD)
            keep(retention(store, payloads), View(round + 1), round)
        assert payloads_in(store, 26) == expected
        assert 20 in versions_in(store, 26)


def test_statements_stay_as_long_as_members_look_through_them_for_resets(tmp_path: Path) -> None:
    store, rounds = BlobStore(tmp_path), RESET_WINDOW + 20
    for round in range(rounds):
        store.put(payload_bytes(round), Kind.PAYLOAD)
        store.put(statement_bytes(round), Kind.PAYLOAD)
    keep(retention(store, 4), View(rounds), rounds)
    store.evict(Kind.PAYLOAD)
    assert payloads_in(store, rounds) == [*range(80, rounds)]
    assert statements_in(store, rounds) == [*range(rounds - RESET_WINDOW, rounds)]


def test_refused_superseded_and_abandoned_payloads_go_when_no_round_can_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(tmp_path)
    sealed, refused, mine = (store.put(data, Kind.PAYLOAD) for data in (payload_bytes(0), b"refused", b"mine"))
    store.put(statement_bytes(0), Kind.PAYLOAD)
    manifest = store.put(b"a manifest")
    store.put(statement_bytes(0), Kind.PAYLOAD)
    keep(retention(store), View(1), 1, own=(mine,))
    assert store.has(refused), "its round may yet be under way"
    monkeypatch.setattr(module, "LOOKED_AT_SECONDS", 0.0)
    keep(retention(store), View(1), 1, own=(mine,))
    assert not store.has(refused)
    assert store.has(sealed) and store.has(mine) and store.has(manifest)


def test_what_a_reorg_takes_back_stays_until_its_round_is_sealed_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKED_AT_SECONDS", 0.0)
    store = BlobStore(tmp_path)
    for round in range(8):
        put(store, round + 1)
        store.put(payload_bytes(round), Kind.PAYLOAD)
        store.put(statement_bytes(round), Kind.PAYLOAD)
        keep(retention(store), View(round + 1), round + 1)
    keep(retention(store), View(4), 4)
    assert payloads_in(store, 8) == list(range(8)), "seals that come again as they were need them"
    assert versions_in(store, 8)[-1] == 8

    class Other(View):
        def _seal(self, round: int) -> Any:
            return super()._seal(round if round < 4 else 100 + round)

    keep(retention(store), Other(5), 5)
    assert payloads_in(store, 8) == [0, 1, 2, 3, 5, 6, 7]


class Resumed(View):
    """The rounds 0 to 4 leave out what one account made; the others count it."""

    chain: tuple[Contribution, ...]

    def _seal(self, round: int) -> Any:
        return SimpleNamespace(records=(SimpleNamespace(statement=self.chain[round].hash()),) if round > 4 else ())


def chain(rounds: int) -> tuple[Contribution, ...]:
    """Of one account, each naming the one before and starting with its payload."""
    made: list[Contribution] = []
    for round in range(rounds):
        before = (dict(previous=made[-1].hash(), start_payload=made[-1].payload)) if made else {}
        made.append(replace(contribution(round), payload=name(payload_bytes(round)), **before))
    return tuple(made)


def counted_later(store: BlobStore, made: tuple[Contribution, ...], kept: Retention, adopted: int) -> tuple[Any, Any]:
    """The rounds whose statements, and whose payloads, are kept when nobody needs anything of its own any more."""
    view = Resumed(adopted)
    view.chain = made
    for round, one in enumerate(made[:adopted]):
        store.put(one.encode(), Kind.PAYLOAD)
        store.put(payload_bytes(round), Kind.PAYLOAD)
    keep(kept, view, adopted)
    store.evict(Kind.PAYLOAD)
    statements = [round for round, one in enumerate(made) if store.has(one.hash())]
    return statements, [round for round, one in enumerate(made) if store.has(one.payload)]


def test_what_a_counted_contribution_is_judged_by_stays_as_long_as_it_and_nothing_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.plans, "RESET_WINDOW", 0)  # for which more statements stay
    store, made = BlobStore(tmp_path), chain(30)
    kept = retention(store, payloads=4, delay=1, alpha=0.5)
    assert counted_later(store, made, kept, 7) == ([3, 4, 5, 6], [4, 5, 6])
    assert counted_later(store, made, kept, 29) == ([*range(18, 29)], [*range(19, 29)]), "payloads from round 20 on"


@pytest.mark.parametrize(
    ("rules", "statements", "payloads"),
    [
        (dict(delay=0), [4, 5, 6], [5, 6]),
        (dict(delay=1), [3, 4, 5, 6], [5, 6]),
        (dict(delay=1, alpha=0.5, ahead=0.5), [3, 4, 5, 6], [5, 6]),
    ],
    ids=["folds back one", "starts without a payload", "starts that are not public"],
)
def test_nothing_is_kept_that_no_audit_looks_at(
    tmp_path: Path, rules: dict[str, Any], statements: list[int], payloads: list[int]
) -> None:
    store = BlobStore(tmp_path)
    assert counted_later(store, chain(8), retention(store, **rules), 7) == (statements, payloads)


@pytest.mark.parametrize("junk", [b"junk", b"junk" * 1000, b"j" * 896], ids=["short", "long", "of the right size"])
@pytest.mark.parametrize("back", [1, 2])
def test_a_name_of_something_else_makes_nobody_keep_it(tmp_path: Path, junk: bytes, back: int) -> None:
    """Nor what that would name, nor what is not here yet."""
    store, made = BlobStore(tmp_path), list(chain(7))
    made[7 - back] = replace(made[7 - back], previous=name(junk))
    if back == 2:
        made[6] = replace(made[6], previous=made[5].hash())
    for late in (False, True):
        if not late:
            store.put(junk, Kind.PAYLOAD)
        counted_later(store, tuple(made), retention(store, delay=1), 7)
        if late:
            store.put(junk, Kind.PAYLOAD)
            store.evict(Kind.PAYLOAD)
        assert not store.has(name(junk)) and store.has(made[6].hash())


@given(
    st.integers(0, 300),
    st.integers(0, 3),
    st.integers(1, 20),
    st.integers(1, 12),
    st.integers(1, 50),
    st.none() | st.integers(0, 30),
)
def test_whoever_has_the_kept_payloads_has_a_version_to_begin_with(
    adopted: int, ahead: int, versions: int, every: int, payloads: int, longer: int | None
) -> None:
    """`longer`: rounds beyond those of the payloads for which old versions stay; None: all."""
    checkpoints: Any = "run" if longer is None else payloads + longer
    terms, sealed = Terms(payloads, versions, every, checkpoints), adopted + ahead
    rounds = list(kept_rounds(terms, adopted, sealed))
    assert rounds == list(range(rounds[0], sealed)) if rounds else sealed == 0
    if rounds:
        assert rounds[0] in kept_versions(terms, adopted, sealed)
        assert rounds[0] <= max(0, adopted - payloads)


def test_old_versions_go_where_the_manifest_keeps_those_of_the_last_rounds() -> None:
    terms = Terms(payloads=24, checkpoints=24)
    assert kept_versions(terms, 100, 100) == {0, 70, 80, 90, 98, 99, 100}, "what the payloads of round 70 begin with"
    assert kept_versions(Terms(), 100, 100) == {*range(0, 101, 10), 98, 99}
    kept = [len(kept_versions(terms, adopted, adopted)) for adopted in range(1000)]
    assert max(kept) == history(terms, 1000, 1, 0).versions


def test_what_the_training_process_wrote_is_known_for_what_it_is_also_where_the_index_was_lost(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    weights, payload = store.put(version_bytes(1)), store.put(payload_bytes(0))  # as files that nobody spoke of
    store.put(statement_bytes(0))
    keep(retention(store), View(1), 1)
    assert (store.kind(weights), store.kind(payload)) == (Kind.VERSION, Kind.PAYLOAD)


def test_a_stage_that_was_left_needs_nothing_any_more(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    here = retention(store)
    there = Retention(store, here.terms, here.rules, RUN, STAGE + 1)
    mine, theirs = store.put(b"mine", Kind.PAYLOAD), store.put(b"of the old stage", Kind.PAYLOAD)
    store.pin(f"{RUN.hex()[:16]}/{STAGE}/own", [mine])
    store.pin(f"{RUN.hex()[:16]}/{STAGE + 1}/own", [theirs])
    there.store.pin("another run/0/own", [theirs])
    here.release_other_stages()
    assert store.has(mine) and store.has(theirs), "another run needs it"
    store.release("another run/0/own")
    assert not store.has(theirs)


@pytest.mark.parametrize("kind", [Kind.VERSION, Kind.PUBLIC], ids=["a member", "who created the run or mirrors it"])
def test_the_first_weights_are_kept_as_long_as_the_slot_and_by_creator_and_mirrors_longer(
    tmp_path: Path, kind: Kind
) -> None:
    store = BlobStore(tmp_path)
    here = retention(store)
    first = store.put(version_bytes(0), kind)
    put(store, 1, 14)
    keep(here, View(14, empty={0}), 14)  # V[1] is V[0]
    store.evict(Kind.VERSION)
    assert store.has(first) and store.kind(first) is kind
    Retention(store, here.terms, here.rules, RUN, STAGE + 1).release_other_stages()
    store.evict(Kind.VERSION)
    assert store.has(first) == (kind is Kind.PUBLIC)


def hold(run: Path, stage: int) -> Path:
    """What joining a stage makes: its folder, without a finished round."""
    slot = run / f"stage-{stage}" / "slot"
    slot.mkdir(parents=True, exist_ok=True)
    (slot / ("ab" * 32)).write_bytes(b"half a round")
    return slot / "slot.json"


def finish(run: Path, stage: int, second: int) -> Path:
    """What the first finished round makes, `second` s after the epoch."""
    state = hold(run, stage)
    state.write_text("{}")
    os.utime(state, (second, second))
    return state


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (2, 5), (5, 2)])
def test_a_change_of_stage_keeps_the_old_state_until_the_new_one_is_there(
    tmp_path: Path, first: int, second: int
) -> None:
    old = finish(tmp_path, first, 10)
    hold(tmp_path, second)
    drop_other_stages(tmp_path, second)
    assert old.exists() and kept_stage(tmp_path) == first, "given up before a round there: it has the old state only"
    new = finish(tmp_path, second, 20)
    assert kept_stage(tmp_path) == second
    drop_other_stages(tmp_path, second)
    assert new.exists() and not old.parent.exists() and kept_stage(tmp_path) == second


def test_a_new_node_has_no_stage_to_go_back_to(tmp_path: Path) -> None:
    assert kept_stage(tmp_path) is None
    (tmp_path / "stage-3" / "evidence").mkdir(parents=True)
    hold(tmp_path, 2)
    assert kept_stage(tmp_path) is None


def test_evidence_stays(tmp_path: Path) -> None:
    evidence = tmp_path / "stage-0" / "evidence" / "5-0xab-cd"
    evidence.parent.mkdir(parents=True)
    evidence.write_bytes(b"two contributions")
    finish(tmp_path, 0, 10)
    finish(tmp_path, 1, 20)
    drop_other_stages(tmp_path, 1)
    assert evidence.exists()
