#!/usr/bin/env bash
# Encoder, prefill and decode as three engines: GPUs 0 to 2, ports 8000 (proxy) to 8004.
# Options and variables: common.sh.
#
# P reads E's embeddings through ec_ipc, and D gets P's KV cache through a KV connector of vLLM: that is
# not ec_ipc's part. D has no EC connector, as the KV cache covers every picture. prefill_decode.py stands
# between the proxy and these two, and makes them look like one PD.
#
# On GPUs KV goes by NixlConnector (pip install nixl). On CPU it goes through files, by vLLM's
# ExampleConnector, which hands over whole blocks only, so there the proxy sends D the pixels too.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

kv() { # ROLE
    if [[ $DEVICE == cpu ]]; then
        printf '{"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_connector_extra_config": '
        printf '{"shared_storage_path": "%s"}}' "${scratch:-/tmp/kv}"
    else
        printf '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
    fi
}

encoder E
e=$url
# NIXL's side channels need a port each.
export VLLM_NIXL_SIDE_CHANNEL_PORT=$((PORT + 100))
# shellcheck disable=SC2086
engine P --ec-transfer-config "$(ec ec_consumer)" --kv-transfer-config "$(kv)" ${P_FLAGS:-}
p=$url
export VLLM_NIXL_SIDE_CHANNEL_PORT=$((PORT + 101))
# shellcheck disable=SC2086
engine D --kv-transfer-config "$(kv)" ${D_FLAGS:-}
d=$url
launch prefill-decode "$PYTHON" "$repo/examples/deploy/prefill_decode.py" \
    --port "$next_port" --prefill "$p" --decode "$d"
urls+=("http://127.0.0.1:$next_port")
rewrite=()
[[ $DEVICE == cuda ]] || rewrite=(--no-rewrite)
proxy --encoder "$e" --pd "http://127.0.0.1:$next_port" "${rewrite[@]}"
serve
