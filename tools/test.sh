#!/usr/bin/env bash
# Runs the tests: tools/test.sh [--slow] [pytest arguments, paths as seen from the checkout].
# Tests marked gpu run where there is a CUDA device; tests marked slow run after --slow. Without pytest arguments the run is
# a full one, and coverage must reach the floor in pyproject.toml.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=venv.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/venv.sh"

slow=no
if [[ "${1:-}" == --slow ]]; then
  slow=yes
  shift
fi

need test
cd "$ROOT"

marks=""
options=()
if [[ $slow == yes ]]; then
  options+=(-o faulthandler_timeout=1200) # a slow test may rightly take minutes
else
  marks="not slow"
fi
if [[ $("$PY" -c 'import torch; print(torch.cuda.is_available())') != True ]]; then
  marks="${marks:+$marks and }not gpu"
fi
if [[ $# -eq 0 ]]; then
  options+=(--cov --cov-report=term)
fi

# The marks come first, so that a -m among the arguments takes their place.
exec "$PY" -m pytest -m "$marks" ${options[@]+"${options[@]}"} "$@"
