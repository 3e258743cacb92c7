"""Forking of worker processes from a worker that has loaded what all of them need.

A tokenizer with a large vocabulary takes a second to load, and a hundred megabytes. So on Linux one
worker loads it and processes no units. It is forked into the workers that do: they start in a few
milliseconds and share its memory. The coordinator (the process that runs the build) is never
forked, because it may have threads, and a lock that another thread holds is never released in a
fork. A worker that has threads refuses to fork, and the coordinator starts a new interpreter.

The coordinator sends the message ``fork`` and the descriptors that the new worker will use. The
forked process is not its child, so the forking worker reports the process id and the exit status.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import IO, NamedTuple

from ..read.process_limits import new_note

__all__ = ["CAN_FORK", "Descriptors", "ForkPoint", "Forked", "request_fork"]

CAN_FORK = sys.platform == "linux" and hasattr(os, "pidfd_open")

_DESCRIPTORS = 4


class Forked:
    """Worker process that was forked from another worker, as the coordinator sees it."""

    def __init__(
        self, process_id: int, messages: IO[bytes], events: IO[bytes], note: IO[bytes],
        status: IO[bytes],
    ) -> None:  # fmt: skip
        self.pid = process_id
        self.messages = messages
        self.events = events
        self.note = note
        self._status = status
        self._exit_status: int | None = None
        try:
            self._handle: int | None = os.pidfd_open(process_id)
        except ProcessLookupError:  # it has ended already
            self._handle = None

    def kill(self) -> None:
        """Kill the worker."""
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self) -> int:
        """Wait until the worker has ended, and return its exit status as `Popen.wait` does.

        If the worker that it was forked from has died, the status is unknown, and the result is
        that of a killed process.
        """
        if self._exit_status is None:
            line = self._status.readline()
            if self._handle is not None:
                poll = select.poll()
                poll.register(self._handle, select.POLLIN)
                poll.poll()
            self._exit_status = int(line or -signal.SIGKILL)
        return self._exit_status

    def close(self) -> None:
        """Close the pipes and files of the worker."""
        with contextlib.suppress(OSError):  # messages that the worker has not read
            self.messages.close()
        for stream in (self.events, self.note, self._status):
            stream.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def request_fork(messages: IO[bytes], channel: socket.socket) -> Forked | None:
    """Return a worker forked from the worker that reads `messages`.

    The descriptors go through `channel`. Return None if the worker has died or refuses to fork.
    The call waits until the worker has carried out all earlier requests.
    """
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        streams, descriptors = [], []
        for mode in ("wb", "rb", "rb"):  # messages, events, status
            reading, writing = os.pipe()
            kept, passed = (writing, reading) if mode == "wb" else (reading, writing)
            theirs.callback(os.close, passed)
            streams.append(ours.enter_context(os.fdopen(kept, mode)))
            descriptors.append(passed)
        note = ours.enter_context(new_note())
        try:
            messages.write(b"fork\n")
            messages.flush()
            socket.send_fds(channel, [b"."], [*descriptors, note.fileno()])
        except OSError:
            return None
        theirs.close()
        sent, events, status = streams
        line = status.readline()
        if not line:
            return None
        ours.pop_all()
        return Forked(int(line), sent, events, note, status)


class Descriptors(NamedTuple):
    """Descriptors of a forked worker: the pipe for its events, and the file of its activity."""

    events: int
    note: int


class ForkPoint:
    """The forking worker's end of the channel through which it receives descriptors."""

    def __init__(self, channel: int) -> None:
        self._channel = socket.socket(fileno=channel)
        self._status: dict[int, int] = {}  # pipes for the exit status, by process id
        signal.signal(signal.SIGCHLD, self._report)

    def fork(self) -> Descriptors | None:
        """Fork this process. Return None in this process, and the descriptors in the new one.

        In the new process, standard input is the pipe of its messages. If this process has several
        threads, no process is forked.
        """
        _, received, _, _ = socket.recv_fds(self._channel, 1, _DESCRIPTORS)
        threads = sum(1 for _ in Path("/proc/self/task").iterdir())
        if len(received) < _DESCRIPTORS or threads > 1:
            for descriptor in received:
                os.close(descriptor)
            return None
        messages, events, status, note = received
        gc.freeze()  # otherwise its first run in a fork would copy most of the shared memory
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:
            process_id = os.fork()
            if not process_id:
                self._become_fork(messages, status)
                return Descriptors(events, note)
            self._status[process_id] = status
            with contextlib.suppress(BrokenPipeError):  # the coordinator has given up
                os.write(status, b"%d\n" % process_id)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        for descriptor in (messages, events, note):
            os.close(descriptor)
        return None

    def _become_fork(self, messages: int, status: int) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._channel.close()
        for other in (*self._status.values(), status):
            os.close(other)  # the forking worker's: they show when it has ended
        os.dup2(messages, 0)
        os.close(messages)

    def _report(self, *_: object) -> None:
        """Report the exit status of each process that has ended. This is a signal handler."""
        for process_id in list(self._status):
            found, code = os.waitpid(process_id, os.WNOHANG)
            if found:
                status = self._status.pop(process_id)
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(code))
                os.close(status)
