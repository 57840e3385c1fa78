"""Lives of ranks for `test_rank_faults`; as a program, a rank 0 that is stuck when another dies."""

import os
import time

from scalerl.pipeline import rank_watch


def fail_on_rank_0(config, model_path, kind):
    if kind.__name__ == "SpawnedTrainer":
        raise ZeroDivisionError
    time.sleep(600)


def die(connection):
    rank_watch.show_life(connection)
    time.sleep(0.5)
    os._exit(3)


if __name__ == "__main__":
    rank_watch.FREE_S = 1.0
    watch = rank_watch.RankWatch(die, [()], silence_s=60.0)
    with watch.waited_for():
        time.sleep(600)
