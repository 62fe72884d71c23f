from __future__ import annotations

import json
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import typer
import yaml
from corl_trainer.drawing import draw
from corl_trainer.lines import compared, of_run
from corl_trainer.report import compare, report
from corl_trainer.runlog import RunLog, read_member


def write_run(folder: Path, members: tuple[str, ...] = ("a", "b"), steps: int = 3, end: bool = True) -> Path:
    for name in members:
        log = RunLog(folder / name)
        log.write("start", 0, incarnation=1)
        log.write("eval", 0, **{"eval/pass@1": 0.25, "eval/maj@4": 0.5})
        for step in range(1, steps + 1):
            log.write(
                "step",
                step,
                seconds={"rollouts": 1.0, "scores": 0.5, "waiting": 0.25, "update": 2.0, "publish": 0.1, "step": 3.85},
                **{"reward/mean": 0.1 * step, "reward/group_std": 0.4, "votes/labeled": 0.9, "entropy": float("nan")},
            )
        log.write("warning", steps, message="rewards of a group hardly differ <now>")
        if end:
            log.write("end", steps, code=0)
    return folder


def test_a_report_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    report(run)
    assert (run / "report.png").read_bytes().startswith(b"\x89PNG")
    text = (run / "report.html").read_text()
    assert "<svg" in text
    assert not re.search(r"""(src|href)=["'](?!#)""", text), "nothing outside the file is needed"
    assert "0.250 → 0.250" in text
    assert "0.100 → 0.300" in text
    assert "hardly differ &lt;now&gt;" in text
    assert text.count("<td>done</td>") == 2


def test_an_unfinished_run_is_drawn_too(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", members=("a",), steps=1, end=False)
    RunLog(run / "b").write("start", 0, incarnation=1)
    with (run / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "step": 2, "rew')
    report(run, out=tmp_path / "out")
    assert "running, or killed" in (tmp_path / "out" / "report.html").read_text()
    with pytest.raises(typer.BadParameter, match="no member has written"):
        report(tmp_path / "nothing")


def test_runs_are_compared_line_by_line(tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "peer"), write_run(tmp_path / "self", members=("a",))
    compare([one, two], out=tmp_path)
    assert (tmp_path / "compare.png").is_file()
    text = (tmp_path / "compare.html").read_text()
    assert all(name in text for name in ("peer/a", "peer/b", "self/a"))


def test_a_run_without_metrics_is_left_out_of_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `corl compare runs/*` finds one that was stopped while its models loaded."""
    one, aborted = write_run(tmp_path / "peer"), tmp_path / "aborted"
    (aborted / "logs").mkdir(parents=True)
    compare([one, aborted], out=tmp_path)
    assert f"{aborted} is left out" in capsys.readouterr().err
    assert "aborted" not in (tmp_path / "compare.html").read_text()
    with pytest.raises(typer.BadParameter, match="no member has written"):
        compare([aborted], out=tmp_path)
    with pytest.raises(typer.BadParameter, match="mistyped"):
        compare([one, tmp_path / "mistyped"], out=tmp_path)


def test_every_member_has_a_line_in_the_panels_it_has_figures_for(tmp_path: Path) -> None:
    figure = draw(of_run(write_run(tmp_path / "run")))
    axes = {ax.get_title(): ax for ax in figure.axes}
    assert sorted(axes["Reward"].get_legend_handles_labels()[1]) == ["a", "a group_std", "b", "b group_std"]
    assert sorted(axes["Held-out accuracy"].get_legend_handles_labels()[1]) == ["a", "a maj@4", "b", "b maj@4"]
    line = axes["Reward"].get_lines()[0]
    assert list(line.get_ydata()) == pytest.approx([0.1, 0.2, 0.3])
    assert axes["Entropy"].texts[0].get_text() == "nothing yet"


def write_seed(folder: Path, reward: str, seed: int, last: float, problem: str = "1+1=") -> Path:
    """A run of `corl run`, as far as a comparison reads it."""
    (folder / "problems").mkdir(parents=True)
    (folder / "problems" / "train.jsonl").write_text(json.dumps({"problem_id": "1", "problem": problem}))
    cohort = {"name": "nano", "seed": seed, "reward": reward, "members": {"a": {"model": "m"}}}
    (folder / "cohort.yaml").write_text(yaml.safe_dump(cohort | {"training": {"seed": seed, "data_seed": seed}}))
    log = RunLog(folder / "a")
    log.write("start", 0, labels=100 if reward == "truth" else 0)
    log.write("eval", 0, **{"eval/pass@1": 0.5})
    log.write("step", 1, **{"reward/mean": last})
    log.write("eval", 1, **{"eval/pass@1": last})
    return folder


def test_runs_that_differ_in_seeds_alone_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write_seed(tmp_path / f"peer-{i}", "peer", i, last) for i, last in enumerate((0.7, 0.8, 0.9))]
    runs.append(write_seed(tmp_path / "truth-0", "truth", 0, 1.0))
    runs.append(write_seed(tmp_path / "other-problems", "peer", 0, 0.6, problem="2+2="))
    lines = {line.title: line for line in compared([*runs, runs[0]])}
    assert {title: len(line.logs) for title, line in lines.items()} == {
        "nano peer, 3 runs/a": 3,
        "truth-0/a": 1,
        "other-problems/a": 1,
    }, "a folder given twice is one run"
    series = lines["nano peer, 3 runs/a"].series("reward/mean")
    assert (series.low, series.high) == ([0.7], [0.9])
    assert series.mean == pytest.approx([0.8])
    compare(runs, out=tmp_path)
    printed = capsys.readouterr().out
    assert "0.500 ± 0.000 -> 0.800 ± 0.100" in printed
    assert [line.split()[-1] for line in printed.splitlines() if "/a" in line and "->" in line] == ["0", "100", "0"]
    assert "0.500 ± 0.000 → 0.800 ± 0.100" in (tmp_path / "compare.html").read_text()


def test_runs_without_a_cohort_file_stay_apart(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, members=("a",)) for name in ("one", "two")]
    assert [line.title for line in compared(runs)] == ["one/a", "two/a"]


def test_trainers_that_end_together_leave_one_whole_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(report, [run] * 3))
    assert (run / "report.png").read_bytes().endswith(b"IEND\xaeB`\x82")
    assert (run / "report.html").read_text().endswith("</html>\n")
    assert not list(run.glob(".*.partial"))


def test_what_a_resume_undoes_is_not_read(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "a")
    log.write("start", 0, incarnation=1)
    for step in (1, 2, 3):
        log.write("step", step, incarnation=1, loss=float(step))
    log.write("eval", 2, **{"eval/pass@1": 0.1})
    log.write("eval", 3, **{"eval/pass@1": 0.2})
    log.write("end", 3, code=4)
    log.write("start", 2, incarnation=2)
    log.write("eval", 2, **{"eval/pass@1": 0.3})
    log.write("step", 3, incarnation=2, loss=30.0)
    found = read_member(tmp_path / "a")
    assert [(row["step"], row["incarnation"]) for row in found.steps] == [(1, 1), (2, 1), (3, 2)]
    assert found.series("loss") == ([1, 2, 3], [1.0, 2.0, 30.0])
    assert found.series("eval/pass@1") == ([2], [0.3])
    assert found.end is None


def test_records_survive_a_torn_line_and_odd_text(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "a")
    log.write("step", 1, text="line\u2028separator")
    with log.path.open("a") as file:
        file.write('{"kind": "st')
    RunLog(tmp_path / "a").write("step", 2, value=float("inf"))
    found = read_member(tmp_path / "a")
    assert [row["step"] for row in found.steps] == [1, 2]
    assert found.steps[0]["text"] == "line\u2028separator"
    assert found.steps[1]["value"] is None
