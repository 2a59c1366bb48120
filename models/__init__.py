"""Checkpoints become modules, pools, batches and the runner: `StepPlan` in, `StepResult` out."""
