#!/usr/bin/env bash
# A call on a lent GPU, or what is to be done before it. See README.md beside this file.
#
#   lease.sh A|B|C [--dry] [--quick] [--from DIR]   one call; its records go to ${OUT:-build/lease/A}
#   lease.sh --prepare       wheels, their tags, the size of what travels, and the lines to type
#   lease.sh --wheels        only download what the machine does not have, into .whl/
#   lease.sh --check-size    only say how much would travel
#   lease.sh --check-wheels  only check the tags of what lies in .whl/
set -u
cd "$(dirname "$0")/../.." || exit 1
PYTHON=${PYTHON:-python3}
temporary=${TMPDIR:-/tmp}

case ${1:-} in
A | B | C) ;;
--prepare | --wheels | --check-size | --check-wheels) exec "$PYTHON" bench/gpu/travel.py "$@" ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac

# nvidia-smi and the MPS control program may lie outside PATH.
export PATH="$PATH:/usr/local/nvidia/bin" PYTHONUNBUFFERED=1
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$temporary/muxcluster-triton}
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

# Worker processes (partition mps) talk msgspec; without it everything else still runs.
if ! "$PYTHON" -c 'import msgspec' 2>/dev/null; then
    site=$temporary/muxcluster-site
    if compgen -G '.whl/*.whl' >/dev/null &&
        "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir \
            --upgrade --target "$site" .whl/*.whl; then
        export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
    fi
    "$PYTHON" -c 'import msgspec' || echo "no msgspec: partition mps will be left out"
fi

exec "$PYTHON" bench/gpu/lease.py "$@" --out "${OUT:-build/lease/$1}"
