"""What the host has of a request comes to the device while others compute; nobody reads it before it is there."""

import pytest

from corymb.cache.config import HostConfig
from corymb.scheduler import prefetching

from .bench import Bench, generate

BEGINNING = b"a long beginning that the device has forgotten "
ROOM = {"num_full_tokens": 512, "host": HostConfig(num_full_tokens=512)}


class Link:
    """Holds copies back until a step must come behind them, or `open` is set."""

    def __init__(self, runner, monkeypatch):
        self.open, self.awaited, copy = False, [], runner._copy_up_to

        def copy_up_to(number):
            lot = runner._lots[-1]
            self.awaited.append(lot.awaited)
            copy(lot.number if self.open else lot.awaited)

        monkeypatch.setattr(runner, "_copy_up_to", copy_up_to)


@pytest.fixture
def forgetful(monkeypatch):
    """A bench whose host alone has BEGINNING, and its link."""
    monkeypatch.setattr(prefetching, "LEAST_SENT_AHEAD", 8)
    bench = Bench(cache=ROOM)
    bench.send(generate("first", BEGINNING + b"1"))
    bench.finish()
    bench.step()  # an idle one: what is to be stored gets to the host
    bench.cache.execute(bench.cache.tree.evict({"full": 512}))
    return bench, Link(bench.runner, monkeypatch)


def test_others_go_on_while_a_beginning_comes(forgetful):
    bench, link = forgetful
    bench.send(generate("runs", b"x", max_new=200, ignore_eos=True))
    bench.step(3)
    bench.send(generate("comes", BEGINNING + b"2"), generate("copy", BEGINNING + b"3"), generate("new", b"yz"))
    bench.step(10)
    assert bench.of("comes") == bench.of("copy") == []
    assert bench.of("new"), "who is behind it goes on"
    assert len(bench.tokens("runs")) > 10
    assert not any(link.awaited), "no step came behind the copies"
    link.open = True
    bench.step(6)
    assert [bench.of(rid)[0].num_cached_tokens for rid in ("comes", "copy")] == [len(BEGINNING)] * 2
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)


def test_who_is_alone_does_not_wait(forgetful):
    bench, link = forgetful
    bench.send(generate("comes", BEGINNING + b"2"))
    bench.step(2)
    assert any(link.awaited), "its step comes behind the copies"
    bench.finish()
    assert bench.of("comes")[0].num_cached_tokens == len(BEGINNING)
    bench.check_exact("comes")


def test_who_waited_goes_on_when_nobody_is_left(forgetful):
    bench, link = forgetful
    bench.send(generate("runs", b"x", max_new=6, ignore_eos=True))
    bench.step()
    bench.send(generate("comes", BEGINNING + b"2"))
    bench.finish()
    assert any(link.awaited)
    assert bench.of("comes")[0].num_cached_tokens == len(BEGINNING)
    bench.check_exact("comes")


def test_a_short_beginning_is_not_waited_for(forgetful, monkeypatch):
    bench, link = forgetful
    monkeypatch.setattr(prefetching, "LEAST_SENT_AHEAD", len(BEGINNING) + 1)
    bench.send(generate("runs", b"x", max_new=200, ignore_eos=True))
    bench.step()
    bench.send(generate("comes", BEGINNING + b"2"))
    bench.step(4)
    assert any(link.awaited)
    assert bench.of("comes")[0].num_cached_tokens == len(BEGINNING)


def test_flushing_while_it_comes_loses_nothing_but_the_hit(forgetful):
    bench, _ = forgetful
    bench.send(generate("runs", b"x", max_new=6, ignore_eos=True))
    bench.step()
    bench.send(generate("comes", BEGINNING + b"2"))
    while not bench.of("runs") or bench.of("runs")[-1].finish is None:
        bench.step()
        if not bench.cache.leases:
            assert bench.cache.flush()
    bench.finish()
    for rid in ("runs", "comes"):
        bench.check_exact(rid)
