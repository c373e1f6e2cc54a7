#!/usr/bin/env bash
# From a fresh machine to the first numbers: install, make sample images, time the loaders, train both ways. See usage below.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=venv.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/venv.sh"

usage() {
  cat <<END
usage: tools/quickstart.sh [DATA]

1. installs fastload into the .venv of this checkout, with python3.11, or \$PYTHON if that is set
2. makes sample images in sample-data/, unless DATA names a folder of images, one folder for each class
3. times stock fastai's loader against fastload on them
4. trains a small model with each, and prints both losses side by side

It takes 5 to 15 minutes, of which installing takes 3. A second run finds 1 and 2 done and goes on with 3.
END
}

case "${1:-}" in
  -h | --help) usage; exit 0 ;;
  -*) usage >&2; exit 2 ;;
esac
if [[ $# -gt 1 ]]; then
  usage >&2
  exit 2
fi
data=${1:-$ROOT/sample-data}
if [[ $# -eq 1 && ! -d "$data" ]]; then
  die "no folder $data: name a folder of images, or none to use sample data"
fi

need sample

if [[ $# -eq 0 ]]; then
  # The command keeps a complete set that is there already, and leaves none behind that is half made.
  say "sample images in $data"
  "$VENV/bin/fastload" sample "$data"
fi

say "timing the loaders on $data"
"$VENV/bin/fastload" bench "$data" --rounds 2 --seconds 3

say "training with stock fastai and with fastload: some minutes"
"$PY" "$ROOT/benchmarks/train_compare.py" "$data"
