"""A block draft as its definition says: one block, all of its context at once, no cache."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from corymb.speculative.draft_config import DraftConfig

Tensors = dict[str, torch.Tensor]


@dataclass
class PlainDraft:
    config: DraftConfig
    weights: Tensors
    embedding: torch.Tensor

    def guess(self, features: torch.Tensor, previous: list[int]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [G, tokens that can be drafted] and confidence [G] for drafts behind `previous`, the anchor and all
        drafts but the last, from the target's features [S, m * H] of what lies before the anchor."""
        config, weights = self.config, self.weights
        context = self.norm("hidden_norm", features @ weights["fc.weight"].T)
        ids = [previous[0], *[config.mask_token_id] * (config.num_slots - 1)]
        x = self.embedding[ids]
        for layer in range(len(config.backbone.layers)):
            x = self.layer(layer, x, context)
        first = 0 if config.anchor_drafts else 1
        hidden = self.norm("norm", x)[first : first + len(previous)]
        head = weights.get("lm_head.weight", self.embedding)
        logits, doubts, state = [], [], torch.zeros(config.markov.rank if config.markov else 0)
        for slot, token in zip(hidden, previous, strict=True):
            bias, entry, state = self.markov(slot, token, state)
            logits.append(head @ slot + bias)
            if config.confident:
                seen = torch.cat((slot, entry)) if config.confident_of_tokens else slot
                product = weights["confidence_head.proj.weight"][0] @ seen
                doubts.append(torch.sigmoid(product + weights["confidence_head.proj.bias"][0]))
        return torch.stack(logits), torch.stack(doubts) if doubts else None

    def layer(self, number: int, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        def take(name: str) -> torch.Tensor:
            return self.weights[f"layers.{number}.{name}.weight"]

        def heads(product: torch.Tensor) -> torch.Tensor:
            return product.view(len(product), -1, self.config.backbone.head_dim)

        normed = self.norm(f"layers.{number}.input_layernorm", x)
        both = torch.cat((context, normed))
        positions = torch.arange(len(both))
        queries = heads(normed @ take("self_attn.q_proj").T)
        keys, values = heads(both @ take("self_attn.k_proj").T), heads(both @ take("self_attn.v_proj").T)
        queries = self.turned(self.norm(f"layers.{number}.self_attn.q_norm", queries), positions[len(context) :])
        keys = self.turned(self.norm(f"layers.{number}.self_attn.k_norm", keys), positions)
        attended = []
        for slot, query in enumerate(queries):
            seen = self.seen(number, len(context), slot, positions)
            of_heads = []
            for head, one in enumerate(query):
                group = head // (len(query) // keys.shape[1])
                scores = keys[seen, group] @ one * self.config.backbone.head_dim**-0.5
                of_heads.append(scores.softmax(0) @ values[seen, group])
            attended.append(torch.cat(of_heads))
        x = x + torch.stack(attended) @ take("self_attn.o_proj").T
        normed = self.norm(f"layers.{number}.post_attention_layernorm", x)
        inner = F.silu(normed @ take("mlp.gate_proj").T) * (normed @ take("mlp.up_proj").T)
        return x + inner @ take("mlp.down_proj").T

    def seen(self, number: int, anchor: int, slot: int, positions: torch.Tensor) -> torch.Tensor:
        window = self.config.backbone.layers[number].window
        if window is None:
            return torch.ones(len(positions), dtype=torch.bool)
        inside = positions >= anchor + slot - (window - 1)
        return inside & (positions <= anchor + slot) if self.config.causal_windows else inside

    def markov(
        self, slot: torch.Tensor, token: int, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        config = self.config.markov
        if config is None:
            return torch.zeros(()), torch.zeros(0), state
        take = {name.removeprefix("markov_head."): tensor for name, tensor in self.weights.items()}
        if config.tied:
            entry = take["tied_in.weight"] @ self.embedding[token]
            table = self.embedding @ take["tied_out.weight"].T
        else:
            entry, table = take["markov_w1.weight"][token], take["markov_w2.weight"]
        inner = entry
        if config.kind == "gated":
            gate = take["gate_proj.weight"] @ torch.cat((slot, entry)) + take["gate_proj.bias"]
            inner = torch.sigmoid(gate) * entry
        if config.kind == "rnn":
            joined = take["joint_proj.weight"] @ torch.cat((state, entry, slot)) + take["joint_proj.bias"]
            gate, candidate, output = joined.split(config.rank)
            state = torch.sigmoid(gate) * state + (1 - torch.sigmoid(gate)) * torch.tanh(candidate)
            inner = torch.tanh(output)
        return table @ inner, entry, state

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weights[f"{name}.weight"], self.config.backbone.norm_eps)

    def turned(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        rope, half = self.config.backbone.layers[0].rope, heads.shape[-1] // 2
        assert rope is not None
        angles = positions[:, None] / rope.theta ** (torch.arange(half) / half)
        cosines, sines = angles.cos()[:, None], angles.sin()[:, None]
        first, second = heads.split(half, dim=-1)
        return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
