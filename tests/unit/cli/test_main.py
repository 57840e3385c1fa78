"""The command line: exit codes, one clear message, and words that mix files with settings."""

import argparse
import subprocess
import sys

import pytest

from scalerl.cli.main import COMMANDS, main
from scalerl.cli.settings import parse_with_settings


def scalerl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scalerl", *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"scalerl {command}" in capsys.readouterr().out


def test_usage_lists_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)
    assert main([]) == 2


def test_unknown_command_is_bad_usage(capsys):
    assert main(["trian"]) == 2
    assert "train" in capsys.readouterr().err


def test_bad_setting_is_exit_2_without_a_traceback():
    done = scalerl("train", "--optimizer.lrr", "1")
    assert done.returncode == 2
    assert "nearest: 'optimizer.lr'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_folder_that_holds_a_run_is_refused(tmp_path):
    (tmp_path / "config.toml").write_text("steps = 3\n")
    done = scalerl("train", "--run-dir", str(tmp_path))
    assert done.returncode == 2
    assert "already holds a run" in done.stderr
    assert (tmp_path / "config.toml").read_text() == "steps = 3\n"


def test_resume_without_a_run_is_refused(tmp_path):
    done = scalerl("train", "--resume", "--run-dir", str(tmp_path))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert scalerl("train", "--resume").returncode == 2


def test_recipes_prints_each_with_its_choices(capsys):
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert "cispo 5" in out
    assert "ppo_off_policy 8" in out
    assert main(["recipes", "minimax"]) == 0
    assert "A.16" in capsys.readouterr().out
    assert main(["recipes", "nope"]) == 2


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("configs", nargs="*")
    parser.add_argument("--recipe")
    parser.add_argument("--resume", action="store_true")
    return parser


@pytest.mark.parametrize(
    ("words", "configs", "settings", "recipe", "resume"),
    [
        (
            ["--loss.type", "gspo", "a.toml"],
            ["a.toml"],
            ["--loss.type", "gspo"],
            None,
            False,
        ),
        (
            ["a.toml", "--recipe", "base", "--steps=5", "b.toml"],
            ["a.toml", "b.toml"],
            ["--steps=5"],
            "base",
            False,
        ),
        (
            ["--resume", "--optimizer.lr", "-1", "a.toml"],
            ["a.toml"],
            ["--optimizer.lr", "-1"],
            None,
            True,
        ),
    ],
)
def test_files_options_and_settings_may_mix(words, configs, settings, recipe, resume):
    arguments = parse_with_settings(parser(), words)
    assert arguments.configs == configs
    assert arguments.settings == settings
    assert (arguments.recipe, arguments.resume) == (recipe, resume)


def test_fit_does_not_load_torch(tmp_path):
    csv = tmp_path / "curve.csv"
    csv.write_text("hours,acc\n" + "".join(f"{c},{0.5}\n" for c in range(1, 12)))
    code = (
        "import sys; from scalerl.cli.main import main; "
        f"main(['fit', {str(csv)!r}, '--r0', 'free']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")
