"""scalerl: reinforcement learning of language models, and forecasts of where a run will end.

Two halves meet at one file, the curve (``curve.jsonl``): everything that trains, and
``scalerl.scaling``, which fits curves and never imports torch.
"""

import os
from pathlib import Path

__version__ = "0.1.0"


def _round_alike() -> None:
    """Have MKL round a product alike wherever its operands lie in memory.

    Left alone, it does not on Intel's CPUs with AVX-512: at equal weights the log-probs of
    generator and trainer then differ in the last bits. Costs a tenth of the speed of large products
    there, up to a third of small ones. Has to be said before torch loads MKL; what is set is kept.
    """
    try:
        cpu = Path("/proc/cpuinfo").read_text("ascii", "replace").partition("\n\n")[0]
    except OSError:
        return
    if "GenuineIntel" in cpu:
        for flag, branch in (("avx512f", "AVX512"), ("avx2", "AVX2")):
            if f" {flag} " in cpu:
                os.environ.setdefault("MKL_CBWR", f"{branch},STRICT")
                return


_round_alike()
