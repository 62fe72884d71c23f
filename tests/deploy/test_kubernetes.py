"""deploy/kubernetes: against the schemas of Kubernetes, against itself, and against the programs that it starts."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from corl_judge import app, replica, serve, worker
from corl_judge.auth import PROBES
from corl_judge.jobs import Item, JobQueue
from corl_judge.service import Service
from corl_judge.settings import Settings
from corl_trainer.settings import TrainerSettings
from corl_trainer.stops import ExitCode
from redis.asyncio import Redis

from corl.cli import main as corl
from tests.deploy.manifests import (
    BUILDS,
    FOLDER,
    KEY,
    PASSWORD,
    ROOT,
    Object,
    built,
    container,
    expanded,
    named,
    of_kind,
    pods,
    values,
    written,
)
from tests.scripted import ScriptedEngine

VERSIONS = ("1.31", "1.37")
"""The first with a stable podFailurePolicy, and the newest that the schemas know."""
JUDGES, TRAINERS = ("judge-a", "judge-b"), ("trainer-a", "trainer-b")
FOREIGN = ("keda.sh/",)


def check(found: Object, version: str) -> None:
    kubernetes_validate.validate(found, version, strict=True)


# Schemas -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("build", BUILDS)
def test_built_objects_fit_the_schemas(build: str, version: str) -> None:
    objects = [found for found in built(build) if not found["apiVersion"].startswith(FOREIGN)]
    kinds = {found["kind"] for found in objects}
    assert kinds >= {"Namespace", "ConfigMap", "Secret", "PersistentVolumeClaim", "Service", "StatefulSet"}
    assert kinds >= {"Deployment", "Job", "PodDisruptionBudget", "NetworkPolicy"}
    for found in objects:
        check(found, version)


def test_files_fit_the_schemas() -> None:
    for found in written():
        if not found["apiVersion"].startswith(FOREIGN):
            check(found, VERSIONS[-1])


@pytest.mark.parametrize("wrong", ["livenessprobe", "terminationGracePeriodSecond", "restartPolicy"])
def test_a_slip_would_be_found(wrong: str) -> None:
    [deployment] = of_kind(written(), "Deployment")
    slipped = copy.deepcopy(deployment)
    slipped["spec"]["template"]["spec"]["containers"][0][wrong] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        check(slipped, VERSIONS[-1])


# The objects among themselves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", BUILDS)
def test_everything_that_is_named_exists(build: str) -> None:
    objects = built(build)
    assert {found["metadata"].get("namespace") for found in objects if found["kind"] != "Namespace"} == {"corl"}
    named(objects, "Namespace", "corl")
    for name, template in pods(objects):
        spec = template["spec"]
        mounts = {mount["name"] for mount in container(template)["volumeMounts"]}
        volumes = {volume["name"] for volume in spec.get("volumes", ())}
        if name == "redis":
            [claim] = named(objects, "StatefulSet", "redis")["spec"]["volumeClaimTemplates"]
            volumes.add(claim["metadata"]["name"])
        assert mounts == volumes, name
        for volume in spec.get("volumes", ()):
            if "configMap" in volume:
                named(objects, "ConfigMap", volume["configMap"]["name"])
            if "persistentVolumeClaim" in volume:
                named(objects, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
        variables = values(objects, template)
        for argument in container(template)["args"]:
            assert "$(" not in expanded(argument, variables), f"{name}: {argument} has a variable that is not set"


@pytest.mark.parametrize("build", BUILDS)
def test_selectors_select_what_they_are_for(build: str) -> None:
    objects = built(build)

    def selected(labels: dict[str, str]) -> set[str]:
        return {name for name, pod in pods(objects) if labels.items() <= pod["metadata"]["labels"].items()}

    [cohort] = [found["data"] for found in of_kind(objects, "ConfigMap") if "cohort.yaml" in found["data"]]
    members = yaml.safe_load(cohort["cohort.yaml"])["members"]
    assert {f"judge-{name}" for name in members} == set(JUDGES)
    assert {name for name, _ in pods(objects)} == {"redis", *JUDGES, *TRAINERS}
    for service in of_kind(objects, "Service"):
        assert selected(service["spec"]["selector"]) == {service["metadata"]["name"]}
        [port] = service["spec"]["ports"]
        [pod] = [pod for name, pod in pods(objects) if name == service["metadata"]["name"]]
        assert port["targetPort"] in {own["name"] for own in container(pod)["ports"]}
    for found in of_kind(objects, "Deployment", "StatefulSet", "PodDisruptionBudget"):
        assert selected(found["spec"]["selector"]["matchLabels"]) == {found["metadata"]["name"]}
    assert {found["metadata"]["name"] for found in of_kind(objects, "PodDisruptionBudget")} == set(JUDGES)


@pytest.mark.parametrize("build", BUILDS)
def test_only_judges_are_reached_and_redis_by_judges_alone(build: str) -> None:
    objects = built(build)
    policies = {found["metadata"]["name"]: found["spec"] for found in of_kind(objects, "NetworkPolicy")}
    assert policies.pop("nothing-comes-in") == {"podSelector": {}, "policyTypes": ["Ingress"]}
    component = "app.kubernetes.io/component"
    assert policies["judges"]["podSelector"]["matchLabels"] == {component: "judge"}
    to_redis = {name for name, spec in policies.items() if spec["podSelector"]["matchLabels"] == {component: "redis"}}
    assert to_redis == {"redis", "redis-from-keda"} & set(policies)
    assert policies["redis"]["ingress"] == [
        {
            "from": [{"podSelector": {"matchLabels": {component: "judge"}}}],
            "ports": [{"port": "redis", "protocol": "TCP"}],
        }
    ]
    assert ("redis-from-keda" in policies) == (build == "overlays/keda")
    assert {found["spec"].get("type", "ClusterIP") for found in of_kind(objects, "Service")} == {"ClusterIP"}


@pytest.mark.parametrize("build", BUILDS)
def test_nothing_runs_with_privileges(build: str) -> None:
    """What the namespace's pod security standard `restricted` asks for, and a read-only root beside it."""
    objects = built(build)
    local = build == "overlays/cpu"
    enforced = named(objects, "Namespace", "corl")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert enforced == ("privileged" if local else "restricted")
    for _, template in pods(objects):
        spec, only = template["spec"], container(template)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False, "a Service must not set variables that a program reads"
        assert only["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        kinds = {kind for volume in spec.get("volumes", ()) for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "persistentVolumeClaim", "emptyDir"} | ({"hostPath"} if local else set())


def test_shared_claims_are_seen_from_every_node() -> None:
    claims = {
        found["metadata"]["name"]: found["spec"]["accessModes"]
        for found in of_kind(built("base"), "PersistentVolumeClaim")
    }
    assert claims == {name: ["ReadWriteMany"] for name in ("weights", "runs", "models")}


def test_the_secret_is_not_in_the_repository() -> None:
    assert "secret.env" in (FOLDER / ".gitignore").read_text().split()
    example = (FOLDER / "base" / "secret.env.example").read_text()
    assert re.findall(r"^(\w+)=(.*)$", example, re.MULTILINE) == [
        ("CORL_API_KEY", ""),
        ("REDIS_PASSWORD", ""),
        ("HF_TOKEN", ""),
    ]


# The programs that are started ---------------------------------------------------------------------------------------


@pytest.fixture(params=["base", "overlays/cpu"])
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return built(request.param)


def command_line(objects: list[Object], template: Object, folder: Path) -> list[str]:
    """The pod's arguments, with its cohort file put into `folder`: /cohort is nowhere here, nor is /arithmetic."""
    [volume] = [volume for volume in template["spec"]["volumes"] if volume["name"] == "cohort"]
    for name, text in named(objects, "ConfigMap", volume["configMap"]["name"])["data"].items():
        (folder / name).write_text(text.replace("/arithmetic/", f"{ROOT}/examples/arithmetic/"))
    variables = values(objects, template)
    arguments = [expanded(argument, variables) for argument in container(template)["args"]]
    return [str(folder / Path(word).name) if word.startswith("/cohort/") else word for word in arguments]


def judge_settings(
    objects: list[Object], name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Object, Settings]:
    """What the judge's own command line makes of the pod's arguments and variables."""
    template = named(objects, "Deployment", name)["spec"]["template"]
    seen: list[Settings] = []
    monkeypatch.setattr("corl_judge.serve.serve", lambda settings: seen.append(settings) or 0)
    for variable, value in values(objects, template).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr("sys.argv", ["corl", *command_line(objects, template, folder)])
    with pytest.raises(SystemExit) as ended:
        corl()
    assert not ended.value.code
    [settings] = seen
    return template, settings


def mount_paths(template: Object) -> dict[str, Object]:
    return {mount["mountPath"]: mount for mount in container(template)["volumeMounts"]}


@pytest.mark.parametrize("name", JUDGES)
def test_judges_understand_their_command_line(
    objects: list[Object], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, settings = judge_settings(objects, name, tmp_path, monkeypatch)
    assert settings.member == name.removeprefix("judge-")
    assert settings.api_key is not None
    assert settings.redis is not None
    assert settings.api_key.get_secret_value() == KEY
    [port] = named(objects, "Service", "redis")["spec"]["ports"]
    assert settings.redis.get_secret_value() == f"redis://:{PASSWORD}@redis:{port['port']}"
    assert settings.host == "0.0.0.0"
    assert {"name": "http", "containerPort": settings.port} in container(template)["ports"]
    assert mount_paths(template)[str(settings.weights)]["readOnly"] is True
    for variable in values(objects, template):
        if variable.startswith("CORL_"):
            assert variable.removeprefix("CORL_").lower() in Settings.model_fields


@pytest.mark.parametrize("name", JUDGES)
def test_probes_are_routes_that_need_no_key(objects: list[Object], name: str) -> None:
    settings = Settings(member="a", model="m", redis="redis://nowhere")  # type: ignore[arg-type]
    routes = {getattr(route, "path", "") for route in app.create_app(settings, ScriptedEngine()).routes}
    only = container(named(objects, "Deployment", name)["spec"]["template"])
    probes = {kind: only[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert probes == {"startup": "/startupz", "liveness": "/livez", "readiness": "/readyz"}
    assert set(probes.values()) <= routes & PROBES


@pytest.mark.parametrize("name", JUDGES)
def test_a_judge_has_time_to_drain(
    objects: list[Object], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, settings = judge_settings(objects, name, tmp_path, monkeypatch)
    [command, seconds] = container(template)["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    longest = int(seconds) + settings.drain_s + 3 * worker.GIVE_BACK_S + serve.LAST_REQUESTS_S + replica.STOP_S
    assert template["spec"]["terminationGracePeriodSeconds"] > longest


@pytest.mark.parametrize("name", TRAINERS)
def test_trainers_understand_their_command_line(
    objects: list[Object], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.commands.launch import launch_command_parser
    from corl_trainer import main

    template = named(objects, "Job", name)["spec"]["template"]
    assert container(template)["command"] == ["python", "-m", "corl_trainer.accelerated"]
    arguments = command_line(objects, template, tmp_path)
    own = arguments[arguments.index("--") + 1 :]
    launched = launch_command_parser().parse_args([*arguments[: arguments.index("--")], "-m", "corl_trainer"])
    assert launched.num_processes is None, "a process a GPU"
    seen: list[TrainerSettings] = []
    monkeypatch.setattr("corl_trainer.member.train_member", lambda settings: seen.append(settings) or ExitCode.DONE)
    for variable, value in values(objects, template).items():
        monkeypatch.setenv(variable, value)
    main.app(own, standalone_mode=False)
    [settings] = seen
    paths = mount_paths(template)
    assert settings.member == name.removeprefix("trainer-")
    assert settings.api_key == KEY
    assert str(settings.run_dir.parent) in paths
    assert settings.run_dir.name == settings.run
    assert not paths[str(settings.weights)].get("readOnly")
    judges = {found["metadata"]["name"]: found["spec"]["ports"][0]["port"] for found in of_kind(objects, "Service")}
    assert settings.judges == {m: f"http://judge-{m}:{judges[f'judge-{m}']}" for m in settings.cohort.members}


def test_jobs_act_on_the_trainers_exit_codes(objects: list[Object]) -> None:
    for name in TRAINERS:
        job = named(objects, "Job", name)["spec"]
        assert job["template"]["spec"]["restartPolicy"] == "Never", "podFailurePolicy asks for it"
        codes: dict[str, set[int]] = {}
        for rule in job["podFailurePolicy"]["rules"]:
            if "onExitCodes" in rule:
                assert rule["onExitCodes"]["containerName"] == container(job["template"])["name"]
                codes.setdefault(rule["action"], set()).update(rule["onExitCodes"]["values"])
        assert codes == {"FailJob": {ExitCode.USAGE, ExitCode.FENCED}, "Ignore": {ExitCode.REQUESTED}}


@pytest.mark.parametrize(("kind", "image"), [("Deployment", "judge"), ("Job", "trainer")])
def test_pods_are_what_the_images_expect(objects: list[Object], kind: str, image: str) -> None:
    dockerfile = (ROOT / "docker" / f"{image}.Dockerfile").read_text()
    [uid] = re.findall(r"useradd --uid (\d+) --user-group", dockerfile)
    [folders] = re.findall(r"mkdir -p ((?:/\w+ ?)+)", dockerfile)
    home = dict(re.findall(r"(HOME|HF_HOME)=(\S+)", dockerfile))
    assert 'ENTRYPOINT ["corl"]' in dockerfile
    for found in of_kind(objects, kind):
        template = found["spec"]["template"]
        security = template["spec"]["securityContext"]
        assert {security["runAsUser"], security["runAsGroup"], security["fsGroup"]} == {int(uid)}
        writable = {path for path, mount in mount_paths(template).items() if not mount.get("readOnly")}
        assert set(folders.split()) <= set(mount_paths(template))
        assert home["HF_HOME"] in writable
        assert str(Path(home["HOME"]).parent) in writable


@pytest.mark.parametrize("build", BUILDS)
def test_images_are_those_of_the_compose_files(build: str) -> None:
    compose = (ROOT / "docker-compose.yml").read_text() + (ROOT / "docker-compose.cpu.yml").read_text()
    defaults = {name if ":" in name else f"{name}:latest" for name in re.findall(r"_IMAGE:-([^}]+)\}", compose)}
    for name, template in pods(built(build)):
        assert container(template)["image"] in defaults
        assert container(template)["image"].endswith(":cpu") == (build == "overlays/cpu" and name != "redis")


def test_redis_is_run_as_in_the_compose_file_and_refuses_before_it_is_killed() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["redis"]["command"]
    only = container(named(built("base"), "StatefulSet", "redis")["spec"]["template"])
    assert only["args"][: len(compose)] == compose
    options = dict(zip(only["args"][1::2], only["args"][2::2], strict=True))
    assert options["--requirepass"] == "$(REDIS_PASSWORD)"
    assert options["--maxmemory-policy"] == "noeviction"
    limit = only["resources"]["limits"]["memory"]
    assert int(options["--maxmemory"].removesuffix("gb")) < int(limit.removesuffix("Gi"))


def test_cohort_files_are_those_of_the_examples() -> None:
    """But for addresses, which are the Services', and devices, which are the cluster's to give."""

    def plain(path: Path) -> dict[str, Any]:
        content: dict[str, Any] = yaml.safe_load(path.read_text().replace("/arithmetic/", ""))
        for member in content["members"].values():
            for field in ("url", "devices"):
                member.pop(field, None)
            member.get("engine_options", {}).pop("gpu_memory_utilization", None)
        return {**content, "name": None}

    assert plain(FOLDER / "base" / "cohort.yaml") == plain(ROOT / "examples" / "compose" / "cohort.yaml")
    assert plain(FOLDER / "overlays/cpu/cohort.yaml") == plain(ROOT / "examples" / "arithmetic" / "docker.yaml")


# KEDA ----------------------------------------------------------------------------------------------------------------

SCALED_OBJECT = {
    "scaleTargetRef", "pollingInterval", "cooldownPeriod", "initialCooldownPeriod", "idleReplicaCount",
    "minReplicaCount", "maxReplicaCount", "fallback", "advanced", "triggers",
}  # fmt: skip
TRIGGER = {"type", "metadata", "name", "useCachedMetrics", "authenticationRef", "metricType"}
REDIS_STREAMS = {
    "address", "host", "port", "usernameFromEnv", "passwordFromEnv", "stream", "consumerGroup", "pendingEntriesCount",
    "streamLength", "lagCount", "activationLagCount", "enableTLS", "unsafeSsl", "databaseIndex", "addressFromEnv",
    "hostFromEnv", "portFromEnv",
}  # fmt: skip
"""Fields by https://keda.sh/docs/latest/reference/scaledobject-spec and .../scalers/redis-streams."""


@pytest.mark.parametrize("name", JUDGES)
def test_scaled_objects_have_the_documented_fields(name: str) -> None:
    objects = built("overlays/keda")
    scaled = named(objects, "ScaledObject", name)
    spec = scaled["spec"]
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    assert set(spec) <= SCALED_OBJECT
    assert spec["scaleTargetRef"] == {"name": name}
    named(objects, "Deployment", name)
    assert spec["minReplicaCount"] == 1
    assert spec["maxReplicaCount"] > 1
    assert set(spec["advanced"]) == {"horizontalPodAutoscalerConfig"}
    for trigger in spec["triggers"]:
        assert set(trigger) <= TRIGGER
        assert set(trigger["metadata"]) <= REDIS_STREAMS
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
    hpa = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", **spec["scaleTargetRef"]},
            "maxReplicas": spec["maxReplicaCount"],
            "behavior": spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
        },
    }
    check(hpa, VERSIONS[-1])  # KEDA hands `behavior` to a HorizontalPodAutoscaler


@pytest.mark.parametrize("name", JUDGES)
def test_scaled_objects_watch_the_streams_that_the_judge_works_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = built("overlays/keda")
    template, settings = judge_settings(objects, name, tmp_path, monkeypatch)
    plain = Settings(member=settings.member, model="m", redis="redis://nowhere")  # type: ignore[arg-type]
    streams = {queue: Service(plain, ScriptedEngine()).queues[queue].stream for queue in ("rollouts", "votes")}
    spec = named(objects, "ScaledObject", name)["spec"]
    triggers = {trigger["name"]: trigger["metadata"] for trigger in spec["triggers"]}
    assert {queue: trigger["stream"] for queue, trigger in triggers.items()} == streams
    [port] = named(objects, "Service", "redis")["spec"]["ports"]
    for trigger in triggers.values():
        assert trigger["address"] == f"redis.corl.svc:{port['port']}"
        assert values(objects, template)[trigger["passwordFromEnv"]] == PASSWORD
        assert "consumerGroup" not in trigger, "KEDA would look at pending entries, with a default of 5"
        assert int(trigger["streamLength"]) == settings.max_problems_in_flight
    [policy] = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]["policies"]
    assert policy["value"] == 1
    assert policy["periodSeconds"] >= template["spec"]["terminationGracePeriodSeconds"], "one drains at a time"


async def test_a_streams_length_is_the_work_that_is_left(redis_url: str, redis_namespace: str) -> None:
    """What KEDA reads, through all that happens to entries; a group's lag is none once a waiting entry is given up."""
    redis = Redis.from_url(redis_url)
    queue = JobQueue(redis, redis_namespace)
    try:
        tickets = await queue.submit_many([Item(f"k{number}", b"") for number in range(10)], asker="one")
        assert await redis.xlen(queue.stream) == 10
        leases = await queue.claim("worker", 4)
        assert await redis.xlen(queue.stream) == 10, "what runs counts"
        await queue.complete(leases[0], b"done")
        await queue.release(leases[1])
        assert await redis.xlen(queue.stream) == 9
        await queue.cancel([tickets[8].job], asker="one")
        await queue.fail(leases[2], b"no", final=True)
        depth = await queue.depth()
        assert await redis.xlen(queue.stream) == depth.waiting + depth.pending == 7
    finally:
        await queue.aclose()
        await redis.aclose()
