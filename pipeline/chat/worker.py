"""Worker side of the kind `chat`: loading tokenizers early, taking samples, opening tasks."""

from __future__ import annotations

import contextlib
import gc
import pickle
from pathlib import Path

import msgspec

from ..own_files import read_own
from ..plan.plan import PLAN_NAME, Plan, load_plan
from ..read.process_limits import Watch
from ..tokenize.engines import naming
from ..tokens.task import ENGINE_NAME, Request, TokenTasks
from .encode import tables_of
from .plan import ChatPayload
from .sample import SampleRequest, take_chat_sample
from .task import ChatTask

__all__ = ["ChatTasks"]

_MANY_OBJECTS = 200_000

# Made at import, in one thread: msgspec 0.22 crashes where several are the first to use a type.
_PLAN = msgspec.json.Decoder(Plan[ChatPayload])
_REQUEST = msgspec.json.Decoder(Request | SampleRequest)


class ChatTasks(TokenTasks):
    """Functions that a worker process calls for builds of the kind `chat`.

    A worker process encodes units, and may also render the sample of a build. Templates run with
    limits on their time and memory.
    """

    address = "dataprep.pipeline.chat.worker:ChatTasks"

    def answer(self, request: bytes, watch: Watch | None) -> bytes:
        """Return the answer to `request`.

        The answer to a `SampleRequest` is a pickled `ChatSample`.
        """
        asked = _REQUEST.decode(request)
        if isinstance(asked, SampleRequest):
            return pickle.dumps(take_chat_sample(asked, watch))
        return super().answer(request, watch)

    def get_ready(self, engine_json: bytes) -> None:
        """Compute the tables of the tokenizer. Load the library `tokenizers` if units will use it.

        An error in computing the tables is ignored here, because each unit would report it.
        """
        super().get_ready(engine_json)
        with contextlib.suppress(Exception):  # a unit reports the error if it occurs again
            tables_of(engine_json)

    def open_task(self, staging: Path, watch: Watch | None) -> ChatTask:
        """Return the task for the plan in the directory `staging`."""
        plan = load_plan(staging / PLAN_NAME, _PLAN)
        with naming(plan.payload.tokenizer):
            encoder = self.encoder(plan, staging)
            task = ChatTask(plan, encoder, read_own(staging / ENGINE_NAME), watch)
        _collect_rarely()
        return task


def _collect_rarely() -> None:
    """Make the garbage collector run rarely.

    Records consist of many objects, which form no cycles and live for one block only. With its
    default settings, the collector takes a third of the time of reading.
    """
    gc.freeze()
    gc.set_threshold(_MANY_OBJECTS, 10, 10)
