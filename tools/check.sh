#!/usr/bin/env bash
# Checks everything that can be said without running the tests: tools/check.sh [STEP...], all steps unless some are named.
# Every step runs, so that one call shows all that is wrong; the exit status is 1 if any failed.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=venv.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/venv.sh"

BIN="$VENV/bin"

step_ruff() { "$BIN/ruff" check; }
step_format() { "$BIN/ruff" format --check; }
step_mypy() { "$BIN/mypy" --strict fastload; }
step_imports() { "$BIN/lint-imports" --no-logo; }
step_shellcheck() { "$BIN/shellcheck" --external-sources tools/*.sh .ci/run; }
step_codespell() { "$BIN/codespell"; }
step_doctests() { "$PY" -m pytest --quiet --doctest-modules fastload; }

# pre-commit's own environments and the dev extra must hold the same versions, or they disagree about the same code.
step_pins() {
  "$PY" - <<'END'
import pathlib
import re
import sys
import tomllib

extras = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
wanted = dict(pin.split("==") for pin in extras["dev"] if "==" in pin)
hooks = re.findall(r"([\w-]+)==([\w.]+)", pathlib.Path(".pre-commit-config.yaml").read_text())
wrong = [f"{name}: {got} for the hooks, {wanted[name]} in pyproject.toml" for name, got in hooks if wanted.get(name, got) != got]
sys.exit("\n".join(wrong) or 0)
END
}

steps=(ruff format mypy imports shellcheck codespell doctests pins)
for step in "$@"; do
  [[ " ${steps[*]} " == *" $step "* ]] || { say "no step $step: there are ${steps[*]}"; exit 2; }
done
if [[ $# -eq 0 ]]; then
  set -- "${steps[@]}"
fi

need dev
cd "$ROOT"

failed=()
for step in "$@"; do
  say "== $step"
  "step_$step" || failed+=("$step")
done
if [[ ${#failed[@]} -gt 0 ]]; then
  say "failed: ${failed[*]}"
  exit 1
fi
