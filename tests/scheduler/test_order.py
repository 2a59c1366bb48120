"""The waiting orders."""

from random import Random

import numpy as np
import pytest

from corymb.cache.config import HostConfig
from corymb.cache.key import Key
from corymb.scheduler import order
from corymb.scheduler.beginnings import Beginnings
from corymb.scheduler.branches import dfs_weight
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.validity import validate

from .bench import Bench, generate

CALM = [False] * 9


def keys(*texts, salts=None):
    salts = salts or [None] * len(texts)
    return [
        Key(np.frombuffer(text, np.uint8).astype(np.int32), None, salt) for text, salt in zip(texts, salts, strict=True)
    ]


def test_fcfs_is_by_entry_and_by_urgency_first_when_there_is_one():
    assert order.fcfs([3, 1, 2]) == [1, 2, 0]
    assert order.fcfs([1, 2, 3, 4], urgency=[0, 5, 0, 5]) == [1, 3, 0, 2]


def test_lof_is_longest_output_first_and_keeps_ties():
    assert order.lof([5, 9, 5, 9]) == [1, 3, 0, 2]
    assert order.lof([5, 9, 5], urgency=[1, 0, 1]) == [0, 2, 1]


def test_random_is_a_permutation_that_its_seed_decides():
    first, again = order.shuffled(50, Random(3)), order.shuffled(50, Random(3))
    assert first == again != list(range(50))
    assert sorted(first) == list(range(50))


def test_routing_key_prefers_the_keys_that_run_most():
    running = ["b", "a", "b", None]
    assert order.routing_key(["c", "a", "b", None, "a"], running) == [2, 1, 4, 3, 0]


def test_routing_key_leaves_the_queue_alone_when_no_key_runs():
    assert order.routing_key(["c", "a"], [None]) == [0, 1]


def test_lpm_is_longest_match_first_and_deprioritised_last():
    assert order.lpm([0, 40, 10, 40], CALM) == [1, 3, 2, 0]
    assert order.lpm([0, 40, 10], [False, True, False]) == [2, 0, 1]


def test_dfs_weight_visits_heavy_branches_whole():
    waiting = keys(b"aax", b"bb1", b"aay", b"bb2", b"bb3", b"zz")
    assert dfs_weight(waiting, [3, 3, 3, 3, 3, 0]) == [1, 3, 4, 0, 2, 5]


def test_dfs_weight_puts_those_below_before_those_at_a_node():
    waiting = keys(b"aa", b"aab", b"aac", b"aac")
    assert dfs_weight(waiting, [2, 3, 3, 3]) == [2, 3, 1, 0]


def test_dfs_weight_goes_by_what_the_tree_holds_only():
    waiting = keys(b"aa1", b"bb1", b"aa2")
    assert dfs_weight(waiting, [0, 0, 0]) == [0, 1, 2]


def test_dfs_weight_keeps_namespaces_apart():
    waiting = keys(b"aa1", b"aa2", b"aa3", salts=["x", "y", "y"])
    assert dfs_weight(waiting, [2, 2, 2]) == [1, 2, 0]


def test_dfs_weight_takes_chains_deeper_than_the_stack_of_python():
    waiting = keys(*(b"a" * length for length in range(1, 1201)))
    assert dfs_weight(waiting, list(range(1, 1201))) == list(range(1199, -1, -1))


def test_hrrn_weighs_waiting_against_own_work():
    assert order.hrrn([100, 100, 900], [10, 100, 100], CALM, ["a", "b", "c"]) == [0, 2, 1]
    assert order.hrrn([0, 100, 5], [10, 1, 0], [False, True, False], ["a", "b", "c"]) == [2, 0, 1]
    assert order.hrrn([0, 0], [5, 9], CALM, ["b", "a"]) == [1, 0]


def test_shortest_prefill_first_breaks_ties_by_entry():
    assert order.shortest_prefill_first([5, 1, 0, 9], [False, False, False, True], [3, 4, 2, 1]) == [2, 1, 0, 3]


@pytest.mark.parametrize("policy", ["lpm", "hrrn"])
def test_matching_orders_give_way_in_a_crowd(policy):
    assert order.for_this_round(policy, num_waiting=128, caching=True) == policy
    assert order.for_this_round(policy, num_waiting=129, caching=True) == "fcfs"


@pytest.mark.parametrize("policy", ["dfs-weight", "shortest-prefill-first", "lof", "random"])
def test_the_others_do_not(policy):
    assert order.for_this_round(policy, num_waiting=1000, caching=True) == policy


@pytest.mark.parametrize("policy", ["lpm", "hrrn", "dfs-weight"])
def test_without_a_tree_matching_orders_are_fcfs(policy):
    assert order.for_this_round(policy, num_waiting=3, caching=False) == "fcfs"


def test_shortest_prefill_first_without_a_tree_is_an_error():
    config = SchedulerConfig(schedule_policy="shortest-prefill-first")
    with pytest.raises(ValueError, match="--disable-radix-cache"):
        validate(config, enable_prefix_cache=False)


def test_a_repeat_of_an_earlier_request_waits_for_it():
    long = b"x" * 32
    waiting = keys(long + b"1", long + b"2", b"short", b"short", long[:31] + b"y3")
    assert order.in_batch_repeats(waiting, [0] * 5, 32).tolist() == [False, True, False, False, False]


def test_what_the_tree_knows_already_does_not_wait():
    long = b"x" * 40
    waiting = keys(long + b"1", long + b"2", long + b"3")
    assert order.in_batch_repeats(waiting, [33, 0, 0], 32).tolist() == [False, False, True]
    assert order.in_batch_repeats(waiting, [0, 33, 32], 32).tolist() == [False, False, True]


def test_salts_do_not_repeat_each_other():
    long = b"x" * 40
    waiting = keys(long, long, long, salts=["a", "b", "a"])
    assert order.in_batch_repeats(waiting, [0, 0, 0], 32).tolist() == [False, False, True]


def test_minus_one_turns_the_in_batch_rule_off():
    assert not order.in_batch_repeats(keys(b"x" * 40, b"x" * 40), [0, 0], -1).any()


def test_a_chunk_leaves_room_for_shorter_requests():
    waiting = np.array([10, 30, 200], np.int32)
    assert order.cap_chunk(100, 64, 1, waiting) == 64 - 40
    assert order.cap_chunk(25, 64, 1, waiting) == 64 - 10
    assert order.cap_chunk(100, 64, 16, waiting) == 64 - 48
    assert order.cap_chunk(100, 16, 16, waiting) == 16
    # A page of the budget stays with the chunk whatever waits.
    assert order.cap_chunk(100, 16, 4, np.array([12, 4], np.int32)) == 16 - 4


def firsts(policy, *waiting, **options):
    """Order in which requests that wait behind a running one are admitted, one at a time."""
    bench = Bench(schedule_policy=policy, max_running_requests=1, overlap_depth=0, **options)
    bench.send(generate("first", b"a shared beginning that is longer than the threshold", max_new=3, routing_key="k"))
    bench.step()
    bench.send(*waiting)
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
    return bench.order()[1:]


def test_policies_decide_who_is_admitted():
    shared = b"a shared beginning that is longer than the threshold"
    waiting = [
        generate("a", b"unrelated", max_new=2),
        generate("b", shared + b"!", max_new=5),
        generate("c", b"different", max_new=9, routing_key="k"),
        generate("d", shared + b"?" * 100, max_new=5),
    ]
    assert firsts("fcfs", *waiting) == ["a", "b", "c", "d"]
    assert firsts("lof", *waiting) == ["c", "b", "d", "a"]
    assert firsts("lpm", *waiting) == ["b", "d", "a", "c"]
    assert firsts("dfs-weight", *waiting) == ["b", "d", "a", "c"]
    assert firsts("shortest-prefill-first", *waiting) == ["b", "a", "c", "d"]
    assert sorted(firsts("random", *waiting)) == ["a", "b", "c", "d"]


def test_hrrn_lets_a_long_prompt_grow_old():
    """Every short request that passes raises the long one's ratio until it is served before the rest."""
    waiting = [generate("long", b"x" * 60, max_new=1)]
    waiting += [generate(f"s{i:02}", bytes([65 + i]) * 20, max_new=1) for i in range(20)]
    place = firsts("hrrn", *waiting).index("long")
    assert 0 <= place < 20


def test_requests_with_the_same_beginning_wait_for_the_first_of_them():
    beginning = b"the same beginning of forty or so tokens "
    bench = Bench(schedule_policy="lpm", chunked_prefill_size=64, overlap_depth=0)
    bench.send(*(generate(f"r{i}", beginning + bytes([65 + i])) for i in range(3)), generate("other", b"x" * 22))
    bench.finish()
    assert bench.of("r0")[0].num_cached_tokens == 0
    assert bench.of("r1")[0].num_cached_tokens == bench.of("r2")[0].num_cached_tokens == len(beginning)
    assert bench.order()[:2] == ["r0", "other"]


def test_what_only_the_host_has_comes_before_what_nobody_has():
    beginning = b"a beginning that the device has forgotten "
    sizes = {"num_full_tokens": 128, "host": HostConfig(num_full_tokens=512)}
    bench = Bench(schedule_policy="lpm", overlap_depth=0, cache=sizes)
    bench.send(generate("first", beginning + b"1"))
    bench.finish()
    bench.cache.execute(bench.cache.tree.evict({"full": 128}))
    assert bench.cache.tree.num_nodes == 0
    bench.send(generate("other", b"x" * 60), generate("again", beginning + b"2"))
    bench.finish()
    assert bench.order() == ["first", "again", "other"]
    assert bench.of("again")[0].num_cached_tokens == len(beginning)
    for rid in bench.sent:
        bench.check_exact(rid)


def slow_dfs_weight(keys, matched):
    """The walk as its definition says it, one token at a time."""

    def visit(members, depth):
        own = [i for i in members if matched[i] == depth]
        below = {}
        for i in members:
            if matched[i] > depth:
                below.setdefault(int(keys[i].token_ids[depth]), []).append(i)
        for group in sorted(below.values(), key=lambda group: (-len(group), group[0])):
            yield from visit(group, depth + 1)
        yield from own

    namespaces = {}
    for i, key in enumerate(keys):
        namespaces.setdefault(key.namespace, []).append(i)
    for group in sorted(namespaces.values(), key=lambda group: (-len(group), group[0])):
        yield from visit(group, 0)


@pytest.mark.parametrize("seed", range(30))
def test_dfs_weight_equals_its_definition(seed):
    random = Random(seed)
    texts = [bytes(random.choices(b"ab", k=random.randint(1, 8))) for _ in range(30)]
    waiting = keys(*texts, salts=[random.choice([None, "x"]) for _ in texts])
    matched = [random.randint(0, len(text)) for text in texts]
    # What lies in the tree is closed under prefixes, so equal matched tokens are all there is to know.
    assert dfs_weight(waiting, matched) == list(slow_dfs_weight(waiting, matched))


# ── the same beginning twice in one step ──


def beginnings(*texts, least=4, page_size=1, salts=None):
    known = Beginnings(least=least, step=page_size)
    for key in keys(*texts, salts=salts):
        known.add(key)
    return known


def test_a_beginning_repeats_when_waiting_a_step_would_save_enough():
    (key,) = keys(b"abcdefgh")
    assert beginnings(b"abcdxxxx").repeats(key, 0, 7)
    assert not beginnings(b"abcxxxxx").repeats(key, 0, 7)
    assert not beginnings(b"abcdxxxx").repeats(key, 1, 7)
    assert beginnings(b"abcdexxx").repeats(key, 1, 7)
    assert not beginnings(b"abcdxxxx").repeats(key, 0, 3)
    assert not beginnings(b"abcdxxxx", least=-1).repeats(key, 0, 7)
    assert not beginnings(b"abcdxxxx", salts=["x"]).repeats(key, 0, 7)


def test_only_whole_pages_can_be_saved():
    (key,) = keys(b"abcdefghij")
    assert not beginnings(b"abcdefgx", page_size=8).repeats(key, 0, 9)
    assert beginnings(b"abcdefgh", page_size=8).repeats(key, 0, 9)


def test_beginnings_that_come_later_count_for_lengths_asked_before():
    (key, other) = keys(b"abcdefgh", b"abcdzzzz")
    known = beginnings(b"xxxxxxxx")
    assert not known.repeats(key, 0, 7)
    known.add(other)
    assert known.repeats(key, 0, 7)


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
@pytest.mark.parametrize("depth", [0, 1])
def test_copies_of_one_prompt_are_computed_once(policy, depth):
    prompt = b"forty or more tokens that four answers begin with"
    bench = Bench(schedule_policy=policy, overlap_depth=depth)
    bench.send(*(generate(f"r{i}", prompt, max_new=5, seed=i) for i in range(4)))
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
    assert bench.scheduler.stats().num_prefill_tokens == len(prompt) + 3


def test_copies_do_not_hold_up_those_behind_them():
    prompts = [f"prompt number {i} of more than thirty-two tokens".encode() for i in range(8)]
    bench = Bench(overlap_depth=0)
    bench.send(*(generate(f"{i}{copy}", prompt, max_new=3) for i, prompt in enumerate(prompts) for copy in "ab"))
    bench.step()
    assert bench.order() == [f"{i}a" for i in range(8)]
    bench.step()
    assert bench.order()[8:] == [f"{i}b" for i in range(8)]
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)


def test_nobody_takes_the_seat_of_a_copy_that_waits_for_its_beginning():
    prompt = b"forty or more tokens that two answers begin with"
    bench = Bench(overlap_depth=0, max_running_requests=2)
    bench.send(generate("a", prompt, max_new=50, ignore_eos=True), generate("b", prompt), generate("c", b"other"))
    bench.finish()
    assert bench.order() == ["a", "b", "c"]


def test_a_seat_kept_for_a_copy_does_not_close_the_queue():
    prompt = b"x" * 100
    bench = Bench(overlap_depth=0, max_running_requests=2, chunked_prefill_size=40)
    bench.send(generate("a", prompt, max_new=60, ignore_eos=True), generate("b", prompt), generate("c", b"other"))
    bench.step(6)  # three chunks, and the copy's own step
    assert "b" in bench.order()
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
