"""Messages between processes: private, typed, never dropped when sound."""

import contextlib
import logging
import pickle
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from corymb.scheduler.messages import (
    MAX_MESSAGE_BYTES,
    Abort,
    Control,
    Failed,
    Generate,
    Heartbeat,
    Sampling,
    ToMain,
    ToScheduler,
)
from corymb.serve import transport
from corymb.serve.childhood import Parent
from corymb.serve.transport import Inbox, MessageTooLarge, Outbox, address, private_directory


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, sentinel: Path) -> None:
        self._sentinel = sentinel

    def __reduce__(self):
        return Path.touch, (self._sentinel,)


@pytest.fixture
def folder():
    with private_directory() as folder:
        yield folder


@pytest.fixture
def inbox(folder):
    with Inbox[ToScheduler](address(folder, "scheduler-0"), ToScheduler) as inbox:
        yield inbox


@pytest.fixture
def outbox(folder, inbox):
    with Outbox(address(folder, "scheduler-0"), bounded=False, linger_s=10) as outbox:
        yield outbox


def receive(inbox, count):
    messages = []
    while len(messages) < count:
        batch = inbox.receive(5.0)
        assert batch, f"only {len(messages)} of {count} messages came"
        messages += batch
    return messages


def test_messages_arrive_whole_and_in_order(inbox, outbox):
    sent = [
        Generate("a", b"\1\0\0\0", Sampling(max_new_tokens=3, logit_bias={5: 1.0}, stop_token_ids=(1, 2))),
        Abort("a", stopped=True),
        Control("1", "flush_cache"),
    ]
    for message in sent:
        outbox.send(message)
    assert receive(inbox, 3) == sent


def test_sender_may_start_before_the_receiver(folder):
    with Outbox(address(folder, "late"), bounded=False, linger_s=10) as outbox:
        outbox.send(Abort("a"))
        with Inbox[ToScheduler](address(folder, "late"), ToScheduler) as inbox:
            assert receive(inbox, 1) == [Abort("a")]


def test_ten_thousand_messages_to_a_slow_receiver_are_all_kept(inbox, outbox):
    for index in range(10_000):
        outbox.send(Abort(str(index)))
    assert [message.rid for message in receive(inbox, 10_000)] == [str(index) for index in range(10_000)]


def test_bounded_sender_waits_and_loses_nothing(folder, inbox):
    def send():
        with Outbox(address(folder, "scheduler-0"), bounded=True, linger_s=10) as outbox:
            for index in range(10_000):
                outbox.send(Abort(str(index)))
            arrived.wait(30)

    arrived = threading.Event()
    thread = threading.Thread(target=send)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive(), "10,000 messages fitted under the high-water marks"
    assert len(receive(inbox, 10_000)) == 10_000
    arrived.set()
    thread.join(5)
    assert not thread.is_alive()


def test_last_word_of_a_process_arrives_although_its_connection_is_full(folder):
    with Inbox[ToMain](address(folder, "main"), ToMain) as inbox:
        parent = Parent("scheduler-0", folder)
        sent = threading.Semaphore(0)

        def flood():
            for index in range(10_000):
                parent.send(Heartbeat(steps=index))
                sent.release()

        thread = threading.Thread(target=flood)
        thread.start()
        while sent.acquire(timeout=0.5):
            pass  # until the connection holds no more
        parent.failed("no memory")
        while Failed("scheduler-0", "no memory") not in (messages := inbox.receive(5.0)):
            assert messages
        while thread.is_alive():
            inbox.receive(0.05)
        parent.close()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        msgspec.msgpack.encode({"type": "Abort"}),
        msgspec.msgpack.encode({"type": "Nothing", "rid": "a"}),
        msgspec.msgpack.encode({"type": "Abort", "rid": 7}),
        msgspec.msgpack.encode({"type": "Abort", "rid": "a", "stopped": "yes"}),
        b"\x82\xa4type\xa5Abort\xa3rid\xa2\xff\xff",
        bytes(range(256)) * 40_000,
    ],
    ids=lambda payload: f"{payload[:12]!r}",
)
def test_malformed_message_is_dropped_and_logged(inbox, outbox, caplog, payload):
    with caplog.at_level(logging.WARNING):
        outbox._socket.send(payload)
        outbox.send(Abort("after"))
        assert receive(inbox, 1) == [Abort("after")]
    assert "malformed" in caplog.text


def test_pickle_bomb_is_dropped(inbox, outbox, tmp_path):
    sentinel = tmp_path / "run"
    outbox._socket.send(pickle.dumps(Bomb(sentinel)))
    outbox.send(Abort("after"))
    assert receive(inbox, 1) == [Abort("after")]
    assert not sentinel.exists()


def test_raw_noise_on_the_socket_is_dropped(inbox, outbox, folder):
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(folder / "scheduler-0"))
        raw.settimeout(2)
        with contextlib.suppress(OSError):  # the other side hangs up
            raw.sendall(b"\xff\0noise" * 100_000)
    outbox.send(Abort("after"))
    assert receive(inbox, 1) == [Abort("after")]


def test_oversized_message_is_refused_by_the_sender(outbox):
    with pytest.raises(MessageTooLarge, match="Abort of"):
        outbox.send(Abort("a" * (MAX_MESSAGE_BYTES + 1)))


def test_oversized_message_of_a_stranger_is_dropped(inbox, outbox, folder, monkeypatch):
    with Outbox(address(folder, "scheduler-0"), bounded=False, linger_s=10) as stranger:
        stranger._socket.send(bytes(MAX_MESSAGE_BYTES + 1))
        outbox.send(Abort("after"))
        assert receive(inbox, 1) == [Abort("after")]


def test_directory_is_private_and_goes_away():
    with private_directory() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "socket").touch()
    assert not folder.exists()


def test_long_temporary_folder_does_not_break_socket_paths(monkeypatch, tmp_path):
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setattr(transport.tempfile, "tempdir", str(deep))
    with private_directory() as folder, Inbox[ToScheduler](address(folder, "detokenizer"), ToScheduler):
        assert list(folder.iterdir())
