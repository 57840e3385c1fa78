from pathlib import Path

from scalerl.cli.main import main

FILES = Path(__file__).with_name("files")


def test_all_that_is_wrong_with_a_file_is_said_in_one_go(capsys):
    assert main(["data", "check", str(FILES / "bad.jsonl")]) == 2
    said = capsys.readouterr().out
    kinds = ("bad answer", "bad prompt", "conflicting answers", "encoding", "not JSON")
    assert all(f"error: {kind}" in said for kind in kinds)
    assert "warning: unreadable answer" in said
    assert "16 errors in 16 places, 3 warnings" in said


def test_a_good_file_ends_with_zero(capsys):
    assert main(["data", "check", str(FILES / "good.jsonl")]) == 0
    assert "40 different prompts" in capsys.readouterr().out


def test_tests_that_prove_nothing_are_errors(tmp_path, capsys):
    path = tmp_path / "code.jsonl"
    path.write_text('{"problem": "Print nothing.", "tests": "[]"}\n')
    assert main(["data", "check", str(path), "--columns", "deepcoder"]) == 2
    assert "no usable tests" in capsys.readouterr().out
    assert (
        main(["data", "check", str(FILES / "livecodebench.jsonl"), "--columns", "livecodebench"])
        == 0
    )


def test_overlap_with_a_benchmark_is_an_error(capsys):
    file = str(FILES / "polaris.jsonl")
    assert main(["data", "check", file, "--columns", "polaris", "--against", file]) == 2
    assert "exact overlap" in capsys.readouterr().out


def test_a_file_that_is_not_there_is_bad_input(capsys):
    assert main(["data", "check", "absent.jsonl"]) == 2
    assert "absent.jsonl: no such file" in capsys.readouterr().err
