"""Recordings of what the scheduler process does, on demand, for Perfetto or chrome://tracing."""

import time
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from corymb.scheduler.loop import Port
from corymb.scheduler.messages import Control, Output, Reply, Stats, ToScheduler


class Profiling:
    """Owns the recording in progress. One at a time; it ends by itself, so that its memory is bounded."""

    def __init__(self, folder: Path, name: str) -> None:
        """Files go to `folder` and have `name`, that of the process, in theirs."""
        self._folder = folder
        self._name = name
        self._recording: profile | None = None
        self._steps_left = 0

    def obey(self, order: Control) -> Reply:
        """Starts or stops."""
        if order.action == "start_profile":
            return self._start(order)
        if self._recording is None:
            return Reply(order.id, False, "No recording is in progress.")
        return Reply(order.id, True, f"Recorded to {self._stop(self._recording)}.")

    def turn(self) -> None:
        """The loop begins a turn."""
        if self._recording is None:
            return
        self._steps_left -= 1
        if self._steps_left < 0:
            self._stop(self._recording)

    def _start(self, order: Control) -> Reply:
        if self._recording is not None:
            return Reply(order.id, False, "A recording is in progress already: stop it first.")
        # On a CPU the steps run on a thread of their own.
        threads = _ExperimentalConfig(profile_all_threads=True)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._recording = profile(activities=activities, experimental_config=threads)
        self._recording.start()
        self._steps_left = order.num_steps
        return Reply(order.id, True, f"Records at most {order.num_steps} turns of the loop.")

    def _stop(self, recording: profile) -> Path:
        self._recording = None
        recording.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{self._name}.trace.json.gz"
        recording.export_chrome_trace(str(path))
        return path


class ProfiledPort:
    """A port that keeps orders to record for itself."""

    def __init__(self, port: Port, profiling: Profiling) -> None:
        self._port = port
        self._profiling = profiling

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        """What has arrived for the scheduler."""
        self._profiling.turn()
        passed: list[ToScheduler] = []
        for message in self._port.receive(timeout_s):
            if isinstance(message, Control) and message.action in ("start_profile", "stop_profile"):
                self._port.send(self._profiling.obey(message))
            else:
                passed.append(message)
        return passed

    def send_step(self, outputs: list[Output]) -> None:
        """Passes on what one step gave."""
        self._port.send_step(outputs)

    def send(self, message: Stats | Reply) -> None:
        """Passes on something for the main process."""
        self._port.send(message)
