"""The `corl` command as its users type it: in its own process, with real entry points."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from corl import cli

COHORT = """\
members:
  a: {model: models/a, engine: transformers, replicas: 2}
  b: {model: org/model-b, frozen: true, devices: {judge: "1"}}
problems:
  train: {path: train.jsonl}
  heldout: {path: heldout.jsonl}
"""


WITHOUT_EXAMPLES = {"version"}


def corl(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    rows = [{"problem_id": f"p{n}", "problem": f"{n}+1=", "answer": str(n + 1)} for n in range(20)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "heldout.jsonl").write_text(json.dumps(rows[3]) + "\n")
    model = tmp_path / "models" / "a"
    model.mkdir(parents=True)
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "intermediate_size": 11008,
        "vocab_size": 151936,
        "num_hidden_layers": 36,
        "tie_word_embeddings": True,
    }
    (model / "config.json").write_text(json.dumps(shape))
    path = tmp_path / "cohort.yaml"
    path.write_text(COHORT)
    return path


# `corl` itself -------------------------------------------------------------------------------------------------------


def test_help_lists_every_command_with_its_first_line() -> None:
    done = corl("--help")
    assert done.returncode == 0
    assert re.search(r"^  check +Read a cohort file", done.stdout, re.MULTILINE)
    assert re.search(r"^  version +Print the versions", done.stdout, re.MULTILINE)
    assert "Examples:" in done.stdout
    assert done.stderr == ""
    assert corl("-h").stdout == corl("help").stdout == done.stdout


def test_no_arguments_is_the_help_and_wrong_use() -> None:
    done = corl()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: corl COMMAND" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["chekc"], "corl: no command 'chekc'; did you mean 'check'?"),
        (["--chek"], "corl: no option '--chek' before the command (see `corl --help`)"),
        (["check"], "corl: Missing argument 'COHORT.YAML' (see `corl check --help`)"),
        (["check", "none.yaml"], "corl: none.yaml: no such file"),
        (["version", "--verbose"], "corl: No such option: --verbose (see `corl version --help`)"),
    ],
)
def test_wrong_use_is_one_line_on_standard_error(arguments: list[str], says: str) -> None:
    done = corl(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{says}\n")


MISTYPES = [
    ("Check cohort.yaml", 2, "no command 'Check'; did you mean 'check'?"),
    ("check .", 2, ".: is a folder: give the file itself, such as cohort.yaml"),
    ("check model.bin", 2, "model.bin: is not text in UTF-8: a cohort file is YAML"),
    ("check cohort.yaml --reward=truht", 2, "cohort.yaml: reward: 'truht': no such choice; did you mean 'truth'?"),
    ("check cohort.yaml extra", 2, "Got unexpected extra argument(s) (extra) (see `corl check --help`)"),
    ("compose none.yaml", 2, "none.yaml: no such file"),
    ("compose cohort.yaml -o none/x.yml", 2, "none/x.yml: cannot be written: No such file or directory"),
    ("score", 2, "Missing argument 'ROWS.JSONL' (see `corl score --help`)"),
    ("score none.jsonl --judge http://127.0.0.1:1", 2, "none.jsonl: no such file"),
    ("score train.jsonl --judge http://127.0.0.1:1", 2, "train.jsonl:1: prompt: Field required"),
    ("score rows.jsonl --judge 127.0.0.1:8101", 2, "judge's address '127.0.0.1:8101': expected one like http://127"),
    ("score rows.jsonl --judge htp://host", 2, "judge's address 'htp://host': expected one like http://127.0.0.1"),
    ("score rows.jsonl --judge http://127.0.0.1:1 --deadline 0.1", 1, "judge http://127.0.0.1:1: POST /v1/scores: no"),
    ("score rows.jsonl --judge http://x --task maths", 2, "'maths' is not one of 'math', 'choice', 'text'"),
    ("score rows.jsonl --judge http://x --treshold 1", 2, "No such option: --treshold"),
    ("judge", 2, "give a cohort file and --member, or --model"),
    ("judge cohort.yaml", 2, "which member? give --member with one of a, b"),
    ("judge cohort.yaml --member A", 2, "cohort.yaml: no member 'A'; did you mean 'a'?"),
    ("judge --model ./none", 2, "--model: no folder './none'; make it, or give a hub id such as 'org/name'"),
    (
        "judge --model x --port 99999",
        2,
        "--port or CORL_PORT: Input should be less than or equal to 65535",
    ),
    ("judge --model x --run a/b", 2, "--run or CORL_RUN: String should match pattern"),
    ("judge --model x --host 0.0.0.0", 2, "host '0.0.0.0' can be reached from other machines: set CORL_API_KEY"),
    ("judge --model x --engine-options {", 2, "--engine-options: Expecting property name"),
    ("judge --modle x", 2, "No such option: --modle (Possible options:"),
    ("train cohort.yaml --run r", 2, "Missing option '--member' (see `corl train --help`)"),
    ("train cohort.yaml --member c --run r", 2, "--member 'c' is not in the cohort: its members are a, b"),
    ("train cohort.yaml --member b --run r", 2, "member 'b' is frozen: it has no trainer"),
    ("train cohort.yaml --member a --run r", 2, "the address of judge 'a' is not known: set members.a.url or pass"),
    ("train cohort.yaml --member a --run r --judge a", 2, "--judge 'a': write it as MEMBER=URL"),
    ("train cohort.yaml --member a --run r --judge c=http://x", 2, "--judge names 'c', which is not a member: a, b"),
    ("train cohort.yaml --member a --run a/b --judge a=http://x --judge b=http://x", 2, "--run 'a/b': take letters"),
    ("run", 2, "which cohort? give its file: corl run cohort.yaml"),
    ("run none.yaml", 2, "none.yaml: no such file"),
    ("run cohort.yaml --steps ten", 2, "Invalid value for '--steps': "),
    ("run cohort.yaml --reward slef", 2, "cohort.yaml: reward: 'slef': no such choice; did you mean 'self'?"),
    ("run --resume --out none", 2, "none: no run here (no run.json)"),
    ("status none", 2, "none: no run here (no run.json)"),
    ("stop", 2, "no run under"),
    ("jobs list", 2, "No such command 'list'"),
    ("jobs ls", 2, "name the judges' Redis, e.g. redis://HOST:6379/0, or set CORL_REDIS"),
    ("jobs ls --redis localhost", 2, "localhost is no Redis URL"),
    ("jobs show", 2, "Missing argument 'job' (see `corl jobs show --help`)"),
    ("report none", 2, "no member has written"),
    ("audit none.jsonl", 2, "'none.jsonl' does not exist (see `corl audit --help`)"),
]
PACKAGES = {"judge": "redis", "jobs": "redis", "train": "trl", "run": "trl", "report": "trl"}
"""What must be installed for a command's own words."""


@pytest.mark.parametrize(("arguments", "code", "says"), MISTYPES, ids=[arguments for arguments, _, _ in MISTYPES])
def test_mistypes_are_one_line_with_the_remedy(
    cohort: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    code: int,
    says: str,
) -> None:
    """In this process: as many starts of Python would take a minute."""
    given = arguments.split()
    if given[0] in PACKAGES:
        pytest.importorskip(PACKAGES[given[0]])
    for name in ("CORL_API_KEY", "CORL_REDIS", "CORL_MEMBER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(cohort.parent)
    (cohort.parent / "model.bin").write_bytes(b"\xd0\xff")
    (cohort.parent / "rows.jsonl").write_text('{"prompt": "1+1=", "completions": ["2"]}\n')
    assert cli.run(given) == code
    said = capsys.readouterr()
    assert said.out == ""
    [line] = [line for line in said.err.splitlines() if "; attempt " not in line]
    assert line.startswith("corl")
    assert says in line


@pytest.mark.parametrize("name", sorted(cli.installed_commands()))
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["help", name]) == 0
    said = capsys.readouterr().out
    assert f"Usage: corl {name}" in said
    assert name in WITHOUT_EXAMPLES or re.search(rf"Examples:\n    corl {name}", said)


def test_a_group_without_a_command_is_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("redis")
    assert cli.run(["jobs"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Usage: corl jobs")
    assert "(see `" not in said.err


def test_version() -> None:
    assert corl("--version").stdout == "corl 0.1.0\n"
    assert corl("version").stdout.startswith("corl 0.1.0, Python 3.")


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    shell = f"{sys.executable} -m corl version | true"
    assert subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=120).stderr == ""


def test_it_is_light() -> None:
    script = """
import sys, corl.cli
heavy = {"torch", "transformers", "fastapi", "datasets", "redis", "vllm", "trl", "numpy", "sympy"} & sys.modules.keys()
print(sorted(heavy))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# Commands that are not installed whole -------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path for modules that stand for a package whose extra is not installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(cli.EXTRAS, "partly", "judge")
    monkeypatch.delitem(sys.modules, "partly", raising=False)
    return tmp_path


def test_a_missing_package_at_import_names_the_extra(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "partly.py").write_text("import fastapi_is_not_here\n")
    entries = {"judge": EntryPoint("judge", "partly:app", cli.GROUP)}
    assert cli.run(["judge", "--member", "a"], entries) == 2
    needs = "`corl judge` needs the package 'fastapi_is_not_here': pip install 'corl[judge]'"
    assert capsys.readouterr().err == f"corl: {needs}\n"
    assert cli.run(["--help"], entries) == 0
    assert f"  judge  (not available) {needs}" in capsys.readouterr().out


def test_a_missing_package_while_running_names_the_extra(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "partly.py").write_text('def app() -> None:\n    "Judge."\n    import uvicorn_is_not_here\n')
    entries = {"judge": EntryPoint("judge", "partly:app", cli.GROUP)}
    assert cli.run(["judge"], entries) == 2
    assert "needs the package 'uvicorn_is_not_here': pip install 'corl[judge]'" in capsys.readouterr().err
    assert cli.run(["--help"], entries) == 0
    assert "  judge  Judge." in capsys.readouterr().out


def test_a_fault_of_our_own_is_not_taken_for_a_missing_extra(package: Path) -> None:
    (package / "partly.py").write_text("import partly.nothing\n")
    with pytest.raises(ModuleNotFoundError):
        cli.run(["judge"], {"judge": EntryPoint("judge", "partly:app", cli.GROUP)})


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("raise typer.BadParameter('no member z')", 2, "corl: Invalid value: no member z (see `corl judge --help`)\n"),
        ("raise CohortError('f: bad')", 2, "corl: f: bad\n"),
        ("raise typer.Exit(3)", 3, ""),
        ("raise typer.Abort", 130, "corl: interrupted\n"),
        ("raise KeyboardInterrupt", 130, ""),
        ("return None", 0, ""),
    ],
)
def test_how_a_command_ends(package: Path, capsys: pytest.CaptureFixture[str], body: str, code: int, says: str) -> None:
    imports = "import typer\nfrom corl.errors import CohortError\n"
    (package / "partly.py").write_text(f"{imports}def app() -> None:\n    {body}\n")
    assert cli.run(["judge"], {"judge": EntryPoint("judge", "partly:app", cli.GROUP)}) == code
    assert capsys.readouterr().err == says


# `corl check` --------------------------------------------------------------------------------------------------------


def test_check_says_what_would_run_where(cohort: Path) -> None:
    done = corl("check", cohort)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    assert re.search(r"models/a +original +b +transformers +2 at a free port +judge any, trainer any", rows["a"])
    # Qwen2.5-3B's shape: 3.09 billion parameters. float32: 8 bytes each to hold twice, 16 to train with Adam.
    assert "judge 23.0 GiB, trainer 46.0 GiB (about 3,085.7M parameters)" in rows["a"]
    assert re.search(r"org/model-b +original +frozen +vllm +1 at a free port +judge 1 +unknown", rows["b"])
    assert "training problems: 20, without answers" in done.stdout
    assert "held-out problems: 1" in done.stdout
    assert "note: members.b.model: 'org/model-b' is no local folder: taken from the hub at start" in done.stdout
    assert "note: 1 of 1 held-out problems are training problems too" in done.stdout
    assert done.stdout.endswith("cohort.yaml: ok\n")


def test_check_with_another_reward(cohort: Path) -> None:
    assert "training problems: 20, with answers" in corl("check", cohort, "--reward", "truth").stdout
    done = corl("check", cohort, "--reward", "thruth")
    assert done.returncode == 2
    assert "reward: 'thruth': no such choice; did you mean 'truth'?" in done.stderr


def test_check_finds_a_model_folder_that_is_no_model(cohort: Path) -> None:
    (cohort.parent / "models" / "a" / "config.json").unlink()
    done = corl("check", cohort)
    assert (done.returncode, done.stdout) == (2, "")
    assert "members.a.model: " in done.stderr


def test_check_counts_the_tensors_of_local_weights(cohort: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [512, 1024], "data_offsets": [0, 2 << 20]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + bytes(2 << 20)
    (cohort.parent / "models" / "a" / "model.safetensors").write_bytes(weights)
    assert "judge 4.0 MiB, trainer 8.0 MiB (0.5M parameters)" in corl("check", cohort).stdout


@pytest.mark.parametrize(
    ("member", "training", "memory"),
    [
        ("engine: transformers", "{}", "judge 4.0 MiB, trainer 16.0 MiB"),
        ("engine: vllm", "{}", "judge 2.0 MiB, trainer 16.0 MiB"),
        ("engine: vllm, engine_options: {dtype: float32}", "{}", "judge 4.0 MiB, trainer 16.0 MiB"),
        # The passes are bfloat16, the weights that are trained stay float32.
        ("engine: vllm", "{dtype: bfloat16}", "judge 2.0 MiB, trainer 16.0 MiB"),
        ("engine: vllm", "{lora: {r: 8}}", "judge 2.0 MiB, trainer 4.0 MiB"),
    ],
)
def test_check_knows_what_judge_and_trainer_hold(cohort: Path, member: str, training: str, memory: str) -> None:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [1024, 1024], "data_offsets": [0, 2 << 20]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + bytes(2 << 20)
    (cohort.parent / "models" / "a" / "model.safetensors").write_bytes(weights)
    text = cohort.read_text().replace("engine: transformers, replicas: 2", member)
    cohort.write_text(f"{text}training: {training}\n")
    assert f"{memory} (1.0M parameters)" in corl("check", cohort).stdout


@pytest.mark.parametrize(
    ("training", "says"),
    [
        ("{learning_rat: 1e-6}", "did you mean 'learning_rate'?"),
        ("{max_steps: 5}", "set training.steps instead"),
        ("{per_device_train_batch_size: 3}", "their product must be 128"),
    ],
)
def test_check_knows_what_trl_takes(cohort: Path, training: str, says: str) -> None:
    pytest.importorskip("trl")
    cohort.write_text(f"{cohort.read_text()}training: {training}\n")
    done = corl("check", cohort)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_check_downloads_nothing(cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    text = cohort.read_text().replace("path: train.jsonl", "dataset: org/not-here")
    cohort.write_text(text)
    done = corl("check", cohort)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"note: training problems not counted: org/not-here: .* \(OfflineMode", done.stdout)
