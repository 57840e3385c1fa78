"""Lives of ranks for `test_rank_faults`; as a program, a rank 0 that is held when another dies:
`stuck` for good in writing a folder, or `slow`, and then failing for it."""

import os
import sys
import time
from pathlib import Path

from scalerl.errors import RunError
from scalerl.pipeline import rank_watch
from scalerl.train.sharded import lost_ranks


def fail_on_rank_0(config, model_path, kind):
    if kind.__name__ == "SpawnedTrainer":
        raise ZeroDivisionError
    time.sleep(600)


def die(connection):
    rank_watch.show_life(connection)
    time.sleep(0.5)
    os._exit(3)


if __name__ == "__main__":
    how, folder = sys.argv[1], Path(sys.argv[2])
    rank_watch.FREE_S = 1.0
    watch = rank_watch.RankWatch(
        die, [()], silence_s=60.0, at_end=lambda: print("cleared away", flush=True)
    )
    if how == "stuck":
        with watch.unfinished(folder), watch.waited_for():
            time.sleep(600)
    try:
        with watch.waited_for(rank_watch.BUSY_S), lost_ranks():
            watch._found.wait(60)
            time.sleep(4)
            raise RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer")
    except RunError as error:
        print(error, flush=True)
    watch.close(0.0)
