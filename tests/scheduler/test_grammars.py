"""Requests that follow grammars: what the scheduler makes of matchers, whatever they are."""

import itertools
import time

import numpy as np
import pytest

from corymb.scheduler import constraint
from corymb.scheduler.messages import Abort, Forget, Grammar, Learn

from .bench import EOS, VOCAB_SIZE, Bench, generate

(END,) = EOS
COUNT = Grammar("ebnf", "counts")  # rising letters, then the end


class Counting:
    """Allows letters above the one before, and the end after three."""

    def __init__(self, sleep_s=0.0):
        self.last, self.count, self.is_over, self.sleep_s = ord("a") - 1, 0, False, sleep_s
        self.before = []

    def allowed(self):
        letters = list(range(self.last + 1, ord("p") + 1))
        return letters + [END] * (self.count >= 3 or not letters)

    def accept(self, token_id):
        if self.is_over or token_id not in self.allowed():
            return False
        self.before.append((self.last, self.count, self.is_over))
        self.is_over = token_id == END
        self.last, self.count = token_id, self.count + 1
        return True

    def rollback(self, count):
        self.last, self.count, self.is_over = self.before[-count]
        del self.before[-count:]

    def fill(self, bits):
        until_s = time.thread_time() + self.sleep_s
        while time.thread_time() < until_s:
            pass
        flags = np.zeros(len(bits) * 32, np.uint8)
        flags[self.allowed()] = 1
        bits[:] = np.packbits(flags, bitorder="little").view(np.int32)


class FakeMatchers:
    """Takes a grammar in after so many questions."""

    def __init__(self, *, turns=0, sleep_s=0.0):
        self.known, self.turns, self.sleep_s = {}, turns, sleep_s

    def learn(self, grammar, compiled):
        self.known[grammar.text] = compiled

    def learnt(self, grammar):
        self.turns -= 1
        if self.turns >= 0:
            return None
        return "broken" if self.known[grammar.text] == b"broken" else ""

    def knows(self, grammar):
        return grammar.text in self.known

    def open(self, grammar):
        return Counting(self.sleep_s)

    def forget(self, grammar):
        self.known.pop(grammar.text, None)


def bench_that_knows(**options):
    bench = Bench(matchers=options.pop("matchers", None) or FakeMatchers(), **options)
    bench.send(Learn("1", COUNT, b"compiled"))
    bench.step(2)
    return bench


def texts_of(bench):
    return {rid: bench.tokens(rid) for rid in bench.sent}


def rising(token_ids):
    return all(a < b for a, b in itertools.pairwise(token_ids))


@pytest.mark.parametrize("depth", [0, 1])
def test_a_grammar_is_followed_to_its_end(depth):
    bench = bench_that_knows(overlap_depth=depth)
    bench.send(generate("a", max_new=40, grammar=COUNT), generate("plain", max_new=40))
    bench.finish()
    *letters, end = bench.tokens("a")
    assert rising(letters)
    assert len(letters) >= 3
    assert end == END
    assert bench.finish_of("a").reason == "stop"
    bench.check_exact("plain")
    bench.check_empty()


def requests():
    for number in range(12):
        prompt = b"a prompt of some length " + bytes([97 + number]) * (number + 1)
        yield generate(f"g{number}", prompt, max_new=6 + number % 9, grammar=COUNT, seed=number)
        yield generate(f"p{number}", prompt, max_new=6 + number % 9, seed=number)


VARIANTS = {
    "no overlap": {"overlap_depth": 0},
    "retraction": {"test_retract_interval": 3},
    "tight": {"cache": {"num_full_tokens": 160}},
    "chunks": {"chunked_prefill_size": 8, "enable_mixed_chunk": True},
    "no cache": {"test_force_cache_miss": True},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_texts_are_the_same_however_they_are_scheduled(variant):
    plain, other = bench_that_knows(), bench_that_knows(**variant)
    for bench in (plain, other):
        bench.send(*requests())
        bench.finish()
        bench.check_empty()
    assert texts_of(other) == texts_of(plain)
    assert all(rising(bench_tokens[:-1]) for rid, bench_tokens in texts_of(plain).items() if rid.startswith("g"))


def test_an_end_before_the_least_number_of_tokens_comes_only_where_nothing_else_may():
    bench = bench_that_knows()
    bench.send(generate("a", max_new=40, min_new_tokens=30, grammar=COUNT))
    bench.finish()
    *letters, end = bench.tokens("a")
    assert letters[-1] == ord("p")  # the end was no choice while letters were left
    assert end == END
    assert bench.finish_of("a").reason == "stop"


def test_a_grammar_that_ends_too_late_ends_with_the_limit():
    bench = bench_that_knows()
    bench.send(generate("a", max_new=2, grammar=COUNT))
    bench.finish()
    assert bench.finish_of("a").reason == "length"
    assert rising(bench.tokens("a"))


def test_a_grammar_begins_after_the_tokens_that_it_waits_for():
    bench = bench_that_knows()
    bench.send(generate("free", max_new=5, grammar=Grammar("ebnf", "counts", after=(1, 2, 3))))
    bench.finish()
    first = bench.tokens("free")[:3]
    bench.send(generate("a", max_new=40, grammar=Grammar("ebnf", "counts", after=tuple(first[1:]))))
    bench.finish()
    assert bench.tokens("a")[:3] == first
    assert rising(bench.tokens("a")[3:-1])
    assert bench.finish_of("a").reason == "stop"


def test_no_end_comes_before_the_tokens_that_a_grammar_waits_for():
    bench = bench_that_knows()
    bench.send(generate("a", max_new=300, grammar=Grammar("ebnf", "counts", after=(1, 2, 3))))
    bench.finish()
    assert END not in bench.tokens("a")
    assert bench.finish_of("a").reason == "length"


def test_a_slow_grammar_ends_alone(monkeypatch):
    monkeypatch.setattr(constraint, "SLOWEST_TOKEN_S", 0.002)
    monkeypatch.setattr("corymb.scheduler.following.SLOWEST_TOKEN_S", 0.002)
    bench = bench_that_knows(matchers=FakeMatchers(sleep_s=0.004))
    bench.send(generate("slow", max_new=40, grammar=COUNT), generate("plain", max_new=20))
    bench.finish()
    finish = bench.finish_of("slow")
    assert (finish.reason, finish.status, finish.code) == ("error", 400, "grammar_too_complex")
    bench.check_exact("plain")
    bench.check_empty()


def test_a_slow_grammar_ends_when_all_ranks_hear_of_it(monkeypatch):
    monkeypatch.setattr(constraint, "SLOWEST_TOKEN_S", 0.002)
    monkeypatch.setattr("corymb.scheduler.following.SLOWEST_TOKEN_S", 0.002)
    verdicts = []
    bench = bench_that_knows(matchers=FakeMatchers(sleep_s=0.004), condemn=verdicts.append)
    bench.send(generate("slow", max_new=40, grammar=COUNT), generate("plain", max_new=20))
    while not verdicts:
        bench.step()
    bench.send(verdicts[0])
    bench.finish()
    assert {verdict.rid for verdict in verdicts} == {"slow"}
    assert bench.finish_of("slow").code == "grammar_too_complex"
    bench.check_exact("plain")
    bench.check_empty()


def test_a_token_outside_the_grammar_fails_its_request_alone(monkeypatch):
    bench = bench_that_knows()
    monkeypatch.setattr(Counting, "accept", lambda *_: False)
    bench.send(generate("a", max_new=40, grammar=COUNT), generate("plain", max_new=20))
    bench.finish()
    assert (bench.finish_of("a").reason, bench.finish_of("a").status) == ("error", 500)
    bench.check_exact("plain")


def test_an_aborted_request_leaves_its_masks_out():
    bench = bench_that_knows()
    bench.send(*[generate(rid, max_new=40, grammar=COUNT) for rid in "abc"])
    bench.step(3)
    bench.send(Abort("b"))
    bench.finish()
    assert bench.finish_of("b").reason == "abort"
    assert {bench.finish_of(rid).reason for rid in "ac"} == {"stop"}
    bench.check_empty()


def test_learning_is_answered_in_order_and_keeps_the_loop_awake():
    bench = Bench(matchers=FakeMatchers(turns=5))
    bench.send(Learn("1", COUNT, b"compiled"), Learn("2", Grammar("ebnf", "other"), b"broken"))
    bench.step()
    assert not bench.scheduler.is_idle
    bench.finish()
    assert [(reply.id, reply.ok, reply.message) for reply in bench.port.replies] == [
        ("1", True, ""),
        ("2", False, "broken"),
    ]


def test_only_known_grammars_may_be_named():
    bench = bench_that_knows()
    bench.send(generate("a", grammar=Grammar("ebnf", "unknown")), generate("b", grammar=COUNT, max_new=40))
    bench.step()
    bench.send(Forget(COUNT))
    bench.finish()
    bench.send(generate("c", grammar=COUNT))
    bench.finish()
    assert [bench.finish_of(rid).reason for rid in "abc"] == ["error", "stop", "error"]
    without = Bench()
    without.send(Learn("1", COUNT, b"compiled"), generate("a", grammar=COUNT))
    without.finish()
    assert not without.port.replies[0].ok
    assert without.finish_of("a").status == 400


def test_ids_to_wait_for_lie_in_the_vocabulary():
    bench = bench_that_knows()
    bench.send(generate("a", grammar=Grammar("ebnf", "counts", after=(VOCAB_SIZE,))))
    bench.finish()
    assert "grammar.after" in bench.finish_of("a").message
