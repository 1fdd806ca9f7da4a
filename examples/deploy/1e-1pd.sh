#!/usr/bin/env bash
# One encoder, one prefill-and-decode engine, and the proxy: GPUs 0 and 1, ports 8000 (proxy) to 8002.
# Options and variables: common.sh. Both engines take the same --model and --dtype: else they never meet.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

encoder E
e=$url
prefill_and_decode PD
proxy --encoder "$e" --pd "$url"
serve
