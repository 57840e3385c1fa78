"""What a sandbox does with a worker that ends badly."""

import os
import select
import signal
import socket
import subprocess
import time

from scalerl.rewards.sandbox import Limits, Sandbox

LEAVES_ANOTHER = "sleep 60 & echo its last word >&2; exec sleep 60"


def test_last_words_are_not_waited_for_where_another_process_holds_the_pipe():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = subprocess.Popen(
        ["/bin/sh", "-c", LEAVES_ANOTHER], stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        assert select.select([worker.stderr], [], [], 20)[0]
        sandbox = Sandbox(kind="none", limits=Limits())
        sandbox._channel, sandbox._worker = ours, worker
        began = time.monotonic()
        assert str(sandbox._broken("no worker")) == "no worker: its last word"
        assert time.monotonic() - began < 20
    finally:
        theirs.close()
        os.killpg(worker.pid, signal.SIGKILL)
