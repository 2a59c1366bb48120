"""The web page in a real browser."""

import json
import re

import httpx
import pytest

SLOW = ("--test-failpoint", "scheduler.slow_step_s=0.03")
SIZE = {"width": 1400, "height": 900}
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script> **bold** `code` </div> javascript:alert(3)"


@pytest.fixture(scope="module")
def slow_tape(serving):
    with serving("corymb/tape", *SLOW) as server:
        yield server


@pytest.fixture
def open_page(browser):
    """Opens the page of a server; fails when a script throws or the browser's policy stops something."""
    contexts, complaints = [], []

    def open_page(server, **options):
        contexts.append(browser.new_context(viewport=SIZE, **options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if "Policy" in message.text else None)
        page.goto(server.url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def say(page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def be_greedy(page) -> None:
    page.click("#sampling-toggle")
    page.fill('[name="temperature"]', "0")
    page.click("#sampling-toggle")


def tape(text: str) -> str:
    return "TAPE " + json.dumps(text, ensure_ascii=False)


def value(page, chart: str) -> float:
    """What a chart shows large; -1 for nothing yet."""
    return float(page.get_attribute(f'[data-chart="{chart}"]', "data-value") or -1)


def until(page, condition, timeout_s: float = 15.0) -> None:
    for _ in range(int(timeout_s * 20)):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"not within {timeout_s} s")


def test_an_answer_streams_and_the_charts_move(slow_tape, open_page, artefacts) -> None:
    page = open_page(slow_tape)
    until(page, lambda: page.text_content("#state") == "ready")
    assert page.text_content("#model") == "tape"
    page.wait_for_selector('[data-chart="throughput"]')
    assert value(page, "throughput") <= 0
    be_greedy(page)
    words = " ".join(f"word{i}" for i in range(30))
    say(page, tape(words))
    said = page.locator("li.assistant .said")
    until(page, lambda: "word3" in (said.text_content() or ""))
    assert "word29" not in said.text_content(), "the text came all at once"
    until(page, lambda: value(page, "throughput") > 0)
    until(page, lambda: value(page, "requests") == 1)
    page.locator(".costs").wait_for()
    assert said.text_content() == words
    assert re.match(
        rf"{len(words) + 1} tokens · first after \d+ ms · [\d.]+ tokens/s · 0 of", page.text_content(".costs")
    )
    until(page, lambda: value(page, "itl") > 0.02)
    say(page, tape(words))  # the second turn finds the first in the cache
    page.locator(".costs").nth(1).wait_for()
    until(page, lambda: value(page, "hits") > 0)
    lines = page.locator('[data-chart="throughput"] .line').first.get_attribute("d")
    assert lines.count("L") > 3
    assert page.is_visible("#tree-card")
    until(page, lambda: int(page.get_attribute("#tree", "data-nodes") or 0) > 2)
    page.screenshot(path=artefacts / "page.png")


def test_the_tree_shows_what_is_held(slow_tape, open_page) -> None:
    page = open_page(slow_tape)
    be_greedy(page)
    label = page.locator("#tree")
    say(page, tape("y" * 120))
    until(page, lambda: re.search(r"nodes, [1-9]\d* of them in use", label.get_attribute("aria-label")))
    page.click("#stop")
    until(page, lambda: label.get_attribute("aria-label").endswith(", 0 of them in use"))
    assert re.match(r"\d+ nodes, [\d,]+ tokens", page.text_content("#tree-figures"))


def test_stop_ends_the_request_on_the_server(slow_tape, open_page) -> None:
    page = open_page(slow_tape)
    say(page, tape("x" * 400))
    until(page, lambda: "xxx" in (page.text_content("li.assistant .said") or ""))
    page.click("#stop")
    until(page, lambda: page.text_content(".costs") == "stopped")
    assert page.is_visible("#send")
    until(page, lambda: re.search(r"^corymb_running_requests{.*} 0.0$", metrics(slow_tape), re.MULTILINE), 2)


def metrics(server) -> str:
    return server.client.get("/metrics").text


def test_only_controls_that_were_moved_are_sent(slow_tape, open_page) -> None:
    page = open_page(slow_tape)
    sent = []
    page.on("request", lambda request: sent.append(request.post_data_json) if "completions" in request.url else None)
    say(page, tape("a"))
    page.locator(".costs").wait_for()
    page.click("#sampling-toggle")
    page.fill('[name="temperature"]', "0.3")
    page.fill('[name="seed"]', "7")
    page.fill('[name="stop"]', "b")
    page.fill('[name="system"]', "Be brief.")
    say(page, tape("abc"))
    page.locator(".costs").nth(1).wait_for()
    assert page.locator("li.assistant .said").nth(1).text_content() == "a"
    plain, moved = sent
    own = {"messages", "stream", "stream_options", "max_tokens"}
    assert set(plain) == own
    assert {name: moved[name] for name in set(moved) - own} == {"temperature": 0.3, "seed": 7, "stop": "b"}
    assert [message["role"] for message in moved["messages"]] == ["system", "user", "assistant", "user"]


def test_text_of_the_model_stays_text(slow_tape, open_page) -> None:
    page = open_page(slow_tape)
    be_greedy(page)
    page.on("dialog", lambda _: pytest.fail("the model's text ran"))
    say(page, tape(HOSTILE + "\n```html\n<script>alert(4)</script>\n```"))
    page.locator(".costs").wait_for()
    said = page.locator("li.assistant .said")
    assert said.text_content().startswith("<img src=x onerror=alert(1)><script>alert(2)</script> bold code </div>")
    assert said.locator("pre code").text_content() == "<script>alert(4)</script>"
    assert said.locator("img, script, a, iframe").count() == 0
    assert said.locator("strong").text_content() == "bold"


def test_a_refusal_is_shown_in_words(slow_tape, open_page) -> None:
    page = open_page(slow_tape)
    page.click("#sampling-toggle")
    page.fill('[name="max_tokens"]', "99999999")
    say(page, "hello")
    assert "context_length" not in page.locator(".failed").text_content()
    assert "maximum context length" in page.locator(".failed").text_content()


def test_a_locked_server_is_asked_with_the_key_that_was_typed(serving, open_page) -> None:
    with serving("corymb/tape", "--api-key", "right-key", "--admin-api-key", "operator-key") as server:
        assert httpx.get(server.url).status_code == 200
        page = open_page(server)
        page.locator("#key").wait_for()
        page.keyboard.press("Escape")  # nothing works without
        for key in ("wrong-key", "right-key"):
            page.fill("#key", key)
            page.press("#key", "Enter")
            until(page, lambda key=key: page.is_visible("#key-wrong") == (key == "wrong-key"))
        until(page, lambda: page.text_content("#model") == "tape")
        assert page.is_hidden("#key-dialog")
        assert page.is_hidden("#tree-card"), "the tree is the operator's"
        be_greedy(page)
        say(page, tape("open"))
        page.locator(".costs").wait_for()
        assert page.locator("li.assistant .said").text_content() == "open"


def test_acceptance_is_drawn_where_there_is_such_a_figure(slow_tape, open_page, browser) -> None:
    page = open_page(slow_tape)
    page.wait_for_selector('[data-chart="hits"]')
    assert page.locator('[data-chart="acceptance"]').count() == 0
    accepted = metrics(slow_tape) + 'corymb_accept_length{model_name="tape"} 3.25\n'
    page.route("**/metrics", lambda route: route.fulfill(body=accepted))
    until(page, lambda: page.locator('[data-chart="acceptance"]').count() == 1)
    until(page, lambda: value(page, "acceptance") == 3.25)


def test_a_server_that_went_away_is_noticed(serving, open_page) -> None:
    with serving("corymb/tape") as server:
        page = open_page(server)
        until(page, lambda: page.text_content("#state") == "ready")
    until(page, lambda: page.text_content("#state") == "not answering")
    assert page.get_attribute("#state", "data-state") == "down"


def test_the_narrow_page_has_everything_below_each_other(slow_tape, open_page, artefacts) -> None:
    page = open_page(slow_tape, color_scheme="dark")
    page.set_viewport_size({"width": 420, "height": 860})
    say(page, tape("Small screens are served as well."))
    page.locator(".costs").wait_for()
    chat, charts = page.locator(".chat").bounding_box(), page.locator("#charts").bounding_box()
    assert charts["y"] >= chat["y"] + chat["height"]
    assert charts["x"] + charts["width"] <= 420
    page.screenshot(path=artefacts / "page-narrow.png", full_page=True)
