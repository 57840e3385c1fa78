"""`scalerl fit` and `scalerl compare` as a shell sees them, without the command that hosts them."""

import argparse
import json
import subprocess
import sys

import numpy as np
import pytest

from scalerl.cli import compare, fit
from scalerl.errors import InputError
from scalerl.scaling.sigmoid import sigmoid

from .simulate import PAPER, ar1

CONTRACT = {"status", "reasons", "A", "B", "C_mid", "R0", "predictions"} | {
    "n_points",
    "window",
    "unit",
    "r0_mode",
}


def run_directory(path, seed=0, **parameters):
    """A run directory with 30 noisy evaluations and step 0."""
    path.mkdir(exist_ok=True)
    C = np.linspace(1500, 16000, 30)
    y = sigmoid(C, **{**PAPER, **parameters}) + ar1(np.random.default_rng(seed), (1, 30))[0]
    rows = [{"step": 0, "device_hours": 0.0, "pass_rate": 0.4}]
    rows += [
        {"step": 100 * (i + 1), "device_hours": c, "pass_rate": r}
        for i, (c, r) in enumerate(zip(C, y, strict=True))
    ]
    (path / "curve.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


def call(module, *arguments):
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return module.run(parser.parse_args(list(arguments)))


def test_json_holds_the_contract(tmp_path, capsys):
    path = run_directory(tmp_path / "one")
    assert call(fit, path, "--predict", "20000", "40000", "--target", "0.55", "--json") == 0
    saved = json.loads(capsys.readouterr().out)
    assert set(saved) >= CONTRACT
    assert saved["status"] == "identified"
    assert set(saved["A"]) == {"estimate", "low", "high"}
    assert [p["compute"] for p in saved["predictions"]] == [20000, 40000]
    assert set(saved["predictions"][0]) == {
        "compute", "estimate", "low", "high", "observation_low", "observation_high",
    }  # fmt: skip
    assert (saved["unit"], saved["r0_mode"], saved["n_points"]) == ("device_hours", "step0", 30)


def test_table_and_plot_in_the_terminal(tmp_path, capsys):
    path = run_directory(tmp_path / "one")
    assert call(fit, path, "--windows") == 0
    out = capsys.readouterr().out
    assert "one: identified" in out
    assert "C_mid" in out
    assert "device_hours (log)" in out
    assert "verdict" in out
    assert "│" in out


def test_plots_are_written(tmp_path, capsys):
    one, two = run_directory(tmp_path / "one"), run_directory(tmp_path / "two", 1, A=0.55)
    assert call(fit, one, "--plot", str(tmp_path / "fit.png")) == 0
    plots = ("--plot", str(tmp_path / "c.pdf"), "--plot-transform", str(tmp_path / "f.svg"))
    assert call(compare, one, two, *plots) == 0
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (tmp_path / "f.svg").read_text()
    assert "one has the higher ceiling" in capsys.readouterr().out


def test_replicates_are_pooled(tmp_path, capsys):
    runs = [run_directory(tmp_path / f"r{i}", i) for i in range(3)]
    assert call(fit, runs[0], "--replicates", *runs[1:], "--predict", "30000") == 0
    assert "3 runs pooled" in capsys.readouterr().out
    assert call(fit, runs[0], "--replicates", *runs[1:], "--predict", "30000", "--json") == 0
    pooled = json.loads(capsys.readouterr().out)["pooled"]
    assert pooled["degrees_of_freedom"] == 2
    assert pooled["A"]["low"] < 0.61 < pooled["A"]["high"]
    (p,) = pooled["predictions"]
    assert p["run_low"] < p["low"] < p["estimate"] < p["high"] < p["run_high"]


def test_named_replicates_in_a_comparison(tmp_path, capsys):
    a, b, c = (run_directory(tmp_path / n, i) for i, n in enumerate(("a", "b", "c")))
    assert call(compare, f"ours={a},{b}", f"theirs={c}", "--json") == 0
    saved = json.loads(capsys.readouterr().out)
    assert sorted(saved["ranking"]) == ["ours", "theirs"]
    assert saved["run_sd"]["estimated_from"] == 1


def test_min_compute_auto(tmp_path, capsys):
    path = run_directory(tmp_path / "one")
    assert call(fit, path, "--min-compute", "auto") == 0
    assert "first evaluations agree" in capsys.readouterr().err


def test_windows_with_max_compute_and_json(tmp_path, capsys):
    path = run_directory(tmp_path / "one")
    assert call(fit, path, "--windows", "--max-compute", "6000") == 0
    assert "verdict" in capsys.readouterr().out
    assert call(fit, path, "--windows", "--max-compute", "9000", "--json") == 0
    windows = json.loads(capsys.readouterr().out)["windows"]
    assert windows[0]["n_points"] == 16
    assert set(windows[0]) == {"min_compute", "n_points", "status", "A", "B", "C_mid"}


def test_the_proposed_cut_follows_the_other_options(tmp_path, monkeypatch):
    from scalerl import scaling

    asked = []
    real = scaling.propose_window

    def spy(curve, **settings):
        asked.append(settings)
        return real(curve, **settings)

    monkeypatch.setattr(scaling, "propose_window", spy)
    path = run_directory(tmp_path / "one")
    for cut in ((), ("--min-compute", "auto")):
        call(fit, path, *cut, "--r0", "0.41", "--max-compute", "9000", "--keep-red")
    assert asked == [{"r0": 0.41, "max_compute": 9000.0, "keep_red": True}] * 2


def test_not_identified_in_a_comparison_prints_no_difference(tmp_path, capsys):
    one, two = run_directory(tmp_path / "one"), run_directory(tmp_path / "two", 1, C_mid=40000.0)
    assert call(compare, one, two) == 0
    out = capsys.readouterr().out
    assert "not identified" in out
    assert "at least" in out
    assert "difference of ceilings" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--r0", "half"), "--r0 'half'"),
        (("--min-compute", "soon"), "--min-compute 'soon'"),
        (("--paper-grid", "1:2"), "LOW:HIGH:COUNT"),
        (("--plot", "fit.xyz"), "plots end in"),
        (("--compute", "gpu"), "--compute"),
    ],
)
def test_bad_options_are_input_errors(tmp_path, arguments, message):
    path = run_directory(tmp_path / "one")
    with pytest.raises(InputError, match=message):
        call(fit, path, *arguments)


def test_importing_is_light():
    """Neither torch nor tensorboard, and no matplotlib before a figure is asked for."""
    code = (
        "import sys; from scalerl import scaling; from scalerl.cli import fit, compare; "
        "heavy = {'torch', 'tensorboard', 'matplotlib', 'scipy.stats', 'scipy.optimize'} "
        "& set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_command_modules_import_nothing_heavy_by_themselves():
    code = (
        "import sys; from scalerl.cli import fit, compare; "
        "heavy = {'numpy', 'scipy'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
