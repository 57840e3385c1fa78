"""The start model: made with the threads that the settings give it."""

import torch

from scalerl.pipeline import start


def test_the_supervised_start_takes_the_threads_it_is_given(tmp_path, small_config, monkeypatch):
    seen = []
    monkeypatch.setattr(start, "supervise", lambda *_, **__: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    try:
        start.make_start(small_config("--execution.threads=2"), tmp_path, lambda step, loss: None)
    finally:
        torch.set_num_threads(before)
    assert seen == [2]
