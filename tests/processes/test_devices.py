"""The GPU that the driver offers decides what was left to the server; wishes that it cannot meet are refused."""

import ctypes

import pytest

from corymb.models.errors import UnsupportedModel
from corymb.models.sizing import NotEnoughMemory
from corymb.serve import devices, prepare
from corymb.serve.config import ConfigError, from_flags
from corymb.serve.devices import Gpu, chunk_tokens, find_gpu, resolve_device
from corymb.serve.flags import parser
from corymb.serve.parallel_options import ParallelOptions

H200 = Gpu("NVIDIA H200", 150_754_820_096)
SHAPE = """{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 512,
"rms_norm_eps": 1e-5, "hidden_act": "silu", "eos_token_id": 2, "dtype": "float32"}"""


class Driver:
    """A CUDA driver that says what a test wants."""

    def __init__(self, *, init=0, count=1):
        self.init, self.count = init, count

    def cuInit(self, flags):  # noqa: N802 - the driver's own names
        return self.init

    def cuDeviceGetCount(self, count):  # noqa: N802
        count._obj.value = self.count
        return 0

    def cuDeviceGet(self, device, index):  # noqa: N802
        device._obj.value = 7
        return 0 if index < self.count else 101

    def cuDeviceGetName(self, name, size, device):  # noqa: N802
        name.value = f"Fake {device.value}".encode()[: size - 1]
        return 0

    def cuDeviceTotalMem_v2(self, size, device):  # noqa: N802
        size._obj.value = 5_000_000_000
        return 0


def asked(*arguments):
    return from_flags(parser("serve").parse(list(arguments)))


def test_driver_names_its_first_gpu():
    assert find_gpu(lambda _: Driver(count=2)) == Gpu("Fake 7", 5_000_000_000, count=2)


@pytest.mark.parametrize("says", [{"init": 100}, {"count": 0}])
def test_driver_without_a_gpu_gives_none(says):
    assert find_gpu(lambda _: Driver(**says)) is None


def test_machine_without_a_driver_has_no_gpu(tmp_path):
    assert find_gpu(lambda name: ctypes.CDLL(str(tmp_path / name))) is None


def test_auto_needs_a_gpu_and_the_packages_for_it(monkeypatch):
    monkeypatch.setattr(devices, "_has_packages", lambda: True)
    assert resolve_device("auto", H200) == "cuda"
    assert resolve_device("auto", None) == "cpu"
    assert resolve_device("cpu", H200) == "cpu"
    assert resolve_device("cuda", None) == "cuda"
    monkeypatch.setattr(devices, "_has_packages", lambda: False)
    assert resolve_device("auto", H200) == "cpu"


@pytest.mark.parametrize(("gigabytes", "tokens"), [(16, 2048), (24, 4096), (80, 8192), (150, 8192), (192, 16384)])
def test_chunks_grow_with_the_gpu(gigabytes, tokens):
    assert chunk_tokens("cuda", Gpu("", gigabytes * 10**9)) == tokens


@pytest.fixture
def prepared(monkeypatch, tmp_path):
    """Prepares a server for a tiny shape on a machine with, or without, a GPU."""
    (tmp_path / "config.json").write_text(SHAPE)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CorymbBytes"}')

    def make(*arguments, gpu=H200):
        monkeypatch.setattr(prepare, "find_gpu", lambda: gpu)
        monkeypatch.setattr(devices, "_has_packages", lambda: True)
        cache = ("--cache-dir", str(tmp_path / "cache"))
        return prepare.prepare(asked(str(tmp_path), "--load-format", "dummy", *cache, *arguments))

    return make


def test_gpu_decides_type_and_chunk(prepared):
    found = prepared()
    assert found.gpu == H200
    assert found.config.runtime.device == "cuda"
    assert found.config.model.dtype == "bfloat16"  # whatever the checkpoint was saved in
    assert found.config.scheduler.chunked_prefill_size == 8192
    assert prepared("--chunked-prefill-size", "512").config.scheduler.chunked_prefill_size == 512
    assert prepared("--chunked-prefill-size", "-1").config.scheduler.chunked_prefill_size is None
    assert prepared("--dtype", "float32").config.model.dtype == "float32"


def test_cpu_stays_what_it_was(prepared):
    for found in (prepared(gpu=None), prepared("--device", "cpu")):
        assert found.gpu is None
        assert found.config.runtime.device == "cpu"
        assert found.config.scheduler.chunked_prefill_size == 2048


def test_model_made_for_tests_runs_on_a_gpu_only_when_asked(monkeypatch, tmp_path):
    monkeypatch.setattr(prepare, "find_gpu", lambda: H200)
    monkeypatch.setattr(devices, "_has_packages", lambda: True)
    cache = ("--cache-dir", str(tmp_path))
    assert prepare.prepare(asked("corymb/hash", *cache)).config.runtime.device == "cpu"
    assert prepare.prepare(asked("corymb/hash", "--device", "cuda", *cache)).config.runtime.device == "cuda"


def test_weights_larger_than_the_gpu_are_refused_before_anything_is_read(prepared):
    with pytest.raises(NotEnoughMemory, match="the weights take"):
        prepared(gpu=Gpu("tiny", 100_000))


def test_ranks_take_the_gpus_that_were_asked_for(prepared):
    four = Gpu("Four", 141_000_000_000, count=4)
    flags = ("--tp-size", "2", "--base-gpu-id", "1", "--gpu-id-step", "2")
    parallel = prepared(*flags, gpu=four).config.parallel
    assert [parallel.gpu_of(rank) for rank in parallel.local_ranks] == [1, 3]
    with pytest.raises(ConfigError, match="The last of 2 ranks would use GPU 4, and the last GPU here is 3"):
        prepared("--tp-size", "2", "--base-gpu-id", "2", "--gpu-id-step", "2", gpu=four)
    with pytest.raises(ConfigError, match="The last of 2 ranks would use GPU 1, and the last GPU here is 0"):
        prepared("--tp-size", "2")


def test_ranks_of_a_further_node_count_its_own_gpus():
    options = ParallelOptions(tp_size=4, nnodes=2, node_rank=1, dist_init_addr="a:1")
    assert [(rank, options.gpu_of(rank)) for rank in options.local_ranks] == [(2, 0), (3, 1)]


def test_a_model_that_ranks_cannot_share_is_refused_before_its_weights_are_looked_at(prepared):
    with pytest.raises(UnsupportedModel, match="which 64 ranks cannot share evenly"):
        prepared("--tp-size", "64", gpu=Gpu("Many", 141_000_000_000, count=64))


@pytest.mark.parametrize(
    "wish",
    [
        "--attention-backend triton",
        "--prefill-attention-backend flashinfer",
        "--decode-attention-backend triton",
        "--kv-cache-dtype fp8_e4m3",
        "--cuda-graph-max-bs-decode 32",
        "--cuda-graph-backend-decode full",
        "--cuda-graph-backend-prefill piecewise",
    ],
)
def test_wish_for_a_gpu_is_refused_on_a_cpu(prepared, wish):
    prepared(*wish.split())
    with pytest.raises(ConfigError, match=rf"^{wish} needs a GPU"):
        prepared(*wish.split(), gpu=None)


def test_cpu_meets_what_costs_it_nothing(prepared):
    prepared(
        *("--attention-backend", "torch", "--disable-cuda-graph", "--enable-deterministic-inference"),
        *("--cuda-graph-backend-decode", "disabled", "--kv-cache-dtype", "auto"),
        gpu=None,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--cuda-graph-backend-prefill full", "use piecewise or disabled"),
        ("--disable-cuda-graph --cuda-graph-backend-decode full", "excludes"),
        ("--disable-cuda-graph --cuda-graph-backend-prefill piecewise", "excludes"),
        ("--disable-cuda-graph --cuda-graph-max-bs-decode 8", "leave one of the two out"),
        ("--cuda-graph-backend-decode disabled --cuda-graph-max-bs-decode 8", "leave one of the two out"),
    ],
)
def test_wishes_that_exclude_each_other_get_a_sentence(arguments, sentence):
    with pytest.raises(ConfigError, match=sentence):
        asked(*arguments.split())


def test_graph_flags_decide_what_is_captured():
    assert asked().gpu.graph_tokens == 256
    assert asked("--cuda-graph-max-bs-decode", "32").gpu.graph_tokens == 32
    assert asked("--disable-cuda-graph").gpu.graph_tokens == 0
    assert asked("--cuda-graph-backend-decode", "disabled").gpu.graph_tokens == 0
    assert asked().gpu.captures_prefill
    assert not asked("--cuda-graph-backend-prefill", "disabled").gpu.captures_prefill


def test_torch_compile_is_refused_with_its_reason(capsys):
    with pytest.raises(SystemExit):
        asked("--enable-torch-compile")
    assert "captured as graphs" in capsys.readouterr().err


def test_random_seed_makes_sampling_repeatable():
    from corymb.serve.seeds import seeds

    one, same, other = seeds(5), seeds(5), seeds(6)
    first = [one() for _ in range(4)]
    assert first == [same() for _ in range(4)]
    assert first != [other() for _ in range(4)]
    assert seeds()() != seeds()()
