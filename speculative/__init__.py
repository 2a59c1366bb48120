"""Drafters, budgets and verification; and the training of drafts for a model of one's own.

A step that drafts: `verification` lets a drafter propose, an allotment of `allocation` choose how much of each row is
verified, the target compute that, and accepts; then the drafter observes what was kept.

    drafters   ngram · standalone (standalone_config) · block_speculation loads block_drafter:
               draft_config (draft_dialects), draft_tensors → backbone, markov, draft_heads (draft_draw)
               shipped: which draft comes with the package
    on GPUs    device_verification (device_turns → device_proposals → device_choosing); device_ngram and
               device_standalone for drafters that ask the host on a CPU
    how much   budget, before the step, by cost_model (measuring, correction; cost_profile), outlook (calibration) and
               account · allocation, in it
    audits     trace · block_estimate
    training   training_run: conversations (prompts, topics; writing) → corpus → lessons, by a teacher
               → training (trainable, draft_loss; training_state) of a draft_shape → draft_files
    judging    trial: rounds of the real loop
"""
