"""What cannot be served is refused in one sentence, before any weights are read."""

import json
import subprocess
import time

import pytest

from corymb.serve.cli import corymb

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 257,
}


@pytest.fixture
def folder(tmp_path):
    """Makes a model folder without weights."""

    def make(**changes):
        (tmp_path / "config.json").write_text(json.dumps(TINY | changes))
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CorymbBytes"}')
        return tmp_path

    return make


@pytest.fixture
def refusal(servers):
    """Runs `serve` and returns its one sentence."""

    def run(*arguments):
        begun_s = time.monotonic()
        ended = subprocess.run(
            [*servers.SERVE, *map(str, arguments), "--port", "0"],
            capture_output=True,
            text=True,
            timeout=60,
            env=servers.environment(),
            check=False,
        )
        assert ended.returncode == 2, ended.stderr
        assert ended.stderr.count("\n") == 1, ended.stderr
        assert ended.stdout == ""
        assert time.monotonic() - begun_s < 20
        return ended.stderr

    return run


def test_unknown_architecture_is_named_with_the_supported_ones(refusal, folder):
    sentence = refusal(folder(architectures=["MambaForCausalLM"]), "--load-format", "dummy")
    assert "MambaForCausalLM" in sentence
    assert "LlamaForCausalLM" in sentence


def test_missing_weights(refusal, folder):
    assert "safetensors" in refusal(folder())


def test_pickled_weights(refusal, folder):
    path = folder()
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert "safetensors" in refusal(path)


def test_missing_config(refusal, tmp_path):
    assert "config.json" in refusal(tmp_path)


def test_damaged_config(refusal, folder):
    path = folder()
    (path / "config.json").write_text("{")
    assert "config.json" in refusal(path, "--load-format", "dummy")


def test_weights_that_do_not_fit(refusal, folder):
    path = folder(hidden_size=1 << 16, intermediate_size=1 << 18, num_hidden_layers=80)
    assert "Too little memory" in refusal(path, "--load-format", "dummy")


def test_pools_that_do_not_fit(refusal, folder):
    sentence = refusal(folder(), "--load-format", "dummy", "--max-total-tokens", 2_000_000_000)
    assert "Too little memory: --max-total-tokens 2000000000 needs" in sentence


def test_share_of_memory_below_the_weights(refusal, folder):
    path = folder(hidden_size=4096, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8)
    assert "raise --mem-fraction-static" in refusal(path, "--load-format", "dummy", "--mem-fraction-static", "0.001")


def test_context_longer_than_the_models(refusal, folder):
    assert "--context-length 1024 is above" in refusal(folder(), "--load-format", "dummy", "--context-length", 1024)


def test_tokenizer_from_nowhere(refusal, folder):
    assert "/nowhere" in refusal(folder(), "--load-format", "dummy", "--tokenizer-path", "/nowhere")


@pytest.mark.server
def test_dummy_weights_are_served(serving, folder):
    with serving(str(folder()), "--load-format", "dummy", "--served-model-name", "tiny") as server:
        response = server.client.post("/v1/completions", json={"model": "tiny", "prompt": "ab", "max_tokens": 5})
        assert response.json()["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [(["--help"], 0, "corymb serve [MODEL]"), ([], 2, "Write corymb serve"), (["sevre"], 2, "Unknown command 'sevre'")],
)
def test_corymb_has_serve_as_its_command(arguments, status, words, capsys):
    with pytest.raises(SystemExit) as ended:
        corymb(arguments)
    assert ended.value.code == status
    captured = capsys.readouterr()
    assert words in captured.out + captured.err


def test_corymb_serve_takes_the_flags_of_serve(capsys):
    with pytest.raises(SystemExit) as ended:
        corymb(["serve", "--prot", "1"])
    assert ended.value.code == 2
    assert "corymb serve: Unknown flag --prot. Did you mean --port?" in capsys.readouterr().err
