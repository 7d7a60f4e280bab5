#!/usr/bin/env bash
# Builds docker/Dockerfile as it is and runs the image, with no container engine and no image registry: buildah in
# chroot isolation, on a stand-in for the base image made of Debian packages. Needs root on Debian; takes minutes.
# Usage: docker/image_test.sh PYTHON (one with pip, to fetch the wheels)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${1:?usage: docker/image_test.sh PYTHON}
port=${PORT:-19400}
cache=$PWD/.cache/image-test
base=docker.io/library/$(sed -nE '1,/^FROM/s/^FROM ([^ ]+).*/\1/p' docker/Dockerfile)
image=gpu-profile-exporter:test

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'image-test: %s\n' "$*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "chroot isolation needs root; run it as root in a throw-away machine or container"
[ "$base" = docker.io/library/python:3.11-slim ] || fail "the stand-in has Python 3.11, but the Dockerfile builds on $base"

if ! command -v buildah >/dev/null || ! command -v debootstrap >/dev/null || ! command -v curl >/dev/null; then
  say "Installing buildah, debootstrap and curl"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends buildah debootstrap curl </dev/null >/dev/null
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/run.XXXXXX")
server=
clean_up() {
  # buildah's children outlive it, so the whole session that it leads is ended.
  [ -z "$server" ] || kill -- "-$server" 2>/dev/null || true
  wait
  buildah rm --all >/dev/null 2>&1 || true
  buildah rmi "$image" >/dev/null 2>&1 || true
  buildah rmi --prune >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap clean_up EXIT
printf 'unqualified-search-registries = ["docker.io"]\n' >"$work/registries.conf"
export CONTAINERS_REGISTRIES_CONF=$work/registries.conf
store=(--root "$cache/store" --runroot "$work/state" --storage-driver vfs)
buildah() { command buildah "${store[@]}" "$@"; }

if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
  say "Making a stand-in for $base (kept in .cache)"
  # shellcheck disable=SC2016 # these are apt's own variables
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | awk '$2 == "bookworm" { print $1; exit }')
  debootstrap --variant=minbase --include=python3,python3-venv,python-is-python3 bookworm "$work/rootfs" ${mirror:+"$mirror"} >"$work/debootstrap.log" \
    || { tail -20 "$work/debootstrap.log" >&2; fail "debootstrap failed"; }
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$work/rootfs" / >/dev/null
  buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
  buildah commit --quiet "$container" "$base" >/dev/null
  buildah rm "$container" >/dev/null
  rm -rf "$work/rootfs"
fi

say "Fetching the wheels"
"$python" -m pip --disable-pip-version-check wheel -qq --no-deps --wheel-dir "$work/self" .
requirements=("$(echo "$work"/self/*.whl)[web,grpc,pods,sidecar,serving]" "$(sed -nE 's/^requires = \["(.*)"\]/\1/p' pyproject.toml)")
"$python" -m pip --disable-pip-version-check download -qq --only-binary :all: --python-version 3.11 \
  --dest "$work/wheels" "${requirements[@]}"
rm -f "$work"/wheels/gpu_profile-*

say "Building the image"
buildah build --pull-never --isolation chroot --format docker --layers=false --volume "$work/wheels:/wheels:ro" \
  --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels --file docker/Dockerfile --tag "$image" .

# What an engine would act on; chroot isolation does not, so it is compared here and repeated by hand below.
buildah inspect --type image "$image" >"$work/image.json"
check=$("$python" - "$work/image.json" <<'PYTHON'
import json, sys
from pathlib import Path

config = json.loads(Path(sys.argv[1]).read_text())["Docker"]["config"]
expected = {"User": "10001:10001", "Entrypoint": ["gpu-profile-exporter"], "Cmd": ["--listen", ":9400"]}
for key, value in expected.items():
    if config[key] != value:
        sys.exit(f"image-test: the image's {key} is {config[key]}, not {value}")
kind, *command = config["Healthcheck"]["Test"]
if kind != "CMD":
    sys.exit(f"image-test: the health check is {kind}, which needs a shell")
print(*command)
PYTHON
)

container=$(buildah from --pull-never "$image")
root=$(buildah mount "$container")
echo "The packages in /opt/gpu-profile take $(du -sm "$root/opt/gpu-profile" | cut -f1) MB," \
  "$(($(tar -C "$root" -cf - opt/gpu-profile | gzip | wc -c) / 1000000)) MB as a compressed layer."
# As on a read-only root: whatever the exporter writes outside of this one folder and of its own in /tmp fails the test.
install -d -o 10001 -g 10001 "$root/simulated"
: >"$work/began"

say "Running it as user 10001: first the demo's service, which works on the simulated node, then the exporter"
buildah run --isolation chroot --user 10001:10001 "$container" -- \
  python -m gpu_profile_exporter.demo.service --directory /simulated --metrics 0 --seconds 2 >"$work/service.log" 2>&1 \
  || { cat "$work/service.log" >&2; fail "the demo's service failed"; }
setsid buildah "${store[@]}" run --isolation chroot --user 10001:10001 "$container" -- \
  gpu-profile-exporter --listen "127.0.0.1:$port" --driver simulated:/simulated >"$work/exporter.log" 2>&1 &
server=$!
for path in /-/healthy /-/ready /metrics; do
  curl --silent --show-error --fail --noproxy '*' --retry 40 --retry-delay 1 --retry-all-errors --max-time 5 \
    "http://127.0.0.1:$port$path" >"$work/answer" 2>"$work/curl.log" \
    || { cat "$work/curl.log" "$work/exporter.log" >&2; fail "$path did not answer"; }
  kill -0 "$server" || fail "$path was answered by something else on port $port"
  echo "$path answered $(wc -c <"$work/answer") bytes"
done
grep -q '^hw_gpu_utilization_ratio{.*hw_id="GPU-' "$work/answer" || fail "/metrics shows no simulated GPU"
written=$(find "$root" -xdev -user 10001 -newer "$work/began" -not -path "$root/simulated*" \
  -not -path "$root/tmp/gpu-profile-10001*" | head)
[ -z "$written" ] || fail "the exporter wrote outside of its folder: $written"

# The health check's own words, on the port of this run.
read -ra check <<<"$check"
buildah run --isolation chroot --user 10001:10001 "$container" -- "${check[@]}" --url "http://127.0.0.1:$port" || fail "the health check fails"
echo "the health check passed"
if buildah run --isolation chroot --user 10001:10001 "$container" -- "${check[@]}" --url http://127.0.0.1:1 2>/dev/null; then
  fail "the health check passes with no exporter"
fi
buildah umount "$container" >/dev/null
printf '\nThe image builds and serves.\n'
