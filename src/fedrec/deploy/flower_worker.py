"""A node's worker: it takes what its SuperNode was sent to this node's own program, and never loads what arrived.

Flower would start a process for every message that unpacks the app which the server sent, and runs it. Here the app is
a hash: that of the bundle which this version of fedrec makes, or one that the owner listed. It uses internals of Flower
1.41, which the tests try whenever its version changes.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
from flwr.app import Context, Error, Message
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedrec.deploy.flower import APP
from fedrec.deploy.flower_app import read_message, to_record

POLL = 0.2  # seconds between two looks for something to do
PATIENCE = 300  # looks, a minute: a server that lost the last reply asks again
TRIES = 5  # of a SuperNode that does not answer, about a message in hand
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
KINDS = (TaskType.CLIENT_APP, TaskType.AGENT_APP)  # an agent's is refused: left lying, it would hold up the others
MESSAGE = "train"  # the type of all messages of fedrec

Answer = Callable[[bytes, float], bytes]
"""By a message and the processor seconds that it has cost to bring it."""
Refuse = Callable[[str], None]
"""Write down what was refused."""


def hash_own_bundle() -> str:
    """Hash the bundle that this version's server sends; made of the same words, it is the same bytes."""
    with tempfile.TemporaryDirectory(prefix="fedrec-bundle-") as folder:
        (Path(folder) / "pyproject.toml").write_text(APP, encoding="utf-8")
        return hashlib.sha256(build_fab_from_disk(Path(folder))).hexdigest()


class Worker:
    """`address`: of the SuperNode on this machine. `secret`: by which the SuperNode knows this worker."""

    def __init__(self, address: str, secret: bytes, bundles: Iterable[str], answer: Answer, refuse: Refuse) -> None:
        self.address, self.bundles = address, frozenset(bundles)
        self.answer, self.refuse = answer, refuse
        self._taking = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={ACQUIRE})

    def work(
        self, node: subprocess.Popen[bytes], is_finished: Callable[[], bool] = lambda: False, patience: int = PATIENCE
    ) -> int:
        """Do what comes until the SuperNode ends; return its exit code.

        Where the federation is finished and `patience` looks find nothing more to do, the SuperNode is ended: 0.
        """
        idle = 0
        # tried once: who waits for a SuperNode that has ended would never see that it has
        with closing(self._connect(1, self._taking)) as client:
            while (code := node.poll()) is None:
                try:
                    found = client.AcquireTask(AcquireTaskRequest(supported_task_types=KINDS))
                    if found.HasField("task") and found.token:
                        self._do(found.token)
                        idle = 0
                        continue
                except httpx.HTTPError:  # it has not started yet, or is about to end
                    pass
                idle += 1
                if idle > patience and is_finished():
                    node.terminate()
                    return 0
                time.sleep(POLL)
        return code

    def _connect(self, tries: int, *interceptors: ProtobufClientInterceptor) -> RuntimeHttpClient:
        retry = make_simple_http_retry_invoker()
        retry.max_tries = tries
        return RuntimeHttpClient.from_server_address(
            self.address,
            insecure=True,  # on this machine alone
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), *interceptors],
            retry_invoker=retry,
        )

    def _do(self, token: str) -> None:
        """Answer one message, or say why not."""
        began = time.process_time()
        with closing(self._connect(TRIES, RuntimeTokenHttpInterceptor(token))) as client, _heartbeat(client):
            message, context, _, bundle = pull_task_input(client)
            reply, reason = self._reply(message, bundle.content, began)
            push_message(client, reply, context)
            _finish(client, context, reason)

    def _reply(self, message: Message, bundle: bytes, began: float) -> tuple[Message, str]:
        """Return a reply, and the reason where it is an error."""
        sent = hashlib.sha256(bundle).hexdigest()
        if sent not in self.bundles:
            reason = f"the app {sent[:12]} is not one that this node runs"
        elif message.metadata.message_type != MESSAGE:
            reason = f"messages of the type '{message.metadata.message_type:.40}' are not fedrec's"
        else:
            try:
                content = read_message(message)
                return Message(to_record(self.answer(content, time.process_time() - began)), reply_to=message), ""
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"[:300]
                return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message), reason
        self.refuse(reason)
        return Message(Error(ErrorCode.INVALID_FAB, reason), reply_to=message), reason


def _finish(client: RuntimeHttpClient, context: Context, reason: str) -> None:
    push_task_output(client, context, SubStatus.FAILED if reason else SubStatus.COMPLETED, reason)


@contextmanager
def _heartbeat(client: RuntimeHttpClient) -> Iterator[None]:
    """Let the SuperNode know that somebody is at work."""
    sender = HeartbeatSender(make_task_heartbeat_fn_http(client))
    sender.start()
    try:
        yield
    finally:
        if sender.is_running:
            sender.stop()
