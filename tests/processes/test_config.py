"""Flags become one frozen configuration, or one sentence."""

import pytest

from corymb.serve import config as configuration
from corymb.serve.config import ConfigError, from_flags
from corymb.serve.flags import parser

FLAGS = [action for action in parser("serve")._actions if action.option_strings]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    for name in ("CORYMB_API_KEY", "CORYMB_ADMIN_API_KEY", "CORYMB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def resolve(*arguments):
    return from_flags(parser("serve").parse(list(arguments)))


def test_defaults_are_sglangs():
    config = resolve()
    assert (config.http.host, config.http.port) == ("127.0.0.1", 30000)
    assert config.scheduler.schedule_policy == "fcfs"
    assert config.scheduler.max_prefill_tokens == 16384
    assert config.scheduler.overlap_depth == 1
    assert config.memory.page_size == 1
    assert config.runtime.drain_timeout_s == 30
    assert config.model.model_path is None


def test_command_of_sglang_carries_over():
    config = resolve(
        *("--model-path", "m", "--served-model-name", "s", "--host", "0.0.0.0", "--port", "8000"),
        *("--chunked-prefill-size", "-1", "--schedule-policy", "lpm", "--schedule-conservativeness", "0.5"),
        *("--mem-fraction-static", "0.8", "--max-total-tokens", "4096", "--page-size", "16", "--enable-metrics"),
        *("--disable-radix-cache", "--disable-overlap-schedule", "--radix-eviction-policy", "lfu"),
    )
    assert (config.model.model_path, config.model.served_model_name) == ("m", ("s",))
    assert config.scheduler.chunked_prefill_size is None
    assert config.scheduler.overlap_depth == 0
    assert config.memory.page_size == 16
    assert config.memory.radix_eviction_policy == "lfu"


def test_a_model_may_have_several_names():
    config = resolve("m", "--served-model-name", "a, b", "--served-model-name", "c,a")
    assert config.model.served_model_name == ("a", "b", "c")
    assert config.flat()["served_model_name"] == "a,b,c"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prot", "1"], "Unknown flag --prot. Did you mean --port?"),
        (["--max-runing-requests=4"], "Did you mean --max-running-requests?"),
        (["--zzzzzz"], "Unknown flag --zzzzzz."),
        (["--served-model-name", "a,,b"], "the value is empty"),
        (["--trust-remote-code"], "code from a model folder is never run"),
        (["--port", "http"], "'http' is not a port from 0 to 65535"),
        (["--port", "65536"], "not a port"),
        (["--page-size", "0"], "at least 1"),
        (["--page-size", "1.5"], "whole number"),
        (["--max-total-tokens", "99999999999"], "too large: the limit is 2147483647"),
        (["--mem-fraction-static", "1"], "above 0 and below 1"),
        (["--swa-full-tokens-ratio", "1.5"], "above 0 and at most 1"),
        (["--mem-fraction-static", "nan"], "above 0 and below 1"),
        (["--drain-timeout", "-1"], "at least 0"),
        (["--drain-timeout", "inf"], "at least 0"),
        (["--chunked-prefill-size", "0"], "-1 for whole prompts"),
        (["--schedule-policy", "priority"], "invalid choice: 'priority'"),
        (["--dtype", "int4"], "invalid choice: 'int4'"),
        (["--port"], "expected one argument"),
        (["a", "b"], "Unexpected argument 'b'"),
        (["a", "--model-path", "b"], "MODEL or --model-path, not both"),
        ([""], "the value is empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_flag_gets_one_sentence_and_status_2(arguments, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        resolve(*arguments)
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--page-size 64 --chunked-prefill-size 32", "below --page-size 64"),
        ("--enable-mixed-chunk --chunked-prefill-size -1", "needs chunks"),
        ("--schedule-policy shortest-prefill-first --disable-radix-cache", "needs the radix cache"),
        ("--enable-priority-scheduling --schedule-policy lpm", "fcfs or lof, not lpm"),
        ("--retraction-policy priority", "needs --enable-priority-scheduling"),
        ("--schedule-low-priority-values-first", "needs --enable-priority-scheduling"),
        ("--heartbeat-timeout 50 --watchdog-timeout 20", "must not be above"),
        ("--max-total-tokens 8 --page-size 16", "does not hold one page"),
        ("--hicache-ratio 3", "--hicache-ratio is for --enable-hierarchical-cache; give that too, or leave it out"),
        (
            "--enable-hierarchical-cache --disable-radix-cache",
            "--disable-radix-cache forbids it",
        ),
        ("--enable-hierarchical-cache --hicache-ratio 3 --hicache-size 4", "both say how much host memory is used"),
        ("--hicache-storage-dir d", "--hicache-storage-dir is for --hicache-storage-backend file; give that too"),
        ("--hicache-storage-backend file", "is for --enable-hierarchical-cache; give that too"),
        (
            "--enable-hierarchical-cache --hicache-storage-backend file",
            "--hicache-storage-backend file needs a folder; give --hicache-storage-dir",
        ),
        (
            "--hicache-storage-prefetch-policy timeout",
            "--hicache-storage-prefetch-policy is for --hicache-storage-backend file; give that too",
        ),
        ("--enable-hierarchical-cache --tp-size 2", "works with one rank; leave it or --tp-size out"),
        ("--test-failpoint scheduler.explode=1", "PROCESS.ACTION=NUMBER"),
        ("--test-failpoint scheduler.die_at_step=x", "PROCESS.ACTION=NUMBER"),
        ("--api-key a --api-key-file b", "not both"),
        (
            "--speculative-algorithm NGRAM --speculative-dspark-verify-mode static "
            "--speculative-dspark-min-predicted-gain 0.04",
            "min-predicted-gain is for budgets",
        ),
        ("--api-key-file /nowhere/key", "cannot read /nowhere/key"),
    ],
)
def test_flags_that_exclude_each_other_get_a_sentence(arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        resolve(*arguments.split())


INERT = {"-h", "--version", "--enable-metrics"}  # the last is taken for existing commands: metrics are always on
VALUES = {"--mem-fraction-static": "0.5", "--test-failpoint": "scheduler.die_at_step=1", "--heartbeat-timeout": "7"}
VALUES |= {"--swa-full-tokens-ratio": "0.5"}
COMPANY = {
    "--speculative-dspark-align-verify-tokens-to-graph-tier": ["--speculative-algorithm", "NGRAM"],
    "--retraction-policy": ["--enable-priority-scheduling"],
    "--schedule-low-priority-values-first": ["--enable-priority-scheduling"],
}


def changes(before, *arguments):
    """Whether arguments lead to another configuration, or to a refusal."""
    try:
        return resolve(*arguments) != before
    except ConfigError:
        return True


@pytest.mark.parametrize("flag", sorted({action.option_strings[0] for action in FLAGS} - INERT))
def test_every_flag_changes_the_configuration(flag, tmp_path):
    action = next(action for action in FLAGS if flag in action.option_strings)
    company = COMPANY.get(flag, [])
    before = resolve(*company)
    if action.nargs == 0:
        assert resolve(*company, flag) != before
        return
    (tmp_path / "key").write_text("sekrit")
    file = str(tmp_path / "key") if flag.endswith("-file") else None
    values = list(action.choices or [file or VALUES.get(flag, "4096")])
    ignored = [value for value in values if not changes(before, *company, flag, value)]
    assert len(ignored) <= (1 if action.choices else 0), "only the default may change nothing"


def test_key_comes_from_flag_then_file_then_environment(monkeypatch, tmp_path):
    file = tmp_path / "key"
    file.write_text("from-file\n")
    monkeypatch.setenv("CORYMB_API_KEY", "from-environment")
    monkeypatch.setenv("CORYMB_ADMIN_API_KEY", "admin")
    assert resolve("--api-key", "from-flag").http.api_key == "from-flag"
    assert resolve("--api-key-file", str(file)).http.api_key == "from-file"
    assert resolve().http.api_key == "from-environment"
    assert resolve().http.admin_api_key == "admin"


@pytest.mark.parametrize("key", ["", "  ", "schlüssel", "a\tb", " a"])
def test_key_that_no_header_can_carry_is_refused(key):
    with pytest.raises(ConfigError, match="printable ASCII"):
        resolve("--api-key", key)


def test_keys_reach_neither_children_nor_server_info(monkeypatch):
    monkeypatch.setenv("CORYMB_API_KEY", "secret-1")
    config = resolve("--admin-api-key", "secret-2")
    assert "secret" not in repr(config.without_secrets())
    assert "secret" not in repr(config.flat())
    assert "secret" not in repr(configuration.child_environment())


def test_hub_offline_variable_is_the_flag(monkeypatch):
    assert not resolve().model.offline
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve().model.offline


def test_help_groups_flags_and_hides_test_seams(capsys):
    with pytest.raises(SystemExit) as ended:
        resolve("--help")
    text = capsys.readouterr().out
    assert ended.value.code == 0
    for group in ("model and tokenizer:", "HTTP:", "scheduler:", "memory:", "runtime:"):
        assert group in text
    assert "--test-" not in text


DRAFT = ("--speculative-draft-model-path", "d")
COUNTS = ("--speculative-dspark-block-size", "5", "--speculative-num-draft-tokens", "5")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--speculative-draft-model-path", "d"], "--speculative-draft-model-path is for --speculative-algorithm"),
        (["--speculative-algorithm", "DFLASH"], "DFLASH needs a draft; name it with --speculative-draft-model-path"),
        (["--speculative-algorithm", "STANDALONE"], "STANDALONE needs a draft"),
        (
            ["--speculative-algorithm", "NGRAM", "--speculative-draft-model-path", "d"],
            "is for --speculative-algorithm STANDALONE or DFLASH or DSPARK; leave it out",
        ),
        (
            ["--speculative-algorithm", "DFLASH", *DRAFT, "--speculative-dspark-block-size", "3"],
            "--speculative-dspark-block-size is for --speculative-algorithm DSPARK",
        ),
        (
            ["--speculative-algorithm", "DSPARK", *DRAFT, *COUNTS],
            "--speculative-num-draft-tokens 5 is one more than --speculative-dspark-block-size, which is 5",
        ),
        (["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "1"], "it is 2 to 32"),
    ],
)
def test_wishes_for_drafts_that_cannot_be_met(arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        resolve(*arguments)


def test_drafts_are_counted_without_the_token_that_they_follow():
    common = ("--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", "d")
    assert resolve(*common).speculative.num_drafts is None
    assert resolve(*common, "--speculative-dspark-block-size", "5").speculative.num_drafts == 5
    assert resolve(*common, "--speculative-num-draft-tokens", "6").speculative.num_drafts == 5
