"""Drafters, verification, allocation of widths, and the making of drafts.

Where to read, by what you look for:

    a step         verification (allocation) · how much of it: budget → cost_model (measuring, cost_profile)
    drafters       ngram; standalone (standalone_config); block_drafter: backbone → draft_heads (markov, draft_draw)
    their folders  block_speculation → draft_config (draft_dialects), draft_tensors
    a draft made   training_run: conversations (prompts, topics, writing; kept as corpus)
                   → teacher: features · lessons → trainable, of a draft_shape → draft_loss · training (training_state)
                   → draft_files
    and judged     trial: rounds of the real loop → calibration; cost_profile
"""
