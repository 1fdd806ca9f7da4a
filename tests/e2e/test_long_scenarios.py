"""Scenarios that each start engines of their own. ``pytest tests/e2e --scenarios`` runs them too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial

import pytest
from harness import Deployments, Reference
from scenarios import changes, side_by_side

from examples.demo.chat import chat, picture
from examples.demo.deployment import PD, E, Topology, remove_namespace
from examples.demo.engines import CPU_ENV, QUIET_ENV, REPO, EngineSpec, ec_config, start_all, unique_namespace
from examples.demo.tiny_models import make_model

pytestmark = pytest.mark.long

DATA_PARALLEL = Topology(args={E: ("--data-parallel-size", "2"), PD: ("--data-parallel-size", "2")})


def test_data_parallel_engines_share_one_namespace(deployments: Deployments, reference: Reference) -> None:
    with deployments.private("llava", DATA_PARALLEL) as engines:
        roles = sorted(p["role"] for p in engines.quick_status()["participants"])
        assert roles == [each for role in ("e", "pd") for kind in ("scheduler", "worker")
                         for each in [f"{role}.{kind}"] * 2]  # fmt: skip
        requests = [[picture(600 + i % 3)] for i in range(12)]
        for request in requests:
            reference(engines, request)
        with changes(engines) as delta:
            answers = side_by_side([partial(engines.ask, request) for request in requests])
            engines.wait_until_idle()
        for request, answer in zip(requests, answers, strict=True):
            assert answer.ok and answer.tokens == reference(engines, request)
        assert delta["misses"] == delta["expired"] == 0


def without_namespace(role: str) -> dict[str, object]:
    config = ec_config(role, "unused", arena="host", arena_bytes=1 << 20)
    del config["ec_connector_extra_config"]["namespace"]
    return config


def test_two_models_on_one_node_do_not_meet(reference: Reference) -> None:
    """The namespace comes from the model, and no item of one is read by the other."""
    from ec_ipc.cli import status

    models = {"E": make_model("llava"), "PD": make_model("qwen3vl")}
    specs = [
        EngineSpec("E", models["E"], ec_transfer=without_namespace("ec_producer")),
        EngineSpec("PD", models["PD"], ec_transfer=without_namespace("ec_consumer")),
    ]
    mine: list[str] = []
    try:
        with start_all(*specs) as (e, pd):
            pids = {*e.pids(), *pd.pids()}
            for found in status.collect(None)["namespaces"]:
                if any(p["pid"] in pids for p in found["participants"]):
                    mine.append(found["name"])
            assert len(mine) == 2 and all(name.startswith("model-") for name in mine)
            request = [picture(610, uuid="the same")]
            encoded = chat(e.url, request, max_tokens=1)
            assert encoded.ok and encoded.ec_transfer_params
            answer = chat(pd.url, request, ec_transfer_params=encoded.ec_transfer_params)
            assert answer.tokens == reference(models["PD"], request)
    finally:
        for name in mine:
            remove_namespace(name)


IN_PROCESS = """
import json, sys
from vllm import LLM, SamplingParams
from examples.demo.chat import messages, picture

def main():
    model, config = sys.argv[1], json.loads(sys.argv[2])
    pictures = [picture(620), picture(621)]
    llm = LLM(model, max_model_len=1024, enforce_eager=True, dtype="float32", ec_transfer_config=config)
    asked = [messages([p]) for p in pictures] + [messages([pictures[0], pictures[0]])]
    sampling = SamplingParams(temperature=0, max_tokens=8)
    for _ in range(2):
        answers = [list(a.outputs[0].token_ids) for a in llm.chat(asked, sampling)]
    print("TOKENS", json.dumps(answers), flush=True)

if __name__ == "__main__":
    main()
"""


def in_process(model: str, role: str, namespace: str) -> list[list[int]]:
    config = ec_config(role, namespace, arena="host", arena_bytes=1 << 20)
    env = {
        **os.environ,
        **CPU_ENV,
        **QUIET_ENV,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "PYTHONPATH": str(REPO),
    }
    command = [sys.executable, "-c", IN_PROCESS, model, json.dumps(config)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOKENS ")]
    assert lines, done.stdout[-2000:] + done.stderr[-3000:]
    return json.loads(lines[-1].removeprefix("TOKENS "))


@pytest.mark.parametrize("role", ["ec_both", "ec_consumer"])
def test_scheduler_and_worker_in_one_process(reference: Reference, role: str) -> None:
    """VLLM_ENABLE_V1_MULTIPROCESSING=0: two handles, two slots, metadata by reference."""
    model, namespace = make_model("llava"), unique_namespace("test")
    try:
        answers = in_process(str(model), role, namespace)
    finally:
        left = remove_namespace(namespace)
    requests = [[picture(620)], [picture(621)], [picture(620), picture(620)]]
    assert [tuple(answer) for answer in answers] == [reference(model, request) for request in requests]
    assert not left
