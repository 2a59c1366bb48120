"""Which drafts a target accepts, in plain torch: N rows, windows of up to P drafts, a vocabulary of V tokens.

Place j of a row is the token behind its first j drafts. The row's output is the accepted drafts and one token more.
"""

import torch
from torch import Tensor

from corymb.kernels.noise import exponential, uniform
from corymb.kernels.sampling import Draws, best, num_kept


def match(own: Tensor, drafts: Tensor, windows: Tensor) -> Tensor:
    """How many drafts [N, P] each row accepts, int64 [N]: those before the first that is not `own` [N, P + 1], what the
    target says at the same place, and no more than its window [N]."""
    places = torch.arange(drafts.shape[1], device=drafts.device)
    equal = (own[:, :-1] == drafts) & (places < windows[:, None])
    return equal.cumprod(dim=1).sum(dim=1)


def probabilities(logits: Tensor, draws: Draws, *, filtered: bool) -> Tensor:
    """What rows of logits [N, V] are drawn from, float32 [N, V]: after temperature and min-p and, if `filtered`, top-k
    and top-p, as `sampling.draw` and `sampling.draw_filtered` draw."""
    if not filtered:
        weights = (logits / draws.temperature[:, None]).softmax(dim=1)
        if draws.any_min_p:
            weights *= weights >= draws.min_p[:, None] * weights.amax(dim=1, keepdim=True)
            weights /= weights.sum(dim=1, keepdim=True)
        return weights
    ordered = best(logits, logits.shape[1])
    weights = ((ordered.values - ordered.values[:, :1]) / draws.temperature[:, None]).exp_()
    kept = num_kept(weights, weights.sum(dim=1), draws)
    rank = torch.arange(weights.shape[1], device=logits.device)
    weights = weights * ((rank < kept[:, None]) & (weights >= draws.min_p[:, None]))
    weights /= weights.sum(dim=1, keepdim=True)
    return torch.zeros_like(logits).scatter_(1, ordered.token_ids, weights)


def reject(
    target: Tensor, draft: Tensor | None, drafts: Tensor, windows: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    """Rejection sampling: what comes out follows `target`, whatever drafted (Leviathan et al. 2023, Chen et al. 2023).

    target [N, P + 1, V]: probabilities at each place. draft [N, P, V]: those that the drafts [N, P] were drawn from;
    None: they were certain. keys int32 [N, P + 1, 2]: noise of each place that nothing else has used. Returns the
    number of drafts that each row accepts, int64 [N], and the token behind them, int64 [N].
    """
    num_rows, num_drafts = drafts.shape
    accepted = torch.zeros(num_rows, dtype=torch.int64, device=drafts.device)
    going = torch.ones(num_rows, dtype=torch.bool, device=drafts.device)
    for place in range(num_drafts):
        token = drafts[:, place, None]
        chance = target[:, place].gather(1, token)[:, 0]
        proposed = torch.ones_like(chance) if draft is None else draft[:, place].gather(1, token)[:, 0]
        going = going & (place < windows) & (uniform(keys[:, place]) * proposed < chance)
        accepted += going
    rows = torch.arange(num_rows, device=drafts.device)
    left = target[rows, accepted]
    rejected = accepted < windows
    if num_drafts:
        at = accepted.clamp(max=num_drafts - 1)
        taken = _certain(drafts[rows, at], left) if draft is None else draft[rows, at]
        rest = (left - taken).clamp_(min=0)
        # Nothing is left only where both are equal, and there nothing is rejected but for rounding.
        usable = rejected & (rest.sum(dim=1) > 0)
        left = torch.where(usable[:, None], rest, left)
    every_id = torch.arange(left.shape[1], dtype=torch.int32, device=left.device)
    return accepted, (left / exponential(keys[rows, accepted], every_id)).argmax(dim=1)


def _certain(token_ids: Tensor, like: Tensor) -> Tensor:
    """Distributions of one token each."""
    return torch.zeros_like(like).scatter_(1, token_ids[:, None], 1.0)
