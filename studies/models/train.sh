#!/usr/bin/env bash
# Trains the models of docs/results.md that are not here: of each trace alone, of all others, of other base policies, and
# the learned peers; keeps their learning curves. The shipped model is not among them (models/README.md). About an hour
# and a half on one core; goes on where it was stopped. It trains under Slurm's own backfill and placement. The models
# of a trace and of all others that are kept here are older: they were trained under EASY and best fit, as the shipped
# one.
#   studies/models/train.sh DIR-OF-TRACES
set -euo pipefail
traces=${1:?"usage: $0 DIR-OF-TRACES"}
here=$(cd "$(dirname "$0")" && pwd)
rltuned=${RLTUNED:-"$here/../../.venv/bin/rltuned"}
python=${PYTHON:-"$(dirname "$rltuned")/python"}
work=${WORK:-"$here/../../build/results-models"}
export OMP_NUM_THREADS=1

declare -A sites=(
    [venus]="helios-venus.csv.gz 16x8:v100" [pai]="alibaba-pai.csv.gz 8x8:v100" [philly]="philly.csv.gz 20x8:p100"
    [philly-small]="philly.csv.gz 4x8:p100" [hpc2n]="hpc2n.swf.gz 120x2" [sdsc-blue]="sdsc-blue.swf.gz 144x8"
)
every=(venus pai philly philly-small hpc2n sdsc-blue)

# options_of NAME...: --trace and --cluster of these sites
options_of() {
    local name file cluster
    for name in "$@"; do
        read -r file cluster <<<"${sites[$name]}"
        printf -- '--trace %s --cluster %s ' "$traces/$file" "$cluster"
    done
}

# train FOLDER NAME OPTION...: unless it is there. Its learning curve goes to studies/results.
train() {
    local folder=$here/$1 name=$2 run=$work/$1/$2 label=${1#.}-$2
    shift 2
    [ ! -e "$folder/$name.json" ] || return 0
    rm -rf "$run"
    mkdir -p "$folder" "$run"
    echo "training $name into $folder"
    "$rltuned" train --name "$name" --out "$run" "$@"
    PYTHONPATH=$here/../.. "$python" -m studies.curves "$run" "$here/../results/curve-${label#-}.json"
    # The manifest last: where it is, everything is.
    cp "$run/$name.safetensors" "$folder/"
    cp "$run/$name.json" "$folder/"
}

# ours FOLDER NAME "SITE..." OPTION...
ours() {
    local folder=$1 name=$2 of=$3
    shift 3
    # shellcheck disable=SC2046,SC2086  # words, not one string
    train "$folder" "$name" $(options_of $of) --objective wait --iterations 10 "$@"
}

for trace in venus pai philly hpc2n sdsc-blue; do
    rest=()
    for site in "${every[@]}"; do [[ $site == "$trace"* ]] || rest+=("$site"); done
    alone=$trace
    [ "$trace" != philly ] || alone="philly philly-small"
    ours . "$trace" "$alone"
    ours unseen "$trace" "${rest[*]}"
done
for base in fifo sjf f1 wfp3 multifactor; do ours bases "$base" "venus pai philly-small" --rule "$base"; done
ours bases fifo-raw "venus pai philly-small" --rule fifo --columns requested_time,requested_limit,requested_gpus
for trace in venus pai philly-small; do
    for peer in schedinspector rlscheduler; do
        # Their authors' windows are of 256 jobs: the small Philly cluster. Without a GPU type, as the evaluation has it.
        read -r file cluster <<<"${sites[$trace]}"
        name=$peer-${trace%-small}
        [ -e "$here/peers/$name.json" ] || PYTHONPATH=$here/../.. "$python" -m studies.peers "$peer" --name "$name" \
            --trace "$traces/$file" --cluster "${cluster%:*}" --minutes 8 --out "$here/peers"
    done
done
