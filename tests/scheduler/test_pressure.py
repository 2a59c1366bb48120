"""Too little memory, too few seats, and more urgent requests."""

import pytest

from corymb.scheduler.messages import Abort

from .bench import Bench, generate


def text(letter, count):
    return bytes([ord(letter)]) * count


# ── one request too large for the pool ──


@pytest.mark.parametrize("depth", [0, 1])
def test_a_request_that_outgrows_the_pool_alone_fails_with_a_reason(depth):
    bench = Bench(cache={"num_full_tokens": 65}, overlap_depth=depth)
    bench.send(generate("large", text("a", 40), max_new=100, ignore_eos=True))
    bench.finish()
    finish = bench.finish_of("large")
    assert (finish.reason, finish.status, finish.code) == ("error", 400, "kv_pool_too_small")
    assert "--max-total-tokens" in finish.message
    bench.check_beginning("large")
    assert len(bench.tokens("large")) == 64 - 40 + 1
    bench.send(generate("next", text("b", 40)))
    bench.finish()
    bench.check_exact("next")
    bench.check_empty()


def test_a_request_that_may_outgrow_the_pool_is_served_alone_if_it_ends_in_time():
    bench = Bench(cache={"num_full_tokens": 65})
    letters = tuple(range(97, 123))
    bench.send(*(generate(f"r{i}", text("abc"[i], 40), max_new=100, stop_token_ids=letters) for i in range(3)))
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)


def test_whoever_waits_behind_a_failed_request_is_served():
    bench = Bench(cache={"num_full_tokens": 65})
    bench.send(generate("large", text("a", 50), max_new=100, ignore_eos=True))
    bench.send(*(generate(f"r{i}", text("bcd"[i], 50)) for i in range(3)))
    bench.finish()
    assert bench.finish_of("large").reason == "error"
    for i in range(3):
        bench.check_exact(f"r{i}")


# ── chunks under pressure ──


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_chunk_that_finds_no_room_waits_for_those_who_run(mixed, depth):
    bench = Bench(
        cache={"num_full_tokens": 129, "enable_prefix_cache": False},
        chunked_prefill_size=16,
        enable_mixed_chunk=mixed,
        overlap_depth=depth,
        schedule_conservativeness=0.01,
    )
    bench.send(generate("a", text("a", 10), max_new=60, ignore_eos=True), generate("b", text("b", 10), max_new=60))
    bench.step(3)
    bench.send(generate("long", text("c", 90), max_new=4))
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
    bench.check_empty()


def test_nobody_overtakes_a_chunk_that_waits():
    bench = Bench(
        cache={"num_full_tokens": 131, "enable_prefix_cache": False},
        chunked_prefill_size=16,
        enable_mixed_chunk=True,
        overlap_depth=0,
        schedule_conservativeness=0.01,
    )
    for letter in "ab":
        bench.send(generate(letter, text(letter, 5), max_new=12, ignore_eos=True))
    bench.step(2)
    bench.send(generate("long", text("c", 110), max_new=4), generate("late", b"d", max_new=1))
    while bench.scheduler.stats().num_running < 3:
        bench.step()
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
    assert bench.scheduler.stats().num_retractions == 0
    assert bench.order() == ["a", "b", "long", "late"]


def test_who_is_about_to_end_is_waited_for_before_anybody_is_retracted():
    bench = Bench(cache={"num_full_tokens": 29}, schedule_conservativeness=0.01, overlap_depth=1)
    bench.send(generate("ends", text("a", 10), max_new=5, ignore_eos=True))
    bench.send(generate("goes on", text("b", 10), max_new=6, ignore_eos=True))
    bench.finish()
    assert bench.scheduler.stats().num_retractions == 0
    bench.check_exact("ends")
    bench.check_exact("goes on")


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("chunk", [None, 64])
@pytest.mark.parametrize("page", [1, 4])
def test_a_sliding_pool_smaller_than_the_prompt_cuts_it(chunk, page, caching):
    sizes = {"num_full_tokens": 512, "num_sliding_tokens": 48, "sliding_window": 8, "page_size": page}
    bench = Bench(cache=sizes | {"enable_prefix_cache": caching}, chunked_prefill_size=chunk)
    bench.send(generate("long", text("a", 200), max_new=20, ignore_eos=True), generate("short", b"hi", max_new=20))
    bench.finish()
    bench.check_exact("long")
    bench.check_exact("short")
    bench.check_empty()


def test_a_short_resume_does_not_wait_for_a_whole_window():
    """One token to go needs no window of free slots: asking for one would leave an idle pool waiting for ever."""
    sizes = {"num_full_tokens": 512, "num_sliding_tokens": 40, "sliding_window": 32}
    bench = Bench(cache=sizes)
    bench.send(generate("first", text("a", 100), max_new=4), generate("second", text("a", 101), max_new=1))
    bench.finish()
    bench.check_exact("first")
    bench.check_exact("second")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("chunk", [None, 16])
def test_a_sliding_pool_of_two_windows_serves_any_length(depth, page, chunk):
    sizes = {"num_full_tokens": 1024, "sliding_window": 32, "page_size": page, "num_sliding_tokens": 64 + 5 * page}
    bench = Bench(cache=sizes, overlap_depth=depth, chunked_prefill_size=chunk)
    prompt = b"some words of a prompt " * 6
    bench.send(*(generate(f"r{i}", prompt[: 50 + 40 * i], max_new=60, ignore_eos=True) for i in range(3)))
    bench.finish()
    for rid in bench.sent:
        bench.check_exact(rid)
    bench.check_empty()


def test_a_sliding_pool_smaller_than_that_fails_what_does_not_fit_and_serves_the_rest():
    bench = Bench(cache={"num_full_tokens": 1024, "sliding_window": 64, "num_sliding_tokens": 51})
    bench.send(generate("long", text("a", 40), max_new=60, ignore_eos=True), generate("short", text("b", 20)))
    bench.finish()
    finish = bench.finish_of("long")
    assert (finish.reason, finish.code) == ("error", "kv_pool_too_small")
    assert "50 tokens (sliding)" in finish.message
    bench.check_exact("short")
    bench.check_empty()


def test_windows_that_running_requests_still_fill_are_set_aside():
    bench = Bench(cache={"num_full_tokens": 1024, "sliding_window": 32, "num_sliding_tokens": 81})
    bench.send(*(generate(f"r{i}", text("abc"[i], 4), max_new=60, ignore_eos=True) for i in range(3)))
    bench.step(20)
    assert bench.scheduler.stats().num_running == 2
    bench.finish()
    assert bench.scheduler.stats().num_retractions == 0


# ── retraction ──


def test_a_prompt_in_progress_gives_way_before_anybody_fails():
    sizes = {"num_full_tokens": 101, "enable_prefix_cache": False}
    bench = Bench(cache=sizes, chunked_prefill_size=4, enable_mixed_chunk=True, schedule_conservativeness=0.01)
    bench.send(generate("runs", text("a", 10), max_new=85, ignore_eos=True))
    bench.step(42)
    bench.send(generate("long", text("b", 45), max_new=2))
    bench.finish()
    assert bench.scheduler.stats().num_retractions == 1
    bench.check_exact("runs")
    bench.check_exact("long")


def test_the_request_with_the_fewest_outputs_is_retracted():
    bench = Bench(cache={"num_full_tokens": 97}, schedule_conservativeness=0.01, overlap_depth=0)
    bench.send(generate("old", text("a", 20), max_new=40, ignore_eos=True))
    bench.step(12)
    bench.send(generate("new", text("b", 20), max_new=40, ignore_eos=True))
    bench.finish()
    stats = bench.scheduler.stats()
    assert stats.num_retractions == 1
    bench.check_exact("old")
    bench.check_exact("new")
    order = [output.rid for output in bench.port.outputs]
    assert order.index("new") < max(i for i, rid in enumerate(order) if rid == "old") < len(order) - 1


@pytest.mark.parametrize("mixed", [False, True])
def test_what_a_retraction_frees_is_not_for_newcomers(mixed):
    bench = Bench(test_retract_interval=3, enable_mixed_chunk=mixed, overlap_depth=0)
    plan = bench.scheduler.plan

    def watch():
        before = bench.scheduler.stats().num_retractions
        planned = plan()
        if planned is not None and bench.scheduler.stats().num_retractions > before:
            assert not planned.opened
        return planned

    bench.scheduler.plan = watch
    for i in range(8):
        bench.send(generate(f"r{i}", text("abcdefgh"[i], 9), max_new=9, ignore_eos=True))
        bench.step()
    bench.finish()
    assert bench.scheduler.stats().num_retractions > 1
    for rid in bench.sent:
        bench.check_exact(rid)


def test_retraction_by_priority_spares_the_urgent():
    bench = Bench(
        cache={"num_full_tokens": 97},
        schedule_conservativeness=0.01,
        overlap_depth=0,
        enable_priority_scheduling=True,
        retraction_policy="priority",
    )
    bench.send(generate("old", text("a", 20), max_new=40, ignore_eos=True, priority=0))
    bench.step(12)
    bench.send(generate("urgent", text("b", 20), max_new=40, ignore_eos=True, priority=5))
    bench.finish()
    assert bench.scheduler.stats().num_retractions == 1
    bench.check_exact("old")
    bench.check_exact("urgent")
    assert bench.port.outputs[-1].rid == "old"


def test_cached_tokens_are_reported_as_at_first_admission():
    bench = Bench(test_retract_interval=3)
    bench.send(generate("a", text("a", 30), max_new=20, ignore_eos=True))
    bench.finish()
    assert bench.scheduler.stats().num_retractions > 3
    assert {output.num_cached_tokens for output in bench.of("a")} == {0}
    bench.check_exact("a")


def test_the_ratio_falls_while_decoding_jumps_at_a_retraction_and_starts_anew_when_nothing_runs():
    bench = Bench(cache={"num_full_tokens": 161}, schedule_conservativeness=0.01, overlap_depth=0)
    start = bench.scheduler.stats().new_token_ratio
    assert start == pytest.approx(0.007)
    bench.send(generate("old", text("a", 20), max_new=100, ignore_eos=True))
    bench.step(12)
    bench.send(generate("new", text("b", 20), max_new=100, ignore_eos=True))
    before = bench.scheduler.stats()
    while not (now := bench.scheduler.stats()).num_retractions:
        assert not bench.scheduler.is_idle
        assert now.new_token_ratio <= before.new_token_ratio < start
        before = now
        bench.step()
    # One is left; the step that it was retracted for is under way, and was not one without a retraction.
    num_decoded = len(bench.tokens("old")) - 1
    assert now.new_token_ratio == (num_decoded + 20) / (100 + 1)
    bench.step()
    assert start < bench.scheduler.stats().new_token_ratio < now.new_token_ratio
    bench.finish()
    bench.send(generate("later"))
    bench.step()
    assert bench.scheduler.stats().new_token_ratio == start


def test_nobody_is_retracted_while_the_memory_of_a_last_token_is_about_to_come_free():
    """Retracting would throw away work for slots that the next result gives back."""
    bench = Bench(cache={"num_full_tokens": 39}, schedule_conservativeness=0.01)
    bench.send(generate("a", text("a", 10), max_new=10, ignore_eos=True))
    bench.send(generate("b", text("b", 10), max_new=14, ignore_eos=True))
    bench.finish()
    assert bench.scheduler.stats().num_retractions == 0
    for rid in bench.sent:
        bench.check_exact(rid)


def test_a_retracted_request_comes_back_only_when_all_its_results_are_known():
    bench = Bench(test_retract_interval=3)
    for rid in "ab":
        bench.send(generate(rid, text(rid, 9), max_new=12, ignore_eos=True))
    for message in bench.port.receive(0):
        bench.scheduler.receive(message)
    flights = []
    for _ in range(4):  # the third plan retracts one, and nobody has read a result yet
        plan = bench.scheduler.plan()
        flights.append((plan, bench.runner.launch(plan)))
    assert [plan.num_rows for plan, _ in flights] == [2, 2, 1, 1]
    for plan, result in flights:
        bench.scheduler.commit(plan, result.wait())
    plan = bench.scheduler.plan()
    assert (plan.starts + plan.widths).tolist() == [9 + 2]


# ── priorities ──


def pressed(**options):
    options = {"max_running_requests": 2, "enable_priority_scheduling": True} | options
    bench = Bench(**options)
    bench.send(generate("p0", text("a", 9), max_new=40, ignore_eos=True, priority=0))
    bench.step(2)
    bench.send(generate("p5", text("b", 9), max_new=40, ignore_eos=True, priority=5))
    bench.step(2)
    return bench


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("mixed", [False, True])
def test_an_urgent_request_pushes_back_the_least_urgent(depth, mixed):
    bench = pressed(overlap_depth=depth, enable_mixed_chunk=mixed)
    bench.send(generate("p20", text("c", 9), max_new=5, priority=20))
    bench.finish()
    assert bench.scheduler.stats().num_preemptions == 1
    ends = [output.rid for output in bench.port.outputs if output.finish]
    assert ends[0] == "p20"
    assert ends[-1] == "p0"
    for rid in bench.sent:
        bench.check_exact(rid)
    bench.check_empty()


def test_an_urgent_request_is_not_kept_waiting_by_a_queue_that_does_not_fit():
    bench = pressed(overlap_depth=0)
    bench.send(generate("p1", text("c", 9), priority=1))
    bench.step(2)
    bench.send(generate("p20", text("d", 9), priority=20))
    bench.step()
    assert len(bench.tokens("p20")) == 1


def test_a_slightly_more_urgent_request_waits():
    bench = pressed()
    bench.send(generate("p10", text("c", 9), max_new=5, priority=10))
    bench.finish()
    assert bench.scheduler.stats().num_preemptions == 0
    assert bench.order() == ["p0", "p5", "p10"]


def test_low_values_come_first_when_so_configured():
    bench = pressed(schedule_low_priority_values_first=True)
    bench.send(generate("m20", text("c", 9), max_new=5, priority=-20))
    bench.finish()
    assert bench.scheduler.stats().num_preemptions == 1
    assert [output.rid for output in bench.port.outputs if output.finish][-1] == "p5"


def test_preemption_also_frees_memory():
    bench = pressed(max_running_requests=8, cache={"num_full_tokens": 129})
    bench.send(generate("p50", text("c", 60), max_new=30, ignore_eos=True, priority=50))
    bench.finish()
    assert bench.scheduler.stats().num_preemptions > 0
    for rid in bench.sent:
        bench.check_exact(rid)
    bench.check_empty()


def test_nobody_is_pushed_back_for_memory_that_others_share():
    bench = Bench(cache={"num_full_tokens": 129}, enable_priority_scheduling=True, overlap_depth=0)
    bench.send(generate("p100", text("a", 60), max_new=30, ignore_eos=True, priority=100))
    bench.step(3)
    bench.send(generate("p0", text("a", 60) + b"bc", max_new=6, ignore_eos=True, priority=0))
    bench.step(2)
    bench.send(generate("p50", text("c", 45), max_new=10, ignore_eos=True, priority=50))
    bench.step()
    assert bench.scheduler.stats().num_waiting == 1
    assert bench.scheduler.stats().num_preemptions == 0


def test_what_was_set_aside_for_those_pushed_back_goes_to_the_urgent_in_the_same_step():
    bench = Bench(cache={"num_full_tokens": 129}, enable_priority_scheduling=True, overlap_depth=0)
    bench.send(generate("p100", text("a", 9), max_new=40, ignore_eos=True, priority=100))
    bench.send(generate("p0", text("b", 9), max_new=40, ignore_eos=True, priority=0))
    bench.step(4)
    bench.send(generate("p50", text("c", 50), max_new=20, ignore_eos=True, priority=50))
    bench.step()
    assert bench.scheduler.stats().num_preemptions == 1
    assert len(bench.tokens("p50")) == 1


def test_without_priority_scheduling_nobody_is_pushed_back():
    bench = pressed(enable_priority_scheduling=False)
    bench.send(generate("p90", text("c", 9), max_new=5, priority=90))
    bench.finish()
    assert bench.scheduler.stats().num_preemptions == 0
    assert bench.order()[-1] == "p90"


# ── seats and steps ──


@pytest.mark.parametrize("end", ["length", "abort"])
def test_memory_that_comes_free_is_offered_to_the_queue_at_once(end):
    """A queue that does not fit is looked at again every so many steps, but not only then."""
    bench = Bench(cache={"num_full_tokens": 129}, schedule_conservativeness=1.4)
    bench.send(generate("long", text("a", 20), max_new=60, ignore_eos=True))
    bench.send(generate("short", text("b", 20), max_new=9 if end == "length" else 20, ignore_eos=True))
    bench.send(generate("waits", text("c", 20), max_new=20, ignore_eos=True))
    bench.step(9)
    assert bench.scheduler.stats().num_waiting == 1
    if end == "abort":
        bench.send(Abort("short"))
    bench.step(4)
    assert bench.scheduler.stats().num_waiting == 0
    bench.finish()
    bench.check_exact("waits")


def test_no_more_requests_run_than_there_are_seats():
    bench = Bench(max_running_requests=3)
    bench.send(*(generate(f"r{i}", text("a", 5 + i), max_new=6, ignore_eos=True) for i in range(9)))
    most = 0
    while not bench.scheduler.is_idle or bench.port.inbox:
        bench.step()
        most = max(most, bench.scheduler.stats().num_running)
    assert most == 3
    for rid in bench.sent:
        bench.check_exact(rid)


@pytest.mark.parametrize(("mixed", "kinds"), [(False, {"prefill", "decode"}), (True, {"prefill", "decode", "both"})])
def test_prompts_and_decoding_share_a_step_only_in_mixed_mode(mixed, kinds):
    bench = Bench(enable_mixed_chunk=mixed, chunked_prefill_size=16)
    seen, launch = set(), bench.runner.launch

    def watch(plan):
        relayed = (plan.token_ids == -1).sum()
        prefill = plan.num_tokens > relayed
        seen.add("both" if prefill and relayed else "prefill" if prefill else "decode")
        assert plan.num_tokens <= 16
        return launch(plan)

    bench.runner.launch = watch
    for i in range(4):
        bench.send(generate(f"r{i}", text("abcd"[i], 20 + i), max_new=12, ignore_eos=True))
        bench.step(3)
    bench.finish()
    assert seen == kinds


@pytest.mark.parametrize(("chunk", "expected"), [(64, [16, 16, 16, 2]), (None, [40, 10])])
def test_a_step_takes_in_no_more_prompt_tokens_than_allowed_but_a_whole_prompt(chunk, expected):
    bench = Bench(max_prefill_tokens=16, chunked_prefill_size=chunk)
    widths, launch = [], bench.runner.launch

    def watch(plan):
        widths.append(plan.num_tokens)
        return launch(plan)

    bench.runner.launch = watch
    bench.send(generate("long", text("a", 40), max_new=1), generate("short", text("b", 10), max_new=1))
    bench.finish()
    assert widths == expected


def test_a_queue_that_did_not_fit_is_looked_at_again_as_the_ratio_falls():
    bench = Bench(cache={"num_full_tokens": 218}, schedule_conservativeness=2, overlap_depth=0)
    bench.send(
        generate("long", text("a", 10), max_new=200, ignore_eos=True), generate("short", text("b", 5), max_new=5)
    )
    bench.step(10)
    assert bench.of("short") == []
    bench.step(60)
    bench.check_exact("short")
    assert bench.scheduler.stats().num_running == 1
