"""The report page as a file: what is in it, and what no text in a run can do to it."""

import argparse
import html.parser
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalerl.cli import report as command
from scalerl.config import load_config
from scalerl.errors import InputError
from scalerl.experiments import report_data as data
from scalerl.experiments.report import embedded, page_values, write_report
from scalerl.experiments.report_fits import curve_of, warnings_of
from scalerl.pipeline.records import RunDirectory

HOSTILE = "<think></script><img src=x onerror=\"document.title='owned'\">\u2028<!--</think>"


def make_run(
    path: Path,
    *,
    evaluations: int = 13,
    ceiling: float = 0.8,
    seed: int = 0,
    overrides: tuple[str, ...] = (),
    text: str = "<think>1+1=2</think>",
    attempt: int = 0,
) -> Path:
    """A run folder with a planted curve, written by the run directory's own writer."""
    run = RunDirectory.create(path, load_config(overrides=["--steps", "60", *overrides]))
    run.attempt = attempt
    noise = np.random.default_rng(seed).normal(0, 0.004, evaluations)
    for k in range(evaluations):
        step = 5 * k
        run.append("curve", evaluation(step, ceiling, noise[k]))
        for j in range(6):
            outcome = "correct" if j < k else "wrong"
            run.append_completion(step, completion(step, j, outcome, text))
    for step in range(1, 5 * evaluations - 4):
        run.append("steps", training_step(step))
    return path


def compute(step: int) -> dict[str, Any]:
    return {
        "device_hours": 0.1 * step,
        "generator_device_hours": 0.06 * step,
        "trainer_device_hours": 0.04 * step,
        "generator_idle_share": 0.25 if step else 0.0,
        "trainer_idle_share": 0.5 if step else 0.0,
        "tokens_generated": 1000 * step,
        "tokens_trained": 800 * step,
        "flops": 1e9 * step,
    }


def evaluation(step: int, ceiling: float, noise: float) -> dict[str, Any]:
    reached = 1 / (1 + (15 / step) ** 2) if step else 0.0
    pass_rate = 0.3 + (ceiling - 0.3) * reached + noise
    return {
        "step": step,
        "weights_version": step,
        "pass_rate": pass_rate,
        "pass_rate_se": 0.005,
        "pass_at_k": {"1": pass_rate, "8": min(1.0, pass_rate + 0.2)},
        "n_prompts": 64,
        "n_samples": 8,
        "entropy": 0.1,
        "truncation_rate": 0.0,
        "interruption_rate": 0.0,
        "mean_length": 20.0,
        **compute(step),
    }


def training_step(step: int, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "pass_rate": 0.5,
        "reward_mean": 0.1,
        "entropy": 0.1,
        "length_mean": 20.0,
        "length_max": 40 + step,
        "truncation_rate": 0.0,
        "truncation_level": "ok",
        "interruption_rate": 0.0,
        "interruption_level": "ok",
        "staleness_mean": 1.0,
        "staleness_max": 2,
        "groups": 8,
        "groups_trained": 6,
        "groups_zero_variance": 2,
        "prompts_retired": step,
        "applied": True,
        "ledger": {
            "generated": 1000 * step,
            "trained": 800 * step,
            "masked": 0,
            "filtered": 200 * step,
            "truncated": 0,
            "discarded": 0,
            "waiting": 0,
        },
        **compute(step),
        **more,
    }


def completion(step: int, j: int, outcome: str, text: str) -> dict[str, Any]:
    return {
        "step": step,
        "prompt": f"{j}+{j}=",
        "answer": str(2 * j),
        "completion": text,
        "outcome": outcome,
        "truncated": j == 5,
        "interrupted": False,
        "tokens": 9,
        "pass_rate": 0.5,
    }


class Tags(html.parser.HTMLParser):
    """Every tag of a page, and the text inside scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script" and data.strip():
            self.scripts.append(data)


def parsed(page: Path) -> Tags:
    tags = Tags()
    tags.feed(page.read_text("utf-8"))
    tags.close()
    return tags


def values_of(*paths: Path, fit_share: float = 0.5) -> dict[str, Any]:
    return page_values(data.find_runs(paths), title="t", fit_share=fit_share)


def test_page_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    page = write_report([make_run(tmp_path / "run")], tmp_path / "out" / "page.html")
    tags = parsed(page)
    for name, attributes in tags.tags:
        assert "src" not in attributes
        assert name not in ("link", "img", "iframe", "object")
        assert not any(key.startswith("on") for key in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(
        r"url\(\s*['\"]?http|@import|https?://(?!www\.w3\.org/2000/svg)", str(tags)
    )
    policy = next(a["content"] for t, a in tags.tags if a.get("http-equiv"))
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert list(page.parent.iterdir()) == [page]


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / 'a<b>"&', text=HOSTILE)
    (run / "config.toml").write_text(f"note = '''{HOSTILE}'''\nsteps = 60\n")
    tags = parsed(write_report([run], tmp_path / "page.html"))
    assert [t for t, _ in tags.tags].count("script") == 2
    assert "img" not in [t for t, _ in tags.tags]
    values = json.loads(tags.scripts[0])
    answers = values["runs"][0]["texts"]["evaluations"][0]["answers"]
    assert answers[0]["text"] == HOSTILE
    assert HOSTILE in values["runs"][0]["config"]
    assert values["runs"][0]["name"] == 'a<b>"&'


def test_embedded_json_holds_no_sign_of_html() -> None:
    text = embedded({"a": HOSTILE})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": HOSTILE}


def test_fit_sees_the_first_part_and_is_checked_on_the_rest(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", evaluations=25)
    values = values_of(run, fit_share=0.5)
    fits = values["runs"][0]["fits"]
    assert set(fits) == {"device_hours", "tokens_generated", "tokens_trained", "flops", "step"}
    for unit, per_step in (("device_hours", 0.1), ("step", 1), ("tokens_trained", 800)):
        first, whole = fits[unit]["first"], fits[unit]["whole"]
        assert first["n"] == 12
        assert first["window"] == pytest.approx([5 * per_step, 60 * per_step])
        assert first["later"] == pytest.approx([5 * k * per_step for k in range(13, 25)])
        assert first["check"]["n"] == len(first["check"]["each"]) == 12
        assert first["check"]["inside"] == sum(first["check"]["each"])
        assert whole["n"] == 24
        assert whole["A"][1] <= 0.8 <= whole["A"][2]
        assert whole["C_mid"][1] <= 15 * per_step <= whole["C_mid"][2]
        assert whole["check"] is None
    assert first["grid"]["c"][0] < first["window"][0]


def test_share_of_one_fits_everything(tmp_path: Path) -> None:
    fits = values_of(make_run(tmp_path / "run"), fit_share=1)["runs"][0]["fits"]
    assert set(fits["step"]) == {"whole"}


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan")])
def test_share_outside_is_refused(tmp_path: Path, share: float) -> None:
    with pytest.raises(InputError, match="fit share"):
        write_report([make_run(tmp_path / "run")], tmp_path / "p.html", fit_share=share)


def test_unfinished_run_with_torn_lines_gives_a_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", evaluations=3)
    for name in ("curve.jsonl", "steps.jsonl"):
        with (run / name).open("a") as log:
            log.write('{"attempt": 0, "st')
    values = values_of(run)
    assert values["runs"][0]["curve"]["step"] == [0, 5, 10]
    assert values["runs"][0]["fits"]["step"]["whole"]["status"] == "not_identified"
    assert any("step 10 of 60" in w["text"] for w in values["warnings"])
    assert write_report([run], tmp_path / "page.html").stat().st_size > 10_000


@pytest.mark.parametrize("evaluations", [0, 1, 2])
def test_run_that_has_just_begun_gives_a_page(tmp_path: Path, evaluations: int) -> None:
    run = make_run(tmp_path / "run", evaluations=evaluations)
    (run / "steps.jsonl").touch()
    (run / "curve.jsonl").touch()
    values = values_of(run)
    if evaluations < 2:
        assert values["runs"][0]["fits"] == {}
        assert any("nothing to fit" in w["text"] for w in values["warnings"])
    write_report([run], tmp_path / "page.html")


def test_resumed_run_shows_each_step_once(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", evaluations=6)
    again = RunDirectory.reopen(run)
    for step in (15, 20):
        again.append("curve", evaluation(step, 0.7, 0.0))
        again.append("steps", training_step(step))
        again.append_completion(step, completion(step, 0, "wrong", "second attempt"))
    shown = values_of(run)["runs"][0]
    assert shown["curve"]["step"] == [0, 5, 10, 15, 20]
    texts = shown["texts"]["evaluations"]
    assert texts[-1]["step"] == 20
    assert [a["text"] for a in texts[-1]["answers"] if a] == ["second attempt"]
    assert any("resumed once" in w["text"] for w in values_of(run)["warnings"])


def test_study_folder_is_one_page_with_named_runs(tmp_path: Path) -> None:
    make_run(tmp_path / "study" / "base" / "seed0")
    make_run(tmp_path / "study" / "grpo" / "seed0", overrides=("--optimizer.lr", "0.002"))
    values = values_of(tmp_path / "study")
    assert [r["name"] for r in values["runs"]] == ["base/seed0", "grpo/seed0"]
    assert values["differences"] == [{"key": "optimizer.lr", "values": ["0.0005", "0.002"]}]


def test_same_names_are_told_apart_and_same_folders_are_one(tmp_path: Path) -> None:
    a, b = make_run(tmp_path / "x" / "run"), make_run(tmp_path / "y" / "run")
    assert [n for n, _ in data.find_runs([a, b, a])] == ["x/run", "y/run"]


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run in it"):
        write_report([tmp_path], tmp_path / "p.html")
    with pytest.raises(InputError, match="no such folder"):
        write_report([tmp_path / "missing"], tmp_path / "p.html")


def test_foreign_log_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "curve.jsonl").write_text('{"pass_rate": 0.5}\n')
    with pytest.raises(InputError, match=r"curve\.jsonl: a line lacks"):
        write_report([tmp_path], tmp_path / "p.html")


def test_broken_config_is_a_warning(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "config.toml").write_text("steps = = 3")
    assert any("config.toml cannot be read" in w["text"] for w in values_of(run)["warnings"])


def test_thinning_keeps_means_maxima_and_ends() -> None:
    rows = [training_step(s, pass_rate=s / 1000) for s in range(1, 601)]
    shown = data.training(rows)
    assert shown["per_point"] == 2
    columns = shown["columns"]
    assert len(columns["step"]) == 300
    assert columns["step"][:2] == [2, 4]
    assert columns["pass_rate"][:2] == [0.0015, 0.0035]
    assert columns["length_max"][0] == 42
    assert columns["kept"][0] == 0.75
    assert columns["no_variance"][0] == 0.25


def test_speed_and_idle_share_are_per_device_second_of_each_side() -> None:
    columns = data.training([training_step(s) for s in (1, 2, 3)])["columns"]
    assert columns["generator_speed"] == pytest.approx([1000 / (0.06 * 3600)] * 3, rel=1e-4)
    assert columns["trainer_speed"] == pytest.approx([800 / (0.04 * 3600)] * 3, rel=1e-4)
    assert columns["generator_idle"] == pytest.approx([0.25] * 3)
    assert columns["trainer_idle"] == pytest.approx([0.5] * 3)


def test_standing_clock_gives_no_speed() -> None:
    columns = data.training([training_step(1), training_step(1) | {"step": 2}])["columns"]
    assert columns["generator_speed"][1] is None


def test_long_completions_are_cut_and_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", text="a" * 50_000)
    texts = data.completions(data.read_run("run", run), 1)
    text = texts["evaluations"][0]["answers"][0]["text"]
    assert len(text) < data.TEXT_MOST + 100
    assert f"{50_000 - data.TEXT_MOST} characters left out" in text


def test_ten_runs_with_long_completions_stay_below_five_megabytes(tmp_path: Path) -> None:
    for k in range(10):
        make_run(tmp_path / "study" / f"run{k}", seed=k, text="lorem ipsum " * 2000)
    page = write_report([tmp_path / "study"], tmp_path / "page.html")
    assert page.stat().st_size < 5e6


def test_completions_come_from_start_to_end(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", evaluations=13)
    texts = data.completions(data.read_run("run", run), 1)
    assert [(e["label"], e["step"]) for e in texts["evaluations"]] == [
        ("start", 0), ("early", 15), ("middle", 30), ("late", 45), ("end", 60),
    ]  # fmt: skip
    assert [p["prompt"] for p in texts["prompts"]] == [f"{j}+{j}=" for j in range(6)]


def test_warnings_name_what_the_steps_show(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", evaluations=2, overrides=("--regime.k", "4"))
    directory = RunDirectory.reopen(run)
    directory.append("steps", training_step(6, truncation_level="red"))
    directory.append("steps", training_step(7, staleness_max=5, skip_reason="no group kept"))
    directory.append("steps", training_step(8, applied=False))
    record = data.read_run("run", run)
    curve, _ = curve_of(record, "device_hours")
    found = {w["text"]: w["level"] for w in warnings_of(record, curve, None, 0.5)}
    where = "1 of 8 steps (step"
    assert found[f"more than 10 % of completions cut at the length limit in {where} 6)"] == "red"
    assert found[f"staleness above the bound k = 4 in {where} 7)"] == "red"
    assert found[f"no update in {where} 7): no group kept"] == "amber"
    assert found[f"an update was not applied in {where} 8)"] == "amber"
    assert list(found.values()) == sorted(found.values(), key=["red", "amber", "note"].index)


def test_collapse_is_the_first_thing_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", evaluations=13)
    directory = RunDirectory.reopen(run)
    for k in range(5):
        directory.append("curve", evaluation(65 + 5 * k, 0.6 - 0.05 * k, 0.0))
    warnings = values_of(run)["warnings"]
    assert warnings[0]["level"] == "red"
    assert "drawdown" in warnings[0]["text"]


def test_evaluations_without_new_compute_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", evaluations=6)
    RunDirectory.reopen(run).append("curve", evaluation(25, 0.8, 0.0) | {"step": 30})
    record = data.read_run("run", run)
    curve, notes = curve_of(record, "tokens_trained")
    assert curve is not None
    assert len(curve) == 5
    assert notes == ["1 evaluations came without any new tokens trained and are not fitted"]


def test_command_writes_beside_the_run_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args([str(run)])) == 0
    assert (run / "report.html").is_file()
    assert re.fullmatch(
        rf"{re.escape(str(run))}/report\.html \(0\.\d\d MB\)\n", capsys.readouterr().out
    )
    with pytest.raises(InputError):
        command.run(parser.parse_args([str(tmp_path / "none")]))


def test_two_pages_of_the_same_run_are_the_same_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    a, b = (write_report([run], tmp_path / n).read_bytes() for n in ("a.html", "b.html"))
    assert a == b


def test_link_that_leads_back_up_is_no_endless_search(tmp_path: Path) -> None:
    run = make_run(tmp_path / "study" / "run")
    (tmp_path / "study" / "again").symlink_to(tmp_path / "study", target_is_directory=True)
    assert [p.resolve() for _, p in data.find_runs([tmp_path / "study"])] == [run.resolve()]
