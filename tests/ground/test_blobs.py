import errno
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from dlx.ground import blob_index, blobs, locks, room
from dlx.ground.blobs import CHUNK, BlobStore, Kind, NoRoom, piece_bytes
from dlx.ground.partial import Partial
from tests.patience import PATIENCE

SIZE = 10_000  # of the blobs here


def blob(store: BlobStore, kind: Kind) -> bytes:
    return store.put(os.urandom(SIZE), kind)


def download(store: BlobStore, data: bytes, *chunks: int, kind: Kind = Kind.PUBLIC) -> Partial:
    """Some MiB of it, as they come."""
    partial = store.partial(hashlib.sha256(data).digest(), len(data), kind)
    for index in chunks:
        partial.write(index * CHUNK // partial.piece, data[index * CHUNK : (index + 1) * CHUNK])
    return partial


def there(partial: Partial) -> set[int]:
    """The whole MiB that it has."""
    each = CHUNK // partial.piece
    return {index for index in range(-(-partial.count // each)) if partial.done >= set(whole(partial, index))}


def whole(partial: Partial, index: int) -> range:
    each = CHUNK // partial.piece
    return range(index * each, min(partial.count, (index + 1) * each))


@pytest.fixture
def clock(monkeypatch):
    """The time that the index notes, in a list."""
    now = [1_000_000.0]
    monkeypatch.setattr(blob_index.time, "time", lambda: now[0])
    return now


# ---- files ----


def test_the_store_keeps_files_by_their_hash(tmp_path):
    store = BlobStore(tmp_path / "blobs")
    data = os.urandom(3_000_000)
    name = store.put(data)
    assert name == hashlib.sha256(data).digest()
    assert store.has(name) and store.path(name) == tmp_path / "blobs" / name.hex()
    assert store.path(name).read_bytes() == data
    assert store.hashes() == {name} == BlobStore(tmp_path / "blobs").hashes()
    assert not store.has(bytes(32)) and not list((tmp_path / "blobs" / ".partial").iterdir())
    with pytest.raises(ValueError):
        store.path(b"../../etc/passwd")


def test_a_damaged_blob_is_found_removed_and_put_again(tmp_path):
    store = BlobStore(tmp_path)
    name = store.put(b"good")
    assert store.sound(name)
    store.path(name).write_bytes(b"goof")
    assert store.put(b"good") == name and store.path(name).read_bytes() == b"good"
    store.path(name).write_bytes(b"goof")
    assert not store.sound(name) and not store.has(name) and not store.sound(name)


@pytest.mark.parametrize("fails", [False, True])
def test_a_blob_that_another_puts_while_a_damaged_one_is_read_stays(fails, tmp_path, monkeypatch):
    store = BlobStore(tmp_path)
    path = store.path(store.put(b"good"))
    path.write_bytes(b"goof")
    read = hashlib.file_digest

    def replaced(file, digest):
        monkeypatch.undo()
        found = read(file, digest)
        BlobStore(tmp_path).put(b"good")
        if fails:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return found

    monkeypatch.setattr(blobs.hashlib, "file_digest", replaced)
    assert not store.sound(bytes.fromhex(path.name))
    assert path.read_bytes() == b"good"


# ---- downloads ----


def test_a_download_goes_on_where_the_process_died(tmp_path):
    data = os.urandom(3 * CHUNK + 5)
    download(BlobStore(tmp_path), data, 3, 1).close()
    store = BlobStore(tmp_path)
    second = download(store, data)
    assert there(second) == {1, 3} and not second.finish()
    second.close()
    assert download(store, data, 0, 2).finish()
    assert store.path(hashlib.sha256(data).digest()).read_bytes() == data
    assert not list((tmp_path / ".partial").iterdir())


def test_a_download_knows_its_class_before_it_is_here(tmp_path):
    store, data = BlobStore(tmp_path), os.urandom(SIZE)
    assert download(store, data, 0, kind=Kind.PAYLOAD).finish()
    assert store.kind(hashlib.sha256(data).digest()) is Kind.PAYLOAD


def test_pieces_are_leaves_and_never_too_many_of_them():
    sizes = [0, 1, 5000, CHUNK, 16 * CHUNK, 16 * CHUNK + 1, 5 << 30]
    assert [piece_bytes(size) for size in sizes] == [4096, 4096, 4096, 4096, 4096, 8192, CHUNK]


def test_pieces_that_are_dropped_are_missing_also_for_who_goes_on(tmp_path):
    store, data = BlobStore(tmp_path), os.urandom(SIZE)
    first = download(store, data, 0)
    assert first.done == {0, 1, 2}
    first.drop({1})
    first.close()
    again = download(store, data)
    assert again.done == {0, 2}
    again.write(1, data[4096:8192])
    assert again.finish()


def test_a_mark_that_was_torn_does_not_shift_the_others(tmp_path):
    store, data = BlobStore(tmp_path), os.urandom(3 * CHUNK)
    first = download(store, data, 2)
    os.write(first._marks, b"\0\0")  # the disk was full in the middle of a mark
    first.close()
    second = download(store, data, 1)
    second.close()
    assert there(download(store, data)) == {1, 2}


def test_downloads_that_were_given_up_do_not_stay_for_ever(tmp_path):
    old, new = os.urandom(SIZE), os.urandom(SIZE)
    for data in (old, new):
        download(BlobStore(tmp_path), data, 0).close()
    for file in (tmp_path / ".partial").glob(f"{hashlib.sha256(old).hexdigest()}*"):
        os.utime(file, (0, 0))
    BlobStore(tmp_path)
    assert {file.name[:64] for file in (tmp_path / ".partial").iterdir()} == {hashlib.sha256(new).hexdigest()}


def test_two_who_download_the_same_blob_do_not_spoil_it_for_each_other(tmp_path):
    data = os.urandom(2 * CHUNK)
    one, two = BlobStore(tmp_path), BlobStore(tmp_path)
    first, second = download(one, data, 0), download(two, bytes(2 * CHUNK), 0)
    third = download(two, data, 0)
    assert there(second) == there(third) == {0} == there(first)
    third.discard()
    for partial in (first, third):
        for index in range(2):
            partial.write(whole(partial, index).start, data[index * CHUNK : (index + 1) * CHUNK])
        assert partial.finish()
        partial.close()
    second.close()
    assert one.sound(hashlib.sha256(data).digest())


def test_a_finished_download_is_not_opened_again_by_who_saw_it_before(tmp_path, monkeypatch):
    """Between opening the file and locking it, its owner moved it to its place."""
    store, data = BlobStore(tmp_path), os.urandom(SIZE)
    first = download(store, data, 0)
    take, finished = locks.take, []

    def finish_first(file: int, path: Path) -> bool:
        if not finished:
            finished.append(first.finish())
            first.close()
        return take(file, path)

    monkeypatch.setattr(locks, "take", finish_first)
    second = store.partial(hashlib.sha256(data).digest(), SIZE)
    second.discard()
    second.close()
    assert finished == [True] and store.sound(hashlib.sha256(data).digest())


def test_wrong_bytes_are_not_a_disk_error_and_a_disk_error_is_not_wrong_bytes(tmp_path):
    store, data = BlobStore(tmp_path), os.urandom(SIZE)
    partial = download(store, data)
    partial.write(0, bytes(SIZE))
    assert not partial.finish()
    partial.discard()
    partial.write(0, data)
    os.pwrite(partial._file, b"\0" * 100, 500)  # the disk lost what it had taken
    with pytest.raises(OSError, match="gives back other bytes"):
        partial.finish()
    assert not partial.done
    partial.write(0, data)
    assert partial.finish()


# ---- classes and pins ----


def test_the_last_word_on_a_class_counts_and_the_rest_is_public(tmp_path):
    store = BlobStore(tmp_path)
    payload, version, other = (blob(store, kind) for kind in (Kind.PAYLOAD, Kind.VERSION, Kind.PUBLIC))
    (tmp_path / hashlib.sha256(b"x" * 7).hexdigest()).write_bytes(b"x" * 7)  # by another program
    store.note(other, Kind.PAYLOAD)
    assert [store.kind(name) for name in (payload, version, other)] == [Kind.PAYLOAD, Kind.VERSION, Kind.PAYLOAD]
    assert {kind: size for kind, size in store.usage().items() if size} == {
        Kind.PUBLIC: 7, Kind.PAYLOAD: 2 * SIZE, Kind.VERSION: SIZE,
    }  # fmt: skip


def test_only_what_is_old_and_nobody_has_pinned_is_evicted(tmp_path, clock):
    store = BlobStore(tmp_path)
    old, pinned, version = blob(store, Kind.PAYLOAD), blob(store, Kind.PAYLOAD), blob(store, Kind.VERSION)
    store.pin("a slot", [pinned])
    clock[0] += 100
    new = blob(store, Kind.PAYLOAD)
    assert store.evict(Kind.PAYLOAD, older_than=50) == 1
    assert store.hashes() == {pinned, version, new} and not store.has(old)
    store.pin("another", [new])
    store.pin("a slot", [])  # no longer
    assert store.evict(Kind.PAYLOAD) == 1 and store.hashes() == {version, new}


def test_pins_and_classes_outlive_the_process_and_hold_in_others(tmp_path):
    code = (
        "import sys; from pathlib import Path; from dlx.ground.blobs import BlobStore, Kind\n"
        "store = BlobStore(Path(sys.argv[1])); names = [store.put(bytes([i]) * 100, Kind.PAYLOAD) for i in range(3)]\n"
        "store.pin('slot', names[1:]); print(names[0].hex(), flush=True); import os; os.kill(os.getpid(), 9)"
    )
    store = BlobStore(tmp_path)  # open meanwhile
    mine = store.put(b"mine", Kind.PAYLOAD)
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, timeout=PATIENCE)
    unpinned = bytes.fromhex(ended.stdout.decode())
    for each in (store, BlobStore(tmp_path)):
        assert each.kind(unpinned) is Kind.PAYLOAD
    assert store.evict(Kind.PAYLOAD) == 2 and len(store.hashes()) == 2
    assert not store.has(unpinned) and not store.has(mine)


def test_what_is_said_of_a_blob_that_is_still_to_come_is_kept_for_a_while(tmp_path, clock):
    store, name = BlobStore(tmp_path), hashlib.sha256(b"soon").digest()
    store.note(name, Kind.PAYLOAD)
    assert store.evict(Kind.PAYLOAD) == 0
    assert BlobStore(tmp_path).kind(name) is Kind.PAYLOAD
    clock[0] += 30 * 24 * 3600
    assert BlobStore(tmp_path).kind(name) is Kind.PUBLIC


# ---- room ----


def test_the_quota_is_kept_by_evicting_the_oldest_that_nobody_needs(tmp_path, clock):
    store = BlobStore(tmp_path, quota=5 * SIZE)
    public = blob(store, Kind.PUBLIC)
    names = []
    for kind in (Kind.PAYLOAD, Kind.VERSION, Kind.PAYLOAD):
        names.append(blob(store, kind))
        clock[0] += 1
    store.pin("slot", [names[1]])
    first = blob(store, Kind.PAYLOAD)
    assert store.hashes() == {public, *names, first} and store.used() == 5 * SIZE
    clock[0] += 1
    second = blob(store, Kind.VERSION)
    assert store.hashes() == {public, names[1], names[2], first, second}  # the oldest is gone
    third = store.put(bytes(2 * SIZE), Kind.PAYLOAD)
    assert store.hashes() == {public, names[1], second, third}  # the pinned one is older
    before = store.hashes()
    with pytest.raises(NoRoom, match="disk quota 50,000") as refused:
        store.put(bytes(4 * SIZE))
    assert refused.value.errno == 28 and store.hashes() == before  # nothing was removed in vain


def test_for_a_second_file_of_a_blob_nothing_is_removed(tmp_path):
    store = BlobStore(tmp_path, quota=3 * SIZE)
    kept = blob(store, Kind.PAYLOAD)
    name = hashlib.sha256(b"the blob").digest()
    first = store.draft(name, SIZE)
    first.write_bytes(bytes(SIZE))
    second = store.draft(name, SIZE, True)
    second.write_bytes(bytes(SIZE))
    with pytest.raises(NoRoom):
        store.draft(name, SIZE, True)
    assert store.hashes() == {kept}
    second.unlink()
    store.draft(name, SIZE, True).write_bytes(bytes(SIZE))  # what was given up has given its room back
    store.draft(name, SIZE)
    assert not store.hashes(), "the first file of a blob is worth more than what nobody needs"


def test_what_is_written_beside_the_blobs_takes_room_of_the_disk_and_not_of_the_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(room.shutil, "disk_usage", lambda folder: namedtuple("Usage", "free")(10 * CHUNK))
    store = BlobStore(tmp_path, quota=2 * CHUNK, floor=CHUNK)
    store.make_room(CHUNK, beside=5 * CHUNK)
    with pytest.raises(NoRoom, match="too little"):
        store.make_room(0, beside=10 * CHUNK)


def test_the_floor_keeps_space_free_for_others(tmp_path, monkeypatch):
    store = BlobStore(tmp_path, floor=50_000)
    blob(store, Kind.PAYLOAD)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(room.shutil, "disk_usage", lambda folder: usage(0, 0, 65_000 - SIZE * len(store.hashes())))
    store.used()
    other = blob(store, Kind.PUBLIC)
    assert store.hashes() == {other}
    with pytest.raises(NoRoom, match="disk floor 50,000"):
        blob(store, Kind.PUBLIC)
    with pytest.raises(OSError, match="MB too little"):
        store.partial(bytes(32), SIZE)


def test_a_download_takes_its_room_from_the_start(tmp_path):
    store = BlobStore(tmp_path, quota=10 * CHUNK)
    data = os.urandom(8 * CHUNK)
    partial = download(store, data, 0)
    with pytest.raises(NoRoom):
        BlobStore(tmp_path, quota=10 * CHUNK).put(bytes(3 * CHUNK))
    partial.close()
    again = download(store, data, *range(1, 8))  # going on takes no more
    assert again.finish()


def test_a_download_that_was_given_up_gives_way(tmp_path):
    store = BlobStore(tmp_path, quota=5 * CHUNK)
    download(store, os.urandom(4 * CHUNK), 0).close()
    with pytest.raises(NoRoom):
        store.make_room(4 * CHUNK)
    for file in (tmp_path / ".partial").iterdir():
        os.utime(file, (0, 0))
    store.make_room(4 * CHUNK)
    assert not [file for file in (tmp_path / ".partial").iterdir() if len(file.name) == 64]


def test_two_threads_do_not_take_the_same_room(tmp_path):
    store = BlobStore(tmp_path, quota=20 * SIZE)
    store.used()
    refused = []

    def take() -> None:
        try:
            store.make_room(4 * SIZE)
        except NoRoom:
            refused.append(1)

    store.make_room(store._room.quota - store.used() - 20 * SIZE)
    store._room.measure = lambda: 0
    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3


def test_room_is_not_measured_for_every_blob(tmp_path, monkeypatch):
    store, measured = BlobStore(tmp_path, quota=1 << 30, floor=1), []
    measure = room.Room.measure
    monkeypatch.setattr(room.Room, "measure", lambda self: measured.append(1) or measure(self))
    for index in range(50):
        store.put(bytes([index]))
    assert len(measured) == 1


# ---- the index ----


@pytest.mark.parametrize("damage", ["garbage", "format"])
def test_a_damaged_index_is_made_anew_and_costs_no_blob(tmp_path, damage):
    store = BlobStore(tmp_path)
    name = blob(store, Kind.PAYLOAD)
    store.close()
    if damage == "garbage":
        (tmp_path / ".index.sqlite").write_bytes(os.urandom(10_000))
    else:
        with sqlite3.connect(tmp_path / ".index.sqlite") as table:
            table.execute("PRAGMA user_version = 99")
    again = BlobStore(tmp_path)
    assert again.has(name) and again.kind(name) is Kind.PUBLIC and again.evict(Kind.PAYLOAD) == 0
    again.note(name, Kind.PAYLOAD)
    assert BlobStore(tmp_path).kind(name) is Kind.PAYLOAD


def test_an_index_that_is_damaged_while_it_is_used_is_made_anew(tmp_path):
    again = BlobStore(tmp_path)
    names = [blob(again, Kind.PAYLOAD), *(os.urandom(32) for _ in range(300))]
    for name in names:
        again.note(name, Kind.PAYLOAD)
    again.close()
    file = tmp_path / ".index.sqlite"
    whole = file.read_bytes()
    file.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))  # the head is right
    with pytest.raises(OSError, match="index of the blobs"):
        for name in names:
            again.kind(name)
        again._index.kinds()
    again.note(names[0], Kind.PAYLOAD)
    assert again.kind(names[0]) is Kind.PAYLOAD and again.evict(Kind.PAYLOAD) == 1


def test_an_index_that_is_busy_is_an_error_of_the_disk_and_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(blob_index, "BUSY", 0.05)
    store = BlobStore(tmp_path)
    name = blob(store, Kind.PAYLOAD)
    store.pin("slot", [name])
    other = sqlite3.connect(tmp_path / ".index.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OSError, match="locked"):
        BlobStore(tmp_path).note(bytes(32), Kind.PAYLOAD)
    other.execute("ROLLBACK")
    assert store.evict(Kind.PAYLOAD) == 0 and store.kind(name) is Kind.PAYLOAD


def test_a_store_opens_on_a_folder_whose_index_cannot_be_read(tmp_path):
    BlobStore(tmp_path).close()
    shutil.rmtree(tmp_path / ".partial")
    index = tmp_path / ".index.sqlite"
    index.unlink()
    index.mkdir()
    store = BlobStore(Path(tmp_path))
    with pytest.raises(OSError, match="index of the blobs"):
        store.note(bytes(32), Kind.PAYLOAD)


def test_shards_stay_up_to_a_size_and_those_of_coming_rounds_beyond_it(tmp_path, clock):
    store = BlobStore(tmp_path)
    public = blob(store, Kind.PUBLIC)
    names = []
    for _ in range(4):
        names.append(blob(store, Kind.SHARD))
        clock[0] += 1
    store.pin("the next round", [names[0]])
    assert store.shrink(Kind.SHARD, 4 * SIZE) == 0
    assert store.shrink(Kind.SHARD, 2 * SIZE) == 2
    assert store.hashes() == {public, names[0], names[3]}, "the oldest that nobody needs go"
    assert store.shrink(Kind.SHARD, 0) == 1 and store.has(names[0])
