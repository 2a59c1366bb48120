"""What is served: /v1/models and the native info routes."""

import time
from datetime import UTC, datetime
from typing import Any

from corymb.serve.answer import encode
from corymb.serve.call import Call
from corymb.serve.errors import ApiError, shown
from corymb.serve.parts import Parts


class ModelRoutes:
    """Answers questions about the model and the server."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._engine = parts.engine

    async def list(self, call: Call) -> None:
        """GET /v1/models."""
        names = self._engine.info.names
        ends = {"first_id": names[0], "last_id": names[-1], "has_more": False}  # Anthropic's clients turn pages
        await call.answer(200, encode({"object": "list", "data": [self._card(name) for name in names], **ends}))

    async def one(self, call: Call) -> None:
        """GET /v1/models/{id}."""
        name = call.path.removeprefix("/v1/models/")
        if name not in self._engine.info.names:
            raise ApiError("model_not_found", f"The model {shown(name, limit=140)} is not served here.", param="model")
        await call.answer(200, encode(self._card(name)))

    def _card(self, name: str) -> dict[str, Any]:
        info = self._engine.info
        return {
            "id": name,
            "object": "model",
            "created": int(info.started_at),
            "owned_by": "corymb",
            "root": info.names[0],
            "parent": None,
            "max_model_len": info.context_length,
            # As Anthropic's clients know models.
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(info.started_at, UTC).isoformat(timespec="seconds"),
        }

    async def model_info(self, call: Call) -> None:
        """GET /model_info."""
        info = self._engine.info
        answer = {
            "model_path": info.path,
            "tokenizer_path": info.tokenizer_path,
            "served_model_name": info.names[0],
            "is_generation": True,
            "model_type": info.architecture,
            "context_length": info.context_length,
            "vocab_size": info.vocab_size,
            "eos_token_ids": list(info.eos_ids),
            "has_chat_template": self._parts.chat_template is not None,
            "preferred_sampling_params": dict(self._parts.settings.sampling_defaults) or None,
        }
        await call.answer(200, encode(answer))

    async def server_info(self, call: Call) -> None:
        """GET /server_info: the resolved configuration and the state of the engine, without secrets."""
        info, stats = self._engine.info, self._engine.stats
        answer = {
            **info.config,
            "version": info.version,
            "state": self._engine.state,
            "is_paused": self._engine.is_paused,
            "served_model_names": list(info.names),
            "model_path": info.path,
            "tokenizer_path": info.tokenizer_path,
            "context_length": info.context_length,
            "max_total_num_tokens": info.max_total_num_tokens,
            "page_size": info.page_size,
            "scheduler": info.scheduler,
            "num_running": stats.num_running if stats else 0,
            "num_waiting": stats.num_waiting if stats else 0,
            "pool_used": stats.pool_used if stats else {},
            "uptime_s": round(time.time() - info.started_at, 3),
        }
        await call.answer(200, encode(answer))

    async def loads(self, call: Call) -> None:
        """GET /v1/loads: how busy the engine is, for routers; as of its last report, which is a second old at most."""
        info, stats = self._engine.info, self._engine.stats
        pools = stats.pool_total if stats else {}
        shares = [stats.pool_used[name] / total for name, total in pools.items() if total] if stats else []
        load = {
            "dp_rank": 0,
            "num_running_reqs": stats.num_running if stats else 0,
            "num_waiting_reqs": stats.num_waiting if stats else 0,
            "num_total_reqs": stats.num_running + stats.num_waiting if stats else 0,
            "num_used_tokens": stats.pool_used.get("full", 0) if stats else 0,
            "max_total_num_tokens": pools.get("full", info.max_total_num_tokens),
            "token_usage": round(max(shares, default=0.0), 4),  # of the fullest pool
            "is_paused": self._engine.is_paused,
        }
        await call.answer(200, encode({"timestamp": time.time(), "dp_rank_count": 1, "loads": [load]}))
