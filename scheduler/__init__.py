"""Requests, order, admission, retraction, finishing, and the loop. Imports `cache`; never torch.

One turn of `loop.Loop`: messages come in, `scheduler.Scheduler` plans a step, the runner launches it, the results of
the step before it are settled, outputs go out. Who does what in it:

    in       reception (its rules: door) → ledger: every request's state, seat and lease; queue, running
    plan     prefill: lineup (order, branches) → intake (admission, beginnings, prefetching; pushing, preemption)
             decoding (retraction), with the ratio of outputs to set aside → parts → plan.StepPlan
             drafting: how far rows may draft; windows: who decides how much is verified
    results  flight → settling (finishing) → outbox; tally counts
    ranks    turns: what rank 0 tells the others, so that all plan the same; agreement checks that they do
    grammars following: which are known, and each step's masks; constraint: how far a request is in its own;
             thinking: when its thought must end

Policies are functions on numbers: admission, cuts, order, branches, preemption, retraction, ratio, finishing; validity
says which options of `config` exclude each other. Messages on the wire: `messages`; what the runner gets: `plan`.
"""
