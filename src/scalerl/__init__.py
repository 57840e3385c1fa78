"""scalerl: reinforcement learning of language models, and forecasts of where a run will end.

Two halves meet at one file, the curve (``curve.jsonl``): everything that trains, and
``scalerl.scaling``, which fits curves and never imports torch.
"""

__version__ = "0.1.0"
