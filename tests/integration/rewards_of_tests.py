"""Rewards that completions of a random model get about half of the time."""

import contextlib
import os
import time

FAULTY = "3"  # prompts with this answer have no verdict


def even(completion, prompt):
    return float(sum(map(ord, completion)) % 2 == 0)


def deadly(completion, prompt):
    """Ends its process on some prompts."""
    if prompt["answer"] == FAULTY:
        os._exit(3)
    return even(completion, prompt)


def hanging(completion, prompt):
    """Never returns on some prompts, whatever it is told."""
    while prompt["answer"] == FAULTY:
        with contextlib.suppress(BaseException):
            time.sleep(60)
    return even(completion, prompt)
