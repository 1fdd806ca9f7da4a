#!/usr/bin/env bash
# Two encoders and two prefill-and-decode engines in one namespace: GPUs 0 to 3, ports 8000 to 8004.
# Options and variables: common.sh. Each encoder has an arena of its own, and either PD reads from both.
# The proxy sends a picture always to the same encoder, so each picture is encoded once on this node.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

encoders=() decoders=()
for i in 1 2; do
    encoder "E$i"
    encoders+=(--encoder "$url")
done
for i in 1 2; do
    prefill_and_decode "PD$i"
    decoders+=(--pd "$url")
done
proxy "${encoders[@]}" "${decoders[@]}"
serve
