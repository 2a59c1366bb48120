"""Puts a GPU's runner together: back ends, pools, captured graphs."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from corymb.cache.config import CacheConfig
from corymb.kernels.attention import Attention, AttentionSpec, GraphAttention
from corymb.kernels.mixed_attention import MixedAttention
from corymb.kernels.select import Selected, UnavailableBackend, has_flashinfer, select
from corymb.kernels.torch_attention import TorchAttention
from corymb.kernels.triton_ahead import Ahead
from corymb.kernels.triton_allotting import TritonAllotting
from corymb.kernels.triton_attention import Limits, TritonAttention
from corymb.kernels.triton_block_attention import TritonBlocks
from corymb.kernels.triton_carrying import TritonCarrier
from corymb.kernels.triton_jit import Launch, is_interpreted
from corymb.kernels.triton_operations import TritonOperations
from corymb.kernels.triton_recurrence import TritonRecurrence
from corymb.kernels.triton_sampling import TritonSampling
from corymb.kernels.triton_settling import TritonSettling
from corymb.kernels.triton_standing import TritonStanding
from corymb.models.builtin import NoAttention
from corymb.models.cuda_decode import Parts
from corymb.models.cuda_device import CudaDevice, Device, HostDevice
from corymb.models.cuda_exact import CudaExactLinears
from corymb.models.cuda_experts import CudaExperts
from corymb.models.cuda_graphs import tiers
from corymb.models.cuda_group import CudaGroup, Sums
from corymb.models.cuda_linear import CudaLinears
from corymb.models.cuda_options import CudaOptions
from corymb.models.cuda_prefill import prefill_tiers
from corymb.models.cuda_records import DeviceRecords
from corymb.models.cuda_runner import CudaRunner
from corymb.models.errors import UnsupportedModel
from corymb.models.gloo_group import GlooGroup
from corymb.models.group import ALONE, Group
from corymb.models.heads import BatchedHeads, SeparateHeads
from corymb.models.host_pools import make_host_pools
from corymb.models.load import LoadOptions
from corymb.models.makers import Makers
from corymb.models.meeting import Ranks
from corymb.models.model import Model, ScoringModel
from corymb.models.placement import Place
from corymb.models.pools import allocate
from corymb.models.rows import Rows
from corymb.models.sampler import Sampler
from corymb.models.speculation import DeviceSpeculator, Drafting, Setting, Speculation, Tools
from corymb.models.states import StatePools

HOPPER = (9, 0)
INTERPRETED_SMS = 1


def make_parts(options: CudaOptions, ranks: Ranks | None = None, host: GlooGroup | None = None) -> "CudaParts":
    """Looks at the GPU, and for those of the other ranks. Raises UnsupportedModel for back ends that cannot work
    there."""
    try:
        device = make_device(options.index)
        return CudaParts(options, device, _group(options, device, ranks, host))
    except UnavailableBackend as error:
        raise UnsupportedModel(str(error)) from error


@dataclass(frozen=True, slots=True)
class Types:
    """The types of a model and of its pools."""

    model: torch.dtype
    pools: torch.dtype


class CudaParts:
    """Chooses once what fits the GPU; gives a model its operations, then makes its runner."""

    def __init__(self, options: CudaOptions, device: Device, group: Group = ALONE) -> None:
        self._options = options
        self.device = device
        self.group = group
        self._most_width = 1  # tokens of a row that decodes
        self.launch = _launch(device, early=options.early_launch)
        self._ahead = Ahead(0 if is_interpreted() else options.ahead_bytes, self.launch.num_sms)
        self.selected: Selected = select(options.attention, has_flashinfer=has_flashinfer() and not is_interpreted())

    def suit(self, specs: Sequence[AttentionSpec], speculation: Speculation | None = None) -> None:
        """Chooses back ends that do what a model's layers and its drafts ask for. Raises UnsupportedModel."""
        ours = "attention sinks" if any(spec.sinks is not None for spec in specs) else None
        ours = "latents" if any(spec.latent_dim is not None for spec in specs) else ours
        wish, flashinfer = self._options.attention, has_flashinfer() and not is_interpreted()
        try:
            self.selected = select(wish, has_flashinfer=flashinfer, ours=ours)
        except UnavailableBackend as error:
            raise UnsupportedModel(str(error)) from error
        if speculation is None:
            return
        self._most_width = 1 + speculation.num_drafts
        if self.selected.decode != "triton":
            name = self.selected.decode
            raise UnsupportedModel(
                f"{name} attention asks the host for lengths that only the device knows while rows speculate; use "
                "--decode-attention-backend triton."
            )

    def equip(self, options: LoadOptions) -> LoadOptions:
        """The same, with what this GPU's models are built with."""
        return replace(
            options,
            operations=TritonOperations(self.launch, self._ahead),
            recurrence=TritonRecurrence(self.launch, exact=self._options.attention.deterministic),
            makers=self._makers(options.dtype),
        )

    def _makers(self, dtype: torch.dtype) -> Makers:
        deterministic = self._options.attention.deterministic
        linear = CudaLinears(
            dtype,
            self.launch,
            self._options.fused_rows,
            deterministic=deterministic,
            library_adds=self._options.library_adds,
            ahead=self._ahead,
        )
        return Makers(
            linear=linear,
            exact=CudaExactLinears(self.launch, deterministic),
            experts=CudaExperts(dtype, self.launch, deterministic),
            # The library chooses by the number of rows in which order it sums.
            heads=SeparateHeads(linear) if deterministic else BatchedHeads(dtype),
        )

    def prepare_sums(self, width: int, dtype: torch.dtype) -> str:
        """Finds the fastest ways to sum rows of a model over the ranks; returns what to tell the operator."""
        if not isinstance(self.group, CudaGroup):
            return f"{self.group.size} ranks"
        self.group.prepare(Sums(width, dtype, self._options.max_step_tokens), TritonOperations(self.launch))
        return self.group.detail

    @property
    def detail(self) -> str:
        """What was chosen, for the operator."""
        selected = self.selected
        graphs = f"graphs up to {self._options.graph_max_tokens}" if self._options.graph_max_tokens else "no graphs"
        pieces = self._options.prefill_graph_max_tokens
        prompts = f", pieces of prompts up to {pieces}" if pieces else ""
        chosen = f"prefill {selected.prefill}, decode {selected.decode}, {graphs}{prompts}"
        return f"{chosen}. {selected.note}" if selected.note else chosen

    def runner(
        self,
        model: Model,
        config: CacheConfig,
        dtype: torch.dtype,
        pool_dtype: torch.dtype,
        *,
        eos_ids: frozenset[int],
    ) -> CudaRunner:
        """Both of what follows."""
        return self.capture(self.parts(model, config, dtype, pool_dtype, eos_ids=eos_ids), config)

    def parts(
        self,
        model: Model,
        config: CacheConfig,
        dtype: torch.dtype,
        pool_dtype: torch.dtype,
        *,
        eos_ids: frozenset[int],
        drafting: Drafting | None = None,
    ) -> Parts:
        """Allocates the pools, and loads what drafts."""
        types = Types(dtype, pool_dtype)
        place, sampling = Place(self.device.device), TritonSampling(self.launch)
        specs = model.attention_specs
        kv = allocate(specs, config, dtype=types.pools, place=place)
        drafted = drafting.speculation.attention_specs if drafting else ()
        draft_kv = allocate(drafted, config, dtype=types.model, place=place)
        states = None
        if model.state_specs:
            states = StatePools(model.state_specs, config.num_states, dtype=dtype, place=place)
        return Parts(
            model=model,
            attention=self._attention(model, config, types),
            kv=kv,
            rows=Rows(config, place),
            sampler=Sampler(config.num_rows, eos_ids, place, sampling, group=self.group),
            sampling=sampling,
            launch=self.launch,
            states=states,
            host=make_host_pools(
                [*specs, *drafted],
                [*kv, *draft_kv],
                states.pools if states else (),
                config,
                place,
                carrier=lambda tensors: TritonCarrier(tensors, self.launch),
            ),
            records=DeviceRecords(model, config, dtype, place, num_tokens=self._most_width)
            if drafting and states
            else None,
            speculator=self._speculator(drafting, Setting(model, config, draft_kv, self.equip(drafting.load), place))
            if drafting
            else None,
        )

    def _speculator(self, drafting: Drafting, setting: Setting) -> DeviceSpeculator:
        types = Types(setting.load.dtype, setting.load.dtype)
        tools = Tools(
            device=self.device,
            attention=lambda specs: self._triton(specs, setting.cache, types),
            blocks=TritonBlocks(self.launch),
            stand=TritonStanding(self.launch),
            allot=TritonAllotting(self.launch, max_rows=setting.cache.num_rows),
            settle=TritonSettling(self.launch),
            row_tiers=tiers(min(self._options.graph_max_tokens, setting.cache.num_rows - 1)),
        )
        return drafting.speculation.make_for_gpu(setting, tools)

    def token_tiers(self, config: CacheConfig) -> Sequence[int]:
        """How many tokens steps of rows that decode are captured for."""
        # The plain back end depends on lengths that the host knows, which a graph would repeat.
        most = self._options.graph_max_tokens if self.selected.decode != "torch" else 0
        return tiers(min(most, config.num_rows - 1) * self._most_width)

    def capture(self, parts: Parts, config: CacheConfig) -> CudaRunner:
        """Captures the graphs."""
        options, scoring = self._options, isinstance(parts.model, ScoringModel)
        # Recurrent layers of long rows depend on where each row begins, which pieces would repeat.
        in_pieces = scoring and not parts.states and self.selected.prefill != "torch"
        prefill = options.prefill_graph_max_tokens if in_pieces else 0
        return CudaRunner(
            parts,
            self.device,
            max_tokens=options.max_step_tokens,
            # Models made for tests leave no scores for a graph.
            graph_tiers=self.token_tiers(config) if scoring else (),
            prefill_tiers=prefill_tiers(prefill),
        )

    def _attention(self, model: Model, config: CacheConfig, types: Types) -> Attention:
        selected, specs = self.selected, model.attention_specs
        if not isinstance(model, ScoringModel):
            return NoAttention()  # a model made for tests
        if selected.prefill == "torch":
            return TorchAttention()
        made = {
            name: self._triton(specs, config, types) if name == "triton" else self._flashinfer(specs, config, types)
            for name in {selected.prefill, selected.decode}
        }
        if len(made) == 1:
            return made[selected.decode]
        return MixedAttention(prefill=made[selected.prefill], decode=made[selected.decode])

    def _triton(self, specs: Sequence[AttentionSpec], config: CacheConfig, types: Types) -> GraphAttention:
        usual_rows = max(config.num_rows, self._options.graph_max_tokens)
        most_rows = max(config.num_rows * self._most_width, usual_rows)  # a captured step has as many as tokens
        limits = Limits(most_rows, max(self._options.max_step_tokens, most_rows), usual_rows)
        return TritonAttention(
            specs,
            limits,
            device=self.device.device,
            kv_dtype=types.pools,
            launch=self.launch,
            deterministic=self._options.attention.deterministic,
            ahead=self._ahead,
        )

    def _flashinfer(self, specs: Sequence[AttentionSpec], config: CacheConfig, types: Types) -> GraphAttention:
        # Rows share prefixes, so together they may read more keys than the pool holds.
        most_keys = min(4 * config.num_full_tokens, config.num_rows * config.context_length)
        # Imported by name: the package takes seconds, and is there only with the `gpu` extra.
        module = importlib.import_module("corymb.kernels.flashinfer_attention")
        attention: GraphAttention = module.FlashInferAttention(
            specs,
            max_keys=most_keys,
            device=self.device.device,
            dtype=types.model,
            kv_dtype=types.pools,
            launch=self.launch,
        )
        return attention


def make_device(index: int = 0) -> Device:
    """The GPU, or its stand-in where kernels are interpreted. Raises UnsupportedModel where there is none."""
    if is_interpreted():
        return HostDevice()
    if not torch.cuda.is_available():
        raise UnsupportedModel("--device cuda finds no GPU: torch sees none; use --device cpu.")
    if index >= torch.cuda.device_count():
        raise UnsupportedModel(f"There is no GPU {index}: torch sees {torch.cuda.device_count()}; see --base-gpu-id.")
    torch.cuda.set_device(index)
    return CudaDevice(index)


def _group(options: CudaOptions, device: Device, ranks: Ranks | None, host: GlooGroup | None) -> Group:
    if ranks is None or host is None:
        return ALONE
    if isinstance(device, HostDevice):
        return host
    launch = _launch(device, early=options.early_launch)
    return CudaGroup(ranks, host, device, launch, deterministic=options.attention.deterministic)


def _launch(device: Device, *, early: bool) -> Launch:
    if is_interpreted():
        return Launch(interpreted=True, early=False, num_sms=INTERPRETED_SMS)
    properties = torch.cuda.get_device_properties(device.device)
    hopper = torch.cuda.get_device_capability(device.device) >= HOPPER
    return Launch(interpreted=False, early=early and hopper, num_sms=properties.multi_processor_count)
