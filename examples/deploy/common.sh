# Shared by the deploy scripts: starts engines and the proxy, waits for them, stops all of them at the end.
#
#   MODEL=Qwen/Qwen3-VL-8B-Instruct examples/deploy/1e-1pd.sh     on GPUs
#   DEVICE=cpu examples/deploy/1e-1pd.sh --check                  on any machine, with a tiny model
#
#   --dry-run   print the command lines, start nothing
#   --check     send a picture when all are up, print what came of it, stop; the exit code says how it went
#
# Variables, with their defaults:
#   MODEL       what every engine serves: one string for all, it is part of the key  (cpu: a tiny model)
#   DEVICE      cuda or cpu                                        (cuda where nvidia-smi finds a GPU)
#   NAMESPACE   what the engines share; empty: derived from the model
#   ARENA       host, cuda or auto                                 (auto)
#   ARENA_BYTES the arena of each encoder, see docs/operations.md  (4 GiB; cpu: 64 MiB)
#   PORT        of the proxy; the engines take the ports after it  (8000)
#   PYTHON      the interpreter that has vLLM and ec_ipc           (.venv/bin/python, else python3)
#   LOGS        folder of the logs              (a new one in TMPDIR; --check removes it if all went well)
#   E_FLAGS, P_FLAGS, D_FLAGS, PD_FLAGS  more flags for the engines of that kind

set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dry_run=no check=no
for argument in "$@"; do
    case $argument in
    --dry-run) dry_run=yes ;;
    --check) check=yes ;;
    *)
        echo "usage: $0 [--dry-run] [--check]; variables are explained in $(basename "${BASH_SOURCE[0]}")" >&2
        exit 2
        ;;
    esac
done

PYTHON=${PYTHON:-$([[ -x $repo/.venv/bin/python ]] && echo "$repo/.venv/bin/python" || echo python3)}
if [[ -z ${DEVICE:-} ]]; then
    DEVICE=cpu
    if nvidia-smi -L >/dev/null 2>&1; then DEVICE=cuda; fi
fi
[[ $check == no ]] || NAMESPACE=${NAMESPACE:-check-$$}
PORT=${PORT:-8000} ARENA=${ARENA:-auto}
supervisor=$repo/examples/demo/supervise.py
names=() urls=() pids=()
next_port=$((PORT + 1)) next_gpu=0

if [[ $DEVICE == cpu ]]; then
    ARENA_BYTES=${ARENA_BYTES:-$((64 << 20))}
    # Few threads and little memory for the KV cache, so that several engines fit side by side.
    export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1} VLLM_CPU_OMP_THREADS_BIND=nobind
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
    device_flags=(--dtype float32 --max-model-len 1024)
    [[ -n ${MODEL:-} || $dry_run == yes ]] || MODEL=$(cd "$repo" && "$PYTHON" -m examples.demo.tiny_models llava)
    MODEL=${MODEL:-tiny}
else
    ARENA_BYTES=${ARENA_BYTES:-$((4 << 30))}
    device_flags=()
    : "${MODEL:?say which model to serve, for example MODEL=Qwen/Qwen3-VL-8B-Instruct}"
fi

# Keys of ec_connector_extra_config. Every engine of a namespace gets the same.
extra() {
    printf '{"arena": "%s", "arena_bytes": %s' "$ARENA" "$ARENA_BYTES"
    [[ -z ${NAMESPACE:-} ]] || printf ', "namespace": "%s"' "$NAMESPACE"
    printf '}'
}

ec() { # ROLE
    printf '{"ec_connector": "ECIPCConnector", "ec_role": "%s", "ec_connector_extra_config": %s}' "$1" "$(extra)"
}

launch() { # NAME COMMAND...: in the background, with the log in a file
    local name=$1
    shift
    if [[ $dry_run == yes ]]; then
        printf '# %s\n' "$name"
        local word line=
        for word in "$@"; do
            [[ $word =~ ^[A-Za-z0-9_./:=,-]+$ ]] || word="'$word'"
            line+="$word "
        done
        printf '%s\n' "${line% }"
        return
    fi
    # supervise.py ends everything of the command when this script is gone, whatever ended it.
    "$PYTHON" -I "$supervisor" "$lifeline" "$@" >"$LOGS/$name.log" 2>&1 {held}>&- &
    pids+=($!)
    names+=("$name")
}

engine() { # NAME FLAGS...: an engine on the next port and the next GPU; its address is in $url
    local name=$1 gpu=()
    shift
    [[ $DEVICE == cpu ]] || gpu=("CUDA_VISIBLE_DEVICES=$next_gpu")
    url=http://127.0.0.1:$next_port
    # --enforce-eager: no CUDA graphs and no compilation; take it away from PD once all works.
    # --enable-request-id-headers: the same request id in the logs of all engines and of the proxy.
    launch "$name" env "${gpu[@]}" "$PYTHON" -m vllm.entrypoints.openai.api_server \
        --host 127.0.0.1 --port "$next_port" --model "$MODEL" --served-model-name model \
        --enforce-eager --enable-request-id-headers "${device_flags[@]}" "$@"
    urls+=("$url")
    next_port=$((next_port + 1)) next_gpu=$((next_gpu + 1))
}

encoder() { # NAME
    # An encoder generates nothing: prefix caching would only take memory. A batch may hold many pictures,
    # so the token budget is large; it costs no KV cache that is not used.
    local budget=()
    [[ $DEVICE == cpu ]] || budget=(--max-num-batched-tokens 114688)
    # shellcheck disable=SC2086
    engine "$1" --no-enable-prefix-caching "${budget[@]}" --ec-transfer-config "$(ec ec_producer)" ${E_FLAGS:-}
}

prefill_and_decode() { # NAME
    # shellcheck disable=SC2086
    engine "$1" --ec-transfer-config "$(ec ec_consumer)" ${PD_FLAGS:-}
}

proxy() { # FLAGS...: clients talk to this one
    launch proxy "$PYTHON" "$repo/examples/proxy" --port "$PORT" "$@"
    urls+=("http://127.0.0.1:$PORT")
}

stop() {
    local status=$?
    trap - EXIT INT TERM HUP
    [[ -z ${held:-} ]] || exec {held}>&-
    wait || true
    rm -rf "${scratch:-}"
    if [[ $check == yes && $status == 0 && -n ${own_logs:-} ]]; then rm -rf "$own_logs"; fi
}

begin() {
    [[ $dry_run == no ]] || return 0
    scratch=$(mktemp -d)
    [[ -n ${LOGS:-} ]] || LOGS=$(mktemp -d) own_logs=$LOGS
    mkdir -p "$LOGS"
    mkfifo "$scratch/lifeline"
    exec {held}<>"$scratch/lifeline" {lifeline}<"$scratch/lifeline"
    trap 'exit 130' INT TERM HUP
    trap stop EXIT
    echo "logs: $LOGS"
}

check_alive() {
    local i
    for i in "${!pids[@]}"; do
        kill -0 "${pids[$i]}" 2>/dev/null && continue
        echo "${names[$i]} has ended; its log ends with" >&2
        tail -n 20 "$LOGS/${names[$i]}.log" >&2
        exit 1
    done
}

wait_until_up() {
    local each
    for each in "${urls[@]}"; do
        until "$PYTHON" -c 'import sys, urllib.request
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sys.argv[1] + "/health", timeout=5)' \
            "$each" 2>/dev/null; do
            check_alive
            sleep 2
        done
    done
}

serve() { # call it last: waits, checks if asked to, then stays until an engine ends or Ctrl-C
    [[ $dry_run == no ]] || return 0
    wait_until_up
    echo "ready: http://127.0.0.1:$PORT/v1 (model name: model)"
    if [[ $check == yes ]]; then
        (cd "$repo" && "$PYTHON" -m examples.deploy.check "http://127.0.0.1:$PORT" "$NAMESPACE")
        return
    fi
    while sleep 2; do check_alive; done
}

begin
