#!/bin/sh
# Builds the images `web` and `worker` of the Dockerfile without a registry, and runs them: for machines that reach
# Debian's and Python's packages only. The base is Debian bookworm by debootstrap, under the name of the Dockerfile's
# base; its Python is Debian's 3.11. Needs root, and: apt-get install debootstrap buildah podman
#   deploy/check_image.sh FOLDER [WHEELS]
# FOLDER gets the base and the images: 5 GB, and 15 GB more where torch comes from PyPI with CUDA's libraries. WHEELS is
# a folder with a wheel of torch for CPUs, which is taken in their place. EXTRAS names the extras of `worker`: with
# `fleet` among them, as here, a fleet of one node runs by Ray. `web` verifies what `worker` sealed.
set -eu
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:?name a folder for base and images}")
base=$(sed -n 's/^FROM \(.*\) AS base$/docker.io\/library\/\1/p' deploy/Dockerfile)
engine() { program=$1; shift; "$program" --storage-driver=vfs --root "$folder/store" --runroot "$folder/run" "$@"; }

# An index of packages that has torch only; empty without WHEELS.
mkdir -p "$folder/index/torch"
for wheel in ${2:+"$2"/torch-*.whl}; do
  cp "$wheel" "$folder/index/torch/"
  printf '<a href="%s">torch</a>\n' "$(basename "$wheel" | sed 's/+/%2B/')" >"$folder/index/torch/index.html"
done

mkdir -p "$folder/shared"
chown 10001:10001 "$folder/shared"
debootstrap --variant=minbase --include=python3.11,python3-pip,ca-certificates bookworm "$folder/base" >"$folder/log"
rm -f "$folder"/base/usr/lib/python3*/EXTERNALLY-MANAGED "$folder"/base/var/cache/apt/archives/*.deb
ln -sf python3.11 "$folder/base/usr/bin/python"
cp /etc/ssl/certs/ca-certificates.crt "$folder/base/etc/ssl/certs/"
tar -C "$folder/base" -c . | engine podman import - "$base" >>"$folder/log"

# chroot: such machines often allow no namespaces
extras=${EXTRAS:-run,service,sign,fleet}
build() {
  engine buildah bud --isolation=chroot --network=host --pull-never --target "$1" -f deploy/Dockerfile \
    --volume "$folder/index:/index:ro" --build-arg "TORCH_INDEX=$2" --build-arg "EXTRAS=$extras" \
    -t "qualify-$1:check" . >>"$folder/log" 2>&1 \
    || { echo "the image $1 cannot be built; see $folder/log:" >&2; tail -n 5 "$folder/log" >&2; exit 1; }
}
try() {
  container=$(engine buildah from --pull-never "localhost/qualify-$1:check")
  engine buildah run --isolation=chroot --network=host --user 10001:10001 \
    --volume "$folder/shared:/shared" --env "EXTRAS=$extras" "$container" -- sh -euc "$2"
  engine buildah rm "$container" >/dev/null
  echo "the image $1 is built and runs: localhost/qualify-$1:check in $folder/store"
}

index=https://pypi.org/simple
[ -z "${2:-}" ] || index=file:///index
build worker "$index"
try worker '
  test "$(id -u)" = 10001
  cd /tmp
  printf "%s" "{\"matrix\": \"smoke\", \"select\": \"llama-*/decode/*/bf16/*\", \"device\": \"cpu:1\"}" >plan.json
  python -c "from securesystemslib.signer import CryptoSigner as s; print(s.generate_ed25519().private_bytes.decode())" >key
  export QUALIFY_SIGNING_KEY=key
  python -c "from qualify.seal.keys import signing_key; print(signing_key().public.text)" >/shared/runner.pem
  qualify node plan.json --out runs >verdict.json
  qualify ingest runs --db evidence.db
  qualify verify latest --db evidence.db
  qualify gate --db evidence.db --run latest | head -n 3
  cp evidence.db /shared/
  unset QUALIFY_SIGNING_KEY
  case ",$EXTRAS," in *,fleet,*)
    ray start --head --port 6399 --num-gpus 1 --num-cpus 1 --include-dashboard=false --disable-usage-stats >/dev/null
    qualify fleet smoke --select "llama-*/decode/*/bf16/*" --device cpu:1 --address 127.0.0.1:6399 \
      --spread shard --deadline 600 --db fleet.db || true
    ray stop --force >/dev/null
    qualify coverage --db fleet.db | grep "100.0%"
  esac'

build web https://pypi.org/simple
try web '
  test "$(id -u)" = 10001
  qualify --version
  export QUALIFY_DB=/tmp/evidence.db
  qualify db upgrade
  qualify web --port 8329 & site=$!
  for _ in $(seq 60); do
    python -c "import urllib.request as r; print(r.urlopen(\"http://127.0.0.1:8329/readyz\", timeout=5).read())" \
      2>/dev/null && ready=1 && break
    sleep 1
  done
  kill $site
  test "${ready:-}" = 1
  cp /shared/evidence.db /tmp/sealed.db
  qualify verify latest --db /tmp/sealed.db --signed-by /shared/runner.pem'
