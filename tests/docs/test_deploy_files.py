"""examples/deploy: the scripts' command lines, the container files against their schemas, the dashboard."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from ec_ipc.connector import config
from ec_ipc.connector.metrics import COUNTERS, GAUGES, HISTOGRAMS, PREFIX, TALLIES

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
SCRIPTS = {
    "1e-1pd.sh": (["E"], ["PD"]),
    "2e-2pd.sh": (["E1", "E2"], ["PD1", "PD2"]),
    "e-p-d.sh": (["E"], ["P"]),
}
KUBERNETES = "1.30"


def dry_run(script: str, **environ: str) -> dict[str, list[str]]:
    """The command line of each process that a script would start."""
    clean = {
        k: v for k, v in os.environ.items() if k not in ("MODEL", "NAMESPACE", "ARENA", "PORT", "DEVICE")
    }
    done = subprocess.run(
        [str(DEPLOY / script), "--dry-run"],
        capture_output=True,
        text=True,
        check=True,
        env={**clean, **environ},
    )
    lines = done.stdout.splitlines()
    assert len(lines) % 2 == 0 and not done.stderr
    return {
        name.removeprefix("# "): shlex.split(line) for name, line in zip(lines[::2], lines[1::2], strict=True)
    }


def option(command: list[str], name: str) -> str:
    assert command.count(name) == 1, (name, command)
    return command[command.index(name) + 1]


def transfer(command: list[str]) -> dict[str, Any]:
    """An engine's EC configuration, accepted by the connector itself."""
    found: dict[str, Any] = json.loads(option(command, "--ec-transfer-config"))
    config.parse(found["ec_role"], found["ec_connector_extra_config"], 1e9)
    assert found["ec_connector"] == "ECIPCConnector"
    return found


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_engines_of_a_script_meet(script: str, device: str) -> None:
    commands = dry_run(script, DEVICE=device, MODEL="org/model", NAMESPACE="shared", PORT="9100")
    encoders, decoders = SCRIPTS[script]
    engines = {name: command for name, command in commands.items() if "--model" in command}
    assert [transfer(commands[name])["ec_role"] for name in encoders] == ["ec_producer"] * len(encoders)
    assert [transfer(commands[name])["ec_role"] for name in decoders] == ["ec_consumer"] * len(decoders)
    for command in engines.values():
        assert option(command, "--model") == "org/model"
        assert ("--dtype" in command) == (device == "cpu")
    extras = {json.dumps(transfer(commands[n])["ec_connector_extra_config"]) for n in encoders + decoders}
    assert len(extras) == 1 and json.loads(extras.pop())["namespace"] == "shared"
    ports = [option(command, "--port") for command in commands.values()]
    assert len(set(ports)) == len(ports) and option(commands["proxy"], "--port") == "9100"
    gpus = [word for command in engines.values() for word in command if word.startswith("CUDA_VISIBLE")]
    wanted = [f"CUDA_VISIBLE_DEVICES={i}" for i in range(len(engines))] if device == "cuda" else []
    assert gpus == wanted
    for name in encoders:
        assert f"http://127.0.0.1:{option(commands[name], '--port')}" in commands["proxy"]


def test_prefill_and_decode_stand_behind_one_address() -> None:
    commands = dry_run("e-p-d.sh", DEVICE="cuda", MODEL="org/model")
    front = commands["prefill-decode"]
    for name, flag in (("P", "--prefill"), ("D", "--decode")):
        assert option(front, flag).endswith(option(commands[name], "--port"))
        assert json.loads(option(commands[name], "--kv-transfer-config"))["kv_connector"] == "NixlConnector"
    assert "--ec-transfer-config" not in commands["D"]
    assert option(commands["proxy"], "--pd").endswith(option(front, "--port"))


def test_decode_settles_nothing_that_prefill_has_settled() -> None:
    sys.path.insert(0, str(DEPLOY))
    import prefill_decode

    body = {"messages": [], "max_tokens": 50, "stream": True, "ec_transfer_params": {"a": {"token": 1}}}
    first = prefill_decode.for_prefill(body)
    assert first["max_tokens"] == 1 and first["stream"] is False
    assert first["ec_transfer_params"] == {"a": {"token": 1}}
    second = prefill_decode.for_decode(body, {"kv_transfer_params": {"remote_port": 5}})
    assert second["ec_transfer_params"] == {} and second["kv_transfer_params"] == {"remote_port": 5}
    assert second["max_tokens"] == 50 and second["stream"] is True


def test_a_script_says_what_it_needs() -> None:
    done = subprocess.run(
        [str(DEPLOY / "1e-1pd.sh"), "--dry-run"],
        capture_output=True,
        text=True,
        env={**os.environ, "DEVICE": "cuda"},
    )
    assert done.returncode != 0 and "say which model" in done.stderr
    done = subprocess.run([str(DEPLOY / "1e-1pd.sh"), "--what"], capture_output=True, text=True)
    assert done.returncode == 2 and "--dry-run" in done.stderr


# In place of Python: engines and proxy that last until the script lets go, and a check that ends as told.
PRETENDS = """#!/usr/bin/env bash
case $* in
*supervise.py*) echo started; exec cat <&"$3" ;;
*examples.deploy.check*) exit "$CHECK" ;;
esac
"""


@pytest.mark.parametrize("check", [0, 1])
def test_a_check_leaves_its_logs_only_when_it_fails(tmp_path: Path, check: int) -> None:
    python, temporary = tmp_path / "python", tmp_path / "temporary"
    python.write_text(PRETENDS)
    python.chmod(0o755)
    temporary.mkdir()
    environ = {k: v for k, v in os.environ.items() if k != "LOGS"}
    environ |= {"PYTHON": str(python), "TMPDIR": str(temporary), "CHECK": str(check), "MODEL": "m"}
    command = [str(DEPLOY / "1e-1pd.sh"), "--check"]
    done = subprocess.run(
        command, env={**environ, "DEVICE": "cpu"}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == check, done.stderr
    logs = [path.name for path in temporary.rglob("*.log")]
    assert sorted(logs) == ([] if check == 0 else ["E.log", "PD.log", "proxy.log"])
    assert len(list(temporary.iterdir())) == check
    mine = tmp_path / "mine"
    subprocess.run(
        command, env={**environ, "DEVICE": "cpu", "LOGS": str(mine)}, capture_output=True, timeout=60
    )
    assert (mine / "E.log").exists(), "a folder that was given stays"


def test_the_compose_file_follows_its_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(DEPLOY / "compose.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_engines_of_the_compose_file_share_what_they_must() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert services["pause"]["ipc"] == "shareable" and services["pause"]["shm_size"]
    for name in ("e", "pd"):
        assert services[name]["ipc"] == services[name]["pid"] == "service:pause"
    assert services["proxy"]["ipc"] == "service:pause"
    check_engines(services["e"]["command"], services["pd"]["command"])


def test_an_engine_of_the_compose_file_may_end_alone() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    holders = {services[name][kind] for name in ("e", "pd") for kind in ("ipc", "pid")}
    assert holders == {"service:pause"}, "an engine whose namespaces another one holds ends with it"
    assert services["pause"]["entrypoint"] == ["sleep", "infinity"] and "command" not in services["pause"]


def test_the_pod_follows_its_schema() -> None:
    pod = yaml.safe_load((DEPLOY / "pod.yaml").read_text())
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    pod["spec"]["containers"][0]["imag"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_the_engines_of_the_pod_share_what_they_must() -> None:
    spec = yaml.safe_load((DEPLOY / "pod.yaml").read_text())["spec"]
    assert spec["shareProcessNamespace"] is True
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in spec["volumes"]
    e, pd, proxy = spec["containers"]
    for container in (e, pd, proxy):
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    check_engines(e["args"], pd["args"])


def check_engines(e: list[str], pd: list[str]) -> None:
    roles = []
    for arguments in (e, pd):
        (text,) = [a.partition("=")[2] for a in arguments if a.startswith("--ec-transfer-config=")]
        found = json.loads(text)
        config.parse(found["ec_role"], found.get("ec_connector_extra_config", {}), 1e9)
        roles.append(found["ec_role"])
    assert roles == ["ec_producer", "ec_consumer"]
    assert [a for a in e if a.startswith("--model=")] == [a for a in pd if a.startswith("--model=")]


@pytest.mark.parametrize("name", ["compose.yaml", "pod.yaml", "Dockerfile"])
def test_what_was_not_run_says_so(name: str) -> None:
    text = " ".join((DEPLOY / name).read_text().replace("#", " ").split())
    assert "not run by the project's tests" in text


def test_the_dashboard_uses_the_metrics_that_there_are() -> None:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = set(re.findall(rf"{PREFIX}(\w+)", " ".join(expressions)))
    there = {f"{name}_total" for name in {**COUNTERS, **TALLIES}} | set(GAUGES)
    there |= {f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "sum", "count")}
    assert used == there, "a metric without a panel, or a panel without a metric"
    for expression in expressions:
        assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count(
            "}"
        )
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
