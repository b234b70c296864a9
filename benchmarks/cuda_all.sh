#!/usr/bin/env bash
# Everything that needs a GPU, in about half an hour, on a bare machine with a GPU and Python with PyTorch.
#
#   benchmarks/cuda_all.sh [FOLDER] [PART...]
#
# FOLDER (.whl) holds what is not installed: wheels, or .tar.xz archives of a folder of packages. Beside PyTorch for
# CUDA 13, which brings cuda-bindings, cuda-pathfinder, nvidia-cuda-runtime and nvidia-cuda-nvrtc (one for CUDA 12 does
# not: they have to travel too), that is whatever is missing of
#   apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 archspec pydantic pydantic-core annotated-types typing-inspection
#   torchvision numpy scikit-learn pillow tqdm typer PyYAML safetensors matplotlib psutil threadpoolctl
#   pytest pytest-timeout hypothesis (for `tests` alone)
# and what these need, for the machine's Python: `pip download --no-deps --only-binary=:all: --python-version 3.12 …`.
# Parts, all by default and in this order, each with a time limit of its own (seconds, in brackets); what one has
# installed or written is there for another call of the script:
#   install (60)    the packages of FOLDER, into a folder of their own
#   check (60)      chanas target check cuda: the first thing to read when the rest fails
#   tests (280)     pytest -m cuda
#   demo (420)      chanas demo --target cuda
#   table (480)     the latency table of four sub-spaces of mbv3 at 224 and 192 pixels, calibrated
#   figures (620)   benchmarks/cuda_networks.py: batch 1 and 32 beside eager, the table, then torch.compile
# Results are written to $OUT (./cuda-results without it) as they come: a log of each part, tables and figures as JSON,
# and summary.txt. The exit code is 1 when a part failed or could not be run. PYTHON names the interpreter (python3).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

folder=.whl
if [[ $# -gt 0 && -d $1 ]]; then
    folder=$1
    shift
fi
known=(install check tests demo table figures)
parts=("$@")
[[ ${#parts[@]} -gt 0 ]] || parts=("${known[@]}")
for name in "${parts[@]}"; do
    if [[ " ${known[*]} " != *" $name "* ]]; then
        echo "cuda_all: error: expected a folder or parts of ${known[*]}, got '$name' (folders count from $PWD)" >&2
        exit 2
    fi
done
out=${OUT:-$PWD/cuda-results}
site=${TMPDIR:-/tmp}/chanas-site-$(id -u)
run=${TMPDIR:-/tmp}/chanas-cuda-run-$(id -u)
python=${PYTHON:-python3}
export PYTHONPATH="$site:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out" "$site"
failed=0

say() {
    echo "$*" | tee -a "$out/summary.txt"
}

# part NAME SECONDS COMMAND...: runs a part that was asked for, within its time
part() {
    local name=$1 limit=$2 start=$SECONDS code=0
    shift 2
    [[ " ${parts[*]} " == *" $name "* ]] || return 0
    timeout -k 10 "$limit" "$@" > "$out/$name.log" 2>&1 || code=$?
    case $code in
        0) say "$name: done in $((SECONDS - start)) s" ;;
        124 | 137) say "$name: stopped after its $limit s; what it had written is kept" ;;
        *) say "$name: failed ($code) after $((SECONDS - start)) s: $(grep -v '^[[:space:]]*$' "$out/$name.log" | tail -n 1)" ;;
    esac
    [[ $code -eq 0 ]] || failed=1
}

install_packages() {
    local archive
    shopt -s nullglob
    for archive in "$folder"/*.tar.xz; do
        tar -xJf "$archive" -C "$site" || return 1
    done
    local wheels=("$folder"/*.whl)
    if [[ ${#wheels[@]} -gt 0 ]]; then
        "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "${wheels[@]}" \
            || for archive in "${wheels[@]}"; do "$python" -m zipfile -e "$archive" "$site" || return 1; done
    fi
    "$python" -c 'import chanas.commands.main, torch, tvm; print("torch", torch.__version__, "tvm", tvm.__version__)'
}

make_table() {
    local sub_space arguments=()
    for sub_space in r224-w1 r224-w1.2 r192-w1 r192-w1.2; do
        arguments+=(--sub-space "$sub_space")
    done
    # stopped before the part itself is, so that what it has written by then is copied
    timeout -k 10 460 "$python" -m chanas prescheduler --target cuda --space mbv3 --num-classes 1000 --run "$run" --trials 8 \
        --calibrate 12 "${arguments[@]}"
    local code=$?
    cp -f "$run"/luts/*.json "$out/" 2> /dev/null
    return $code
}

make_figures() {
    local arguments=()
    [[ -f $run/luts/cuda.json ]] && arguments=(--run "$run")
    # stopped before the part itself is, so that what it has written by then is copied
    timeout -k 10 600 "$python" benchmarks/cuda_networks.py --trials 8 "${arguments[@]}"
    local code=$?
    local result
    for result in benchmarks/results/cuda_networks-*.json; do  # one for each kind of GPU
        [[ $result -nt $out/summary.txt ]] && cp -f "$result" "$out/"
    done
    return $code
}

export -f install_packages make_table make_figures
export folder site run python out

say "$(date -u +%FT%TZ) $(git rev-parse --short HEAD 2> /dev/null) $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null || echo 'no GPU')"
part install 60 bash -c install_packages
code=0
"$python" -c 'import sys; from chanas.devices.driver import find_gpu; sys.exit(3 if find_gpu() is None else 0)' \
    2> "$out/gpu.log" || code=$?
if [[ $code -ne 0 ]]; then
    why="there is no GPU here"
    [[ $code -eq 3 ]] || why="whether there is a GPU can't be asked: $(tail -n 1 "$out/gpu.log")"
    for name in check tests demo table figures; do
        [[ " ${parts[*]} " == *" $name "* ]] && say "$name: not run, $why"
    done
    exit 1
fi
part check 60 "$python" -m chanas target check cuda
# warnings of versions that were never tried are no failures here; other tests may need what is not installed
mapfile -t cuda_tests < <(grep -rl --include='*.py' 'pytest\.mark\.cuda' tests)
part tests 280 "$python" -m pytest -q -p no:cacheprovider -m cuda -W default --durations 5 "${cuda_tests[@]}"
part demo 420 "$python" -m chanas demo --target cuda --run "$run-demo"
part table 480 bash -c make_table
part figures 620 bash -c make_figures
exit $failed
