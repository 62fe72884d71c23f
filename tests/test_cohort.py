"""cohort.yaml as its users write it, rightly and wrongly."""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from corl.cohort import Cohort, CohortError, Member, Problems, ProblemSource, load_cohort, load_problems
from corl.errors import CorlError
from corl.presets import preset
from corl.yaml_lines import dump_yaml, read_yaml

PAIR = """\
name: pair
members:
  a: {model: models/a, engine: transformers}
  b: {model: org/model-b}
problems:
  train: {path: train.jsonl}
"""
RING = PAIR.replace("problems:\n", "  c: {model: org/model-c}\nproblems:\n")

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    (tmp_path / "train.jsonl").write_text('{"problem_id": "p1", "problem": "1+1=", "answer": "2"}\n')

    def cohort(text: str) -> Path:
        path = tmp_path / "cohort.yaml"
        path.write_text(textwrap.dedent(text))
        return path

    return cohort


def refused(path: Path, **settings: Any) -> str:
    with pytest.raises(CohortError) as caught:
        load_cohort(path, **settings)
    return str(caught.value)


# Reading ---------------------------------------------------------------------------------------------------------


def test_a_small_file_takes_the_defaults(write: Write, tmp_path: Path) -> None:
    cohort = load_cohort(write(PAIR))
    assert list(cohort.members) == ["a", "b"]
    assert cohort.reward == "peer"
    assert cohort.vote.ties == "abstain"
    assert cohort.base_dir == tmp_path
    assert cohort.path == tmp_path / "cohort.yaml"
    assert load_problems(cohort).ids == ["p1"]


def test_a_relative_path_keeps_its_meaning_when_the_process_moves(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(PAIR)
    monkeypatch.chdir(tmp_path)
    cohort = load_cohort("cohort.yaml")
    monkeypatch.chdir("/")
    assert cohort.resolve("train.jsonl") == tmp_path / "train.jsonl"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-6", 1e-6),
        ("5E+3", 5e3),
        ("0.5", 0.5),
        (".5", 0.5),
        ("-2", -2),
        ("007", 7),
        ("0x1F", 31),
        ("true", True),
        ("off", "off"),
        ("no", "no"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("'1e-6'", "1e-6"),
        ("~", None),
        ("", None),
        (".inf", float("inf")),
    ],
)
def test_scalars_by_the_core_schema(tmp_path: Path, written: str, value: object) -> None:
    (tmp_path / "f.yaml").write_text(f"x: {written}\n")
    data, lines = read_yaml(tmp_path / "f.yaml")
    assert data == {"x": value}
    assert type(data["x"]) is type(value)
    assert lines == {("x",): 1}


def test_names_that_yaml_1_1_would_turn_into_booleans(write: Write) -> None:
    text = PAIR.replace("  a: ", "  no: ").replace("  b: ", "  1: ")
    cohort = load_cohort(write(text))
    assert list(cohort.members) == ["no", "1"]
    assert cohort.teachers("no") == ["1"]


def test_anchors_and_merges(write: Write) -> None:
    text = """\
        members:
          a: &base
            model: org/a
            engine: transformers
          b:
            <<: *base
            model: org/b
        problems: {train: {path: train.jsonl}}
    """
    cohort = load_cohort(write(text))
    assert (cohort.members["b"].engine, cohort.members["b"].model) == ("transformers", "org/b")
    assert ":4: members.b.engin: unknown key" in refused(write(text.replace("engine:", "engin:")))


words = st.sampled_from(["1e3", "0x1F", "on", "no", "1:30", "~", "", "null", "2024-01-01", "<<", "\x85", "a: b", "- c"])
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20) | words
keys = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8).filter(lambda key: key != "<<")
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=12
)


@given(st.dictionaries(keys, trees, min_size=1, max_size=4))
def test_what_is_dumped_is_read_with_a_line_for_every_entry(tree: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.yaml"
        path.write_text(dump_yaml(tree), encoding="utf-8")
        data, lines = read_yaml(path)
        count = len(path.read_text(encoding="utf-8").split("\n"))
    assert data == tree

    def places(node: Any, at: tuple[str | int, ...]) -> set[tuple[str | int, ...]]:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        return {at} | {place for step, below in items for place in places(below, (*at, step))}

    assert lines.keys() == places(tree, ()) - {()}
    assert all(1 <= line <= count for line in lines.values())


# Overrides and presets -----------------------------------------------------------------------------------------------


def test_overrides_by_dotted_name(write: Write) -> None:
    changed = {"training.steps": 3, "training.learning_rate": 0.5, "members.a.frozen": True}
    cohort = load_cohort(write(PAIR), reward="self", overrides=changed)
    assert cohort.reward == "self"
    assert cohort.training.steps == 3
    assert cohort.training.grpo_fields() == {"learning_rate": 0.5}
    assert cohort.members["a"].frozen


def test_a_wrong_override_is_no_line_of_the_file(write: Write) -> None:
    message = refused(write(PAIR + "training: {steps: 5}\n"), overrides={"training.steps": 0})
    assert message.endswith("cohort.yaml:7: training.steps: 0: must be greater than or equal to 1")
    message = refused(write(PAIR), overrides={"rewrad": "self"})
    assert message.endswith("cohort.yaml: rewrad: unknown key; did you mean 'reward'?")
    assert "not a mapping" in refused(write(PAIR), overrides={"name.x": 1})


def test_the_paper_preset_fills_only_what_is_not_given(write: Write) -> None:
    cohort = load_cohort(write(PAIR + "preset: paper\nvote: {threshold: 0.5}\ntraining: {learning_rate: 1e-3}\n"))
    assert (cohort.vote.threshold, cohort.vote.ties, cohort.vote.min_parsed) == (0.5, "first", 1)
    assert cohort.training.grpo_fields()["learning_rate"] == 1e-3
    assert cohort.training.grpo_fields()["loss_type"] == "bnpo"
    assert cohort.rollouts.n * cohort.rollouts.problems_per_step == 128
    assert cohort.prompt.text("2+2?").endswith("within \\boxed{}.")


def test_a_preset_is_a_copy() -> None:
    preset("paper")["training"]["lr_scheduler_kwargs"].clear()
    assert preset("paper")["training"]["lr_scheduler_kwargs"]


# Who teaches whom ----------------------------------------------------------------------------------------------------


def test_a_ring_in_file_order(write: Write) -> None:
    cohort = load_cohort(write(RING))
    assert {name: cohort.teachers(name) for name in cohort.members} == {"a": ["b"], "b": ["c"], "c": ["a"]}
    assert {name: cohort.pupils(name) for name in cohort.members} == {"a": ["c"], "b": ["a"], "c": ["b"]}


def test_all(write: Write) -> None:
    cohort = load_cohort(write(RING + "topology: all\n"))
    assert cohort.teachers("b") == ["a", "c"]


def test_explicit(write: Write) -> None:
    cohort = load_cohort(write(RING + "topology: {a: [c, b], b: [c], c: [a]}\n"))
    assert cohort.teachers("a") == ["c", "b"]
    assert cohort.pupils("c") == ["a", "b"]


def test_a_frozen_member_teaches_and_learns_from_nobody(write: Write) -> None:
    text = PAIR.replace("{model: org/model-b}", "{model: org/model-b, frozen: true}")
    cohort = load_cohort(write(text))
    assert cohort.teachers("a") == ["b"]
    assert cohort.teachers("b") == []
    assert cohort.trained() == ["a"]
    assert load_cohort(write(text + "topology: {a: [b]}\n")).pupils("b") == ["a"]


@pytest.mark.parametrize("reward", ["self", "truth", "entropy", "certainty"])
def test_sources_that_need_no_peer(write: Write, reward: Any) -> None:
    alone = PAIR.replace("  b: {model: org/model-b}\n", "")
    cohort = load_cohort(write(alone), reward=reward)
    assert cohort.teachers("a") == []
    assert load_cohort(write(RING), reward=reward).teachers("a") == []


def test_collective_takes_all_others_whatever_the_topology(write: Write) -> None:
    cohort = load_cohort(write(RING), reward="collective")
    assert cohort.teachers("b") == ["a", "c"]


def test_an_unknown_member(write: Write) -> None:
    cohort = load_cohort(write(PAIR))
    for ask in (cohort.teachers, cohort.pupils, cohort.model_path, cohort.training_for):
        with pytest.raises(CohortError, match="no member 'z'; one of: a, b"):
            ask("z")


@given(st.integers(2, 9), st.sampled_from(["ring", "all"]), st.data())
def test_teachers_and_pupils_are_inverse(count: int, topology: Any, data: st.DataObject) -> None:
    names = [f"m{index}" for index in range(count)]
    frozen = data.draw(st.sets(st.sampled_from(names)))
    cohort = Cohort(
        members={name: Member(model="x", frozen=name in frozen) for name in names},
        problems=Problems(train=ProblemSource(path=Path("p.jsonl"))),
        topology=topology,
    )
    for pupil in names:
        assert pupil not in cohort.teachers(pupil)
        assert bool(cohort.teachers(pupil)) == (pupil not in frozen)
        for teacher in names:
            assert (teacher in cohort.teachers(pupil)) == (pupil in cohort.pupils(teacher))


# Models and settings of one member ---------------------------------------------------------------------------------


def test_model_paths(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "a"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    cohort = load_cohort(write(PAIR))
    assert cohort.model_path("a") == str(folder)
    assert cohort.model_path("b") == "org/model-b"


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere/at/all", "models/nowhere", "a/b/c"])
def test_a_missing_model_folder(write: Write, tmp_path: Path, model: str) -> None:
    (tmp_path / "models").mkdir()
    cohort = load_cohort(write(PAIR.replace("models/a", model)))
    with pytest.raises(CohortError, match=r"members\.a\.model: no folder .*hub id"):
        cohort.model_path("a")


def test_a_folder_that_is_no_model(write: Write, tmp_path: Path) -> None:
    (tmp_path / "models" / "a").mkdir(parents=True)
    with pytest.raises(CohortError, match=r"members\.a\.model: .*holds no config\.json"):
        load_cohort(write(PAIR)).model_path("a")


def test_a_members_own_training_settings(write: Write) -> None:
    text = PAIR.replace("engine: transformers", "engine: transformers, training: {learning_rate: 0.1, seed: 7}")
    cohort = load_cohort(write(text + "training: {learning_rate: 0.2, beta: 0.0}\n"))
    assert cohort.training_for("a").grpo_fields() == {"learning_rate": 0.1, "beta": 0.0}
    assert cohort.training_for("a").seed == 7
    assert cohort.training_for("b").grpo_fields()["learning_rate"] == 0.2


def test_replicas(write: Write) -> None:
    cohort = load_cohort(write(PAIR.replace("model-b", "model-b, replicas: 3") + "judge: {replicas: 2}\n"))
    assert (cohort.replicas("a"), cohort.replicas("b")) == (2, 3)


# Wrong files -------------------------------------------------------------------------------------------------------

WRONG = [
    # (text in PAIR, what is there instead, the line, what the message must say)
    ("engine: tr", "engin: tr", 3, "members.a.engin: unknown key; did you mean 'engine'?"),
    ("name: pair", "nmae: pair", 1, "nmae: unknown key; did you mean 'name'?"),
    ("name: pair", "save_every: 3", 1, "save_every: unknown key; it belongs to training.save_every"),
    ("name: pair", "name: 'a b'", 1, "name: 'a b': "),
    ("name: pair", "topology: rnig", 1, "topology: 'rnig': no such choice; did you mean 'ring'?"),
    ("name: pair", "reward: pear", 1, "reward: 'pear': no such choice; did you mean 'peer'?"),
    ("name: pair", "preset: papr", 1, "preset: 'papr': no such choice; did you mean 'paper'?"),
    ("name: pair", "rollouts: {n: 0}", 1, "rollouts.n: 0: must be greater than or equal to 1"),
    ("name: pair", "rollouts: {n: many}", 1, "rollouts.n: 'many': must be a valid integer"),
    ("name: pair", "vote: {threshold: 1.5}", 1, "vote.threshold: 1.5: must be less than or equal to 1"),
    ("name: pair", "vote:", 1, "vote: None: is empty: give a value or remove the key"),
    ("name: pair", "vote: 3", 1, "vote: 3: must be a mapping"),
    ("name: pair", "training: {keep_checkpoints: 1}", 1, "training.keep_checkpoints: 1: must be greater"),
    ("name: pair", "prompt: {template: hello}", 1, "prompt.template: 'hello': "),
    ("name: pair", "redis: http://x", 1, "redis: must begin with redis:// or rediss:// or unix://"),
    ("name: pair", "redis: 'redis://'", 1, "redis: names no host"),
    ("  b: {model", "  B b: {model", 4, "members.B b: "),
    ("  b: {model", "  logs: {model", 4, "members.logs: 'logs' is a folder of a run"),
    ("{model: org/model-b}", "{engine: vllm}", 4, "members.b.model: required (folder"),
    (
        "{model: org/model-b}",
        "{model: x, url: 'localhost:80'}",
        4,
        "members.b.url: 'localhost:80' must begin with http",
    ),
    ("{model: org/model-b}", "{model: x, view: rephrased}", 4, "members.b.view: no view 'rephrased'"),
    ("{model: org/model-b}", "{model: x, engine: openai}", 4, "members.b.engine: cannot take new weights: set `frozen"),
    ("{model: org/model-b}", "{model: x, training: {steps: 4}}", 4, "members.b.training.steps: must be the same"),
    ("{model: org/model-b}", "{model: x, training: {seed: x}}", 4, "members.b.training.seed: "),
    ("{model: org/model-b}", "{model: ''}", 4, "members.b.model: is empty"),
    ("train: {", "trian: {", 6, "problems.trian: unknown key; did you mean 'train'?"),
    ("path: train.jsonl", "path: tarin.jsonl", 6, "problems.train.path: no such file: "),
    ("path: train.jsonl", "path: train.jsonl, dataset: x", 6, "problems.train: needs either `path`"),
    ("{path: train.jsonl}", "{}", 6, "problems.train: needs either `path`"),
    ("{path: train.jsonl}", "{path: train.jsonl, limit: 0}", 6, "problems.train.limit: 0: must be greater"),
    ("{path: train.jsonl}", "{path: train.jsonl, where: {level: {}}}", 6, "problems.train.where.level: {}: must be"),
    ("problems:", "topology: {a: [a], b: [a]}\nproblems:", 5, "topology.a.0: 'a' judges itself"),
    ("problems:", "topology: {a: [c], b: [a]}\nproblems:", 5, "topology.a.0: no member 'c'; one of: a, b"),
    ("problems:", "topology: {a: [b]}\nproblems:", 5, "topology.b: 'b' has no teacher"),
    ("problems:", "topology: {a: [b, b], b: [a]}\nproblems:", 5, "topology.a.1: 'b' is named twice"),
    ("problems:", "topology: {a: [b], b: [a], c: [a]}\nproblems:", 5, "topology.c: no member 'c'"),
    ("problems:", "problems:\n  task: choice", 6, "problems.task: choice needs `problems.options`"),
    ("problems:", "problems:\n  options: [A, B]", 6, "problems.options: belongs to task choice"),
    ("problems:", "problems:\n  views: {original: {path: train.jsonl}}", 6, "problems.views.original: is the name of"),
    ("name: pair", "name: pair\nname: other", 2, "name: given twice, first in line 1"),
    ("name: pair", "name: [", 3, "not YAML: "),
    ("name: pair", "name: pair\n\tx: 1", 2, "not YAML: "),
    ("name: pair", "name: &n [*n]", 1, "name.0: an anchor holds itself"),
    ("name: pair", "[1, 2]: x", 1, "a key must be a plain word"),
]


@pytest.mark.parametrize(("there", "instead", "line", "says"), WRONG, ids=[instead for _, instead, _, _ in WRONG])
def test_a_wrong_file_names_line_field_value_and_remedy(
    write: Write, there: str, instead: str, line: int, says: str
) -> None:
    assert there in PAIR
    message = refused(write(PAIR.replace(there, instead)))
    assert f"cohort.yaml:{line}: {says}" in message
    assert len(message.splitlines()) == 1


def test_a_ring_of_one(write: Write) -> None:
    alone = PAIR.replace("  b: {model: org/model-b}\n", "")
    assert "topology: ring of one: 'a' has no peer to judge it" in refused(write(alone))
    assert "all of one" in refused(write(alone + "topology: all\n"))
    assert "collective needs two members" in refused(write(alone), reward="collective")


def test_a_frozen_member_with_a_teacher(write: Write) -> None:
    text = PAIR.replace("model-b}", "model-b, frozen: true}") + "topology: {a: [b], b: [a]}\n"
    assert "topology.b: 'b' is frozen and learns from nobody" in refused(write(text))


def test_two_members_at_one_address(write: Write) -> None:
    text = PAIR.replace("models/a,", "models/a, url: 'http://h:1',").replace("model-b", "model-b, url: 'http://h:1/'")
    assert "members.b.url: 'http://h:1/' is the address of 'a' already" in refused(write(text))


def test_every_fault_is_told_at_once(write: Write) -> None:
    message = refused(write(PAIR.replace("engine: tr", "engin: tr").replace("name: pair", "nmae: pair")))
    assert [line.split(": ")[1] for line in sorted(message.splitlines())] == ["nmae", "members.a.engin"]


def test_a_redis_password_is_not_shown(write: Write) -> None:
    assert "hunter2" not in refused(write(PAIR + "redis: http://:hunter2@host\n"))


@pytest.mark.parametrize("content", ["", "- a\n", "3\n", "# nothing\n"])
def test_no_mapping(write: Write, content: str) -> None:
    assert "cohort.yaml:1: holds no mapping" in refused(write(content))


def test_no_file_and_no_text(tmp_path: Path) -> None:
    assert refused(tmp_path / "none.yaml") == f"{tmp_path}/none.yaml: no such file"
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    assert refused(tmp_path / "bytes.yaml") == f"{tmp_path}/bytes.yaml: is not text in UTF-8: a cohort file is YAML"
    assert f"{tmp_path}: is a folder: give the file itself" in refused(tmp_path)


def test_it_is_one_of_the_packages_errors() -> None:
    assert issubclass(CohortError, CorlError)


@given(
    st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(
                    ["members", "a", "model", "problems", "train", "path", "where", "topology", "training", "lora"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=15,
    )
)
def test_no_content_gives_anything_but_a_cohort_error(tree: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cohort.yaml"
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")
        with pytest.raises(CohortError):
            load_cohort(path)  # none of them names a problem file that is there
